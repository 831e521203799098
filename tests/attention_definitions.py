"""Each attention variant written a second time: all weights of a sequence in one masked matrix.

Legend: B batch, T tokens, D model width, H heads, K key width, V value width.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.kernels.rotary import Rotary, unrotated

Core = Callable[..., tuple[Tensor, Tensor]]


def heads(layer: Any, x: Tensor, *widths: int) -> list[Tensor]:
    """Parts of a projection as ``[B, H, T, width]``."""
    H = layer.n_head
    return [y.unflatten(-1, (H, -1)).transpose(1, 2) for y in x.split([w * H for w in widths], -1)]


def turned(layer: Any, x: Tensor) -> Tensor:
    """Rotated by position if the layer does."""
    return x if layer.rotate is unrotated else Rotary(x.shape[-1])(x, 0)


def decays(g: Tensor) -> Tensor:
    """``exp(g_{j+1} + ... + g_i)`` of each pair, zero if j > i; ``[B, H, T, X]`` to
    ``[B, H, T, T, X]``."""
    T = g.shape[2]
    total = F.pad(g.cumsum(2), (0, 0, 1, 0))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)[..., None]
    pairs = total[:, :, 1:, None] - total[:, :, None, 1:]
    return pairs.masked_fill(later, -math.inf).exp()


def weights(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
    return torch.einsum("bhic,bhjc,bhijc->bhij", q, k, decays(g).expand(*[-1] * 4, q.shape[-1]))


def gates(layer: Any, rate: Tensor) -> tuple[Tensor, Tensor]:
    """dt and g of ``mamba2`` and ``gated_delta``, ``[B, H, T, 1]``."""
    dt = F.softplus(rate + layer.decay.bias_H).transpose(1, 2).unsqueeze(-1)
    return dt, -layer.decay.log_A_H.exp()[:, None, None] * dt


def retention(layer: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    g = layer.log_decay_H[None, :, None, None].expand(*v.shape[:3], 1)
    return weights(turned(layer, q), turned(layer, k) / q.shape[-1] ** 0.5, g) @ v


def mamba2(layer: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dt, g = gates(layer, x @ layer.rate.weight.T)
    return weights(q, k, g) @ (dt * v)


def gated(layer: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = x @ layer.down.weight.T @ layer.up.weight.T + layer.bias_W
    g = torch.sigmoid(z).log() / layer.temperature
    return weights(q / q.shape[-1] ** 0.5, k, heads(layer, g, q.shape[-1])[0]) @ v


def gated_delta(layer: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rate, strength = (x @ layer.rate.weight.T).split(layer.n_head, -1)
    g = gates(layer, rate)[1]
    beta = layer.largest_beta * strength.sigmoid().transpose(1, 2).unsqueeze(-1)
    q, k = (F.silu(y) / (F.silu(y).square().sum(-1, True) + 1e-6).sqrt() for y in (q, k))
    one = torch.eye(x.shape[1], dtype=x.dtype)
    replaced = torch.linalg.inv(one + (beta * weights(k, k, g)).tril(-1)) @ (beta * v)
    return weights(q, k, g) @ replaced / q.shape[-1] ** 0.5


def elu(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    above = (turned(layer, q) @ turned(layer, k).mT).tril()
    return above @ v / (q @ k.mT).tril().sum(-1, True)


def taylor2(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = turned(layer, q) @ turned(layer, k).mT / q.shape[-1] ** 0.5
    a = sum(s**m / math.factorial(m) for m in range(layer.order + 1)).tril()  # pyright: ignore
    return a @ v / a.sum(-1, True)


def favor(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def phi(x: Tensor) -> Tensor:
        x = turned(layer, x) / x.shape[-1] ** 0.25
        return (x @ layer.weight_FK.T - x.square().sum(-1, True) / 2).exp()

    a = (phi(q) @ phi(k).mT).tril()
    return a @ v / a.sum(-1, True)


def cosformer(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    t = torch.arange(q.shape[2], dtype=q.dtype)
    near = ((t[:, None] - t) * math.pi / (2 * layer.context)).cos().tril()
    q, k = q.relu(), k.relu()
    above = turned(layer, q) @ turned(layer, k).mT * near
    return above @ v / ((q @ k.mT * near).sum(-1, True) + 1e-6)


def local(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = turned(layer, q) @ turned(layer, k).mT / q.shape[-1] ** 0.5
    far = torch.ones_like(s, dtype=torch.bool).triu(1).logical_or(
        torch.ones_like(s, dtype=torch.bool).tril(-layer.window)
    )  # fmt: skip
    return s.masked_fill(far, -math.inf).softmax(-1) @ v


DECAYING = {f.__name__: f for f in (retention, mamba2, gated, gated_delta)}
AVERAGING = {f.__name__: f for f in (elu, taylor2, favor, cosformer, local)}


def output(name: str, layer: Any, x: Tensor) -> Tensor:
    """What a layer should give for ``[B, T, D]``."""
    V = layer.d_model // layer.n_head
    if name in AVERAGING:
        width = layer.inside if name == "taylor2" else V
        y = AVERAGING[name](layer, *heads(layer, layer.qkv(x), width, width, V))
        return layer.out(y.transpose(1, 2).flatten(2))
    q, k, v, r = heads(layer, layer.qkvr(x), V // 2, V // 2, V, V)
    y = DECAYING[name](layer, x, q, k, v)
    y = y / (y.square().mean(-1, True) + 1e-12).sqrt() * F.silu(r)
    y = y * layer.weight_V if name == "gated" else y
    return layer.out(y.transpose(1, 2).flatten(2))


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Gated linear attention token by token, ``[B, T, H, .]``; g has gates of tokens or
    channels."""
    rows = []
    for t in range(q.shape[1]):
        kept = g[:, t].exp().unsqueeze(-1)
        state = kept * state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(rows, 1), state


def slopes(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a loss by outputs."""
    torch.manual_seed(2)
    return [torch.randn(y.shape, dtype=torch.float64) for y in outputs]


def gradients(outputs: Tensor | tuple[Tensor, ...], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of that loss by inputs."""
    each = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(each, inputs, slopes(each))
