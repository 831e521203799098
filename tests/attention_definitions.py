"""Each attention variant written a second time: all weights of a sequence in one masked matrix.

Legend: B batch, T tokens, D model width, H heads, K key width, V value width.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.kernels.feature_maps import find
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


def featured(
    layer: Any, q: Tensor, k: Tensor, v: Tensor, near: Tensor | float = 1.0, epsilon: float = 0.0
) -> Tensor:
    """Rotated, it divides by what is not rotated: Su et al. 2021, eq. 19."""
    above = (turned(layer, q) @ turned(layer, k).mT * near).tril()
    return above @ v / ((q @ k.mT * near).tril().sum(-1, True) + epsilon)


def linear(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return featured(layer, (1 + q.exp()).log(), (1 + k.exp()).log(), v)


def elu(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    return featured(layer, q, k, v)


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
    near = ((t[:, None] - t) * math.pi / (2 * layer.context)).cos()
    return featured(layer, q.relu(), k.relu(), v, near, 1e-6)


def local(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = turned(layer, q) @ turned(layer, k).mT / q.shape[-1] ** 0.5
    distance = torch.arange(len(s[0, 0]))[:, None] - torch.arange(len(s[0, 0]))
    far = (distance < 0) | (distance >= getattr(layer, "window", len(distance)))
    return s.masked_fill(far, -math.inf).softmax(-1) @ v


DECAYING = {f.__name__: f for f in (retention, mamba2, gated, gated_delta)}
AVERAGING = {f.__name__: f for f in (linear, elu, taylor2, favor, cosformer, local)}
AVERAGING["softmax"] = local


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


def linear_product(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool, window: int = 0
) -> Tensor:
    """Linear attention, ``[B, T, H, .]``, as one T x T product in the dtype of its arguments."""
    phi = find(feature_map)
    a = torch.einsum("bthk,bshk->bhts", phi.of(q), phi.of(k)).tril()
    a = a.triu(1 - window) if window else a
    y = torch.einsum("bhts,bshv->bthv", a, v)
    return y / (a.sum(-1) + phi.epsilon).transpose(1, 2).unsqueeze(-1) if normalize else y


def softmax_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, ``[B, T, H, .]``, as one T x T product in the dtype of its arguments."""
    scores = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -math.inf).softmax(-1), v)


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gated linear attention token by token, ``[B, T, H, .]``; g has gates of tokens or channels.

    With ``beta``, ``[B, T, H, 1]``, this part of what the key reads is replaced: the delta rule.
    """
    rows = []
    for t in range(q.shape[1]):
        state, u = g[:, t].exp().unsqueeze(-1) * state, v[:, t]
        if beta is not None:
            u = beta[:, t] * (u - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(rows, 1), state


def of_each(
    attend: Core, tokens: Sequence[Tensor], initial: Tensor, lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Each sequence by itself: these follow one another in the rows; without lengths, the rows.

    Args:
        attend: From q, k, v, gates, the state and what else there is of tokens.
        tokens: Tensors ``[B, T, ...]``.
        initial: State before each sequence.
        lengths: Tokens of each sequence.
    """
    if not lengths:
        return attend(*tokens[:4], initial, *tokens[4:])
    parts = zip(*(x.flatten(0, 1).split(list(lengths)) for x in tokens), strict=True)
    done = [
        attend(*(x[None] for x in each[:4]), initial[i : i + 1], *(x[None] for x in each[4:]))
        for i, each in enumerate(parts)
    ]
    y, last = zip(*done, strict=True)
    return torch.cat(y, 1).view(*tokens[0].shape[:2], *y[0].shape[2:]), torch.cat(last)


def delta_sample(
    lengths: Sequence[int], H: int, K: int, V: int, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor]]:
    """q, k, v, g, beta and states of one row of sequences; the gradients of y and of the states.

    q, k, v and the gradient of y have the dtype, the others at least float32.
    """
    T, P = sum(lengths), len(lengths)
    seeded = torch.Generator().manual_seed(T + H + K + V)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=seeded, dtype=torch.float64)

    single = torch.promote_types(dtype, torch.float32)
    q, k = (F.normalize(normal(1, T, H, K), dim=-1).to(dtype) for _ in range(2))
    v, dy = (normal(1, T, H, V).to(dtype) for _ in range(2))
    g, beta = F.logsigmoid(normal(1, T, H, 1)), 2 * normal(1, T, H, 1).sigmoid()
    initial, dlast = normal(P, H, K, V), normal(P, H, K, V)
    return [q, k, v, *(x.to(single) for x in (g, beta, initial))], [dy, dlast.to(single)]


def slopes(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a loss by outputs."""
    torch.manual_seed(2)
    return [torch.randn(y.shape, dtype=torch.float64) for y in outputs]


def gradients(outputs: Tensor | tuple[Tensor, ...], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of that loss by inputs."""
    each = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(each, inputs, slopes(each))
