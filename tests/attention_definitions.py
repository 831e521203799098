"""Each attention variant written a second time: all weights of a sequence in one masked matrix.
Legend: B batch, T tokens, D model width, H heads, K key width, V value width."""

import math

import torch
import torch.nn.functional as F

from lmscaling import registry
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.rotary import Rotary, unrotated

OURS = [name for name in registry.attentions() if name != "fla"]
"""Those that have no layer of another package inside."""


def heads(layer, x, *widths):
    """Parts of a projection as ``[B, H, T, width]``."""
    H = layer.n_head
    return [y.unflatten(-1, (H, -1)).transpose(1, 2) for y in x.split([w * H for w in widths], -1)]


def turned(layer, x):
    return x if layer.rotate is unrotated else Rotary(x.shape[-1])(x, 0)


def decays(g):
    """``exp(g_{j+1} + ... + g_i)`` of each pair, zero if j > i, ``[B, H, T, T, X]``."""
    T = g.shape[2]
    total = F.pad(g.cumsum(2), (0, 0, 1, 0))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)[..., None]
    pairs = total[:, :, 1:, None] - total[:, :, None, 1:]
    return pairs.masked_fill(later, -math.inf).exp()


def weights(q, k, g):
    return torch.einsum("bhic,bhjc,bhijc->bhij", q, k, decays(g).expand(*[-1] * 4, q.shape[-1]))


def gates(layer, rate):
    """dt and g of ``mamba2`` and ``gated_delta``, ``[B, H, T, 1]``."""
    dt = F.softplus(rate + layer.decay.bias_H).transpose(1, 2).unsqueeze(-1)
    return dt, -layer.decay.log_A_H.exp()[:, None, None] * dt


def retention(layer, x, q, k, v):
    g = layer.log_decay_H[None, :, None, None].expand(*v.shape[:3], 1)
    return weights(turned(layer, q), turned(layer, k) / q.shape[-1] ** 0.5, g) @ v


def mamba2(layer, x, q, k, v):
    dt, g = gates(layer, x @ layer.rate.weight.T)
    return weights(q, k, g) @ (dt * v)


def gated(layer, x, q, k, v):
    z = x @ layer.down.weight.T @ layer.up.weight.T + layer.bias_W
    g = torch.sigmoid(z).log() / layer.temperature
    return weights(q / q.shape[-1] ** 0.5, k, heads(layer, g, q.shape[-1])[0]) @ v


def gated_delta(layer, x, q, k, v):
    rate, strength = (x @ layer.rate.weight.T).split(layer.n_head, -1)
    g = gates(layer, rate)[1]
    beta = layer.largest_beta * strength.sigmoid().transpose(1, 2).unsqueeze(-1)
    q, k = (F.silu(y) / (F.silu(y).square().sum(-1, True) + 1e-6).sqrt() for y in (q, k))
    one = torch.eye(x.shape[1], dtype=x.dtype)
    replaced = torch.linalg.inv(one + (beta * weights(k, k, g)).tril(-1)) @ (beta * v)
    return weights(q, k, g) @ replaced / q.shape[-1] ** 0.5


def featured(layer, q, k, v, near=1.0, epsilon=0.0):
    """Rotated, it divides by what is not rotated: Su et al. 2021, eq. 19."""
    above = (turned(layer, q) @ turned(layer, k).mT * near).tril()
    return above @ v / ((q @ k.mT * near).tril().sum(-1, True) + epsilon)


def taylor2(layer, q, k, v):
    s = turned(layer, q) @ turned(layer, k).mT / q.shape[-1] ** 0.5
    a = sum(s**m / math.factorial(m) for m in range(layer.order + 1)).tril()  # pyright: ignore
    return a @ v / a.sum(-1, True)


def favor(layer, q, k, v):
    def phi(x):
        x = turned(layer, x) / x.shape[-1] ** 0.25
        return (x @ layer.weight_FK.T - x.square().sum(-1, True) / 2).exp()

    a = (phi(q) @ phi(k).mT).tril()
    return a @ v / a.sum(-1, True)


def cosformer(layer, q, k, v):
    t = torch.arange(q.shape[2], dtype=q.dtype)
    near = ((t[:, None] - t) * math.pi / (2 * layer.context)).cos()
    return featured(layer, q.relu(), k.relu(), v, near, 1e-6)


def power(layer, q, k, v, rate):
    g = F.logsigmoid(rate + layer.bias_H[:, None, None])
    s = turned(layer, q) @ turned(layer, k).mT
    a = (s.square() / q.shape[-1] * decays(g).squeeze(-1)).tril()
    return a @ v / (a.sum(-1, True) + 1e-6)


def local(layer, q, k, v):
    s = turned(layer, q) @ turned(layer, k).mT / q.shape[-1] ** 0.5
    distance = torch.arange(len(s[0, 0]))[:, None] - torch.arange(len(s[0, 0]))
    far = (distance < 0) | (distance >= getattr(layer, "window", len(distance)))
    return s.masked_fill(far, -math.inf).softmax(-1) @ v


DECAYING = {f.__name__: f for f in (retention, mamba2, gated, gated_delta)}
AVERAGING = {f.__name__: f for f in (taylor2, favor, cosformer, local, power)} | {"softmax": local}
MAPS = {"linear": lambda x: (1 + x.exp()).log(),
        "elu": lambda x: torch.where(x > 0, x + 1, x.exp())}  # fmt: skip
MAPS["linear_parts"] = MAPS["linear"]


def output(name, layer, x):
    """What a layer should give for ``[B, T, D]``."""
    V = layer.d_model // layer.n_head
    if name in (*AVERAGING, *MAPS):
        width, more = layer.inside if name in ("taylor2", "power") else V, [1] * (name == "power")
        q, k, v, *more = heads(layer, layer.qkv(x), width, width, V, *more)
        phi = MAPS.get(name)
        y = featured(layer, phi(q), phi(k), v) if phi else AVERAGING[name](layer, q, k, v, *more)
        return layer.out(y.transpose(1, 2).flatten(2))
    q, k, v, r = heads(layer, layer.qkvr(x), V // 2, V // 2, V, V)
    y = DECAYING[name](layer, x, q, k, v)
    y = y / (y.square().mean(-1, True) + 1e-12).sqrt() * F.silu(r)
    y = y * layer.weight_V if name == "gated" else y
    return layer.out(y.transpose(1, 2).flatten(2))


def linear_product(q, k, v, feature_map, normalize):
    """Linear attention, ``[B, T, H, .]``, as one T x T product in the dtype of its arguments."""
    phi = find(feature_map)
    a = torch.einsum("bthk,bshk->bhts", phi.of(q), phi.of(k)).tril()
    y = torch.einsum("bhts,bshv->bthv", a, v)
    return y / (a.sum(-1) + phi.epsilon).transpose(1, 2).unsqueeze(-1) if normalize else y


def softmax_product(q, k, v):
    """Softmax attention, ``[B, T, H, .]``, as one T x T product in the dtype of its arguments."""
    scores = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -math.inf).softmax(-1), v)


def recurrence(q, k, v, g, state, beta=None):
    """Gated linear attention token by token, ``[B, T, H, .]``; g has gates of tokens or channels.
    With ``beta``, ``[B, T, H, 1]``, this part of what the key reads is replaced: the delta rule."""
    rows = []
    for t in range(q.shape[1]):
        state, u = g[:, t].exp().unsqueeze(-1) * state, v[:, t]
        if beta is not None:
            u = beta[:, t] * (u - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(rows, 1), state


def of_each(attend, tokens, initial, lengths):
    """Each sequence by itself: these follow one another in the rows; without lengths, the rows.
    ``attend`` is given q, k, v, gates, the state and what else there is of tokens."""
    if not lengths:
        return attend(*tokens[:4], initial, *tokens[4:])
    parts = zip(*(x.flatten(0, 1).split(list(lengths)) for x in tokens), strict=True)
    each = ([x[None] for x in part] for part in parts)
    done = [attend(*x[:4], state[None], *x[4:]) for x, state in zip(each, initial, strict=True)]
    y, last = zip(*done, strict=True)
    return torch.cat(y, 1).view(*tokens[0].shape[:2], *y[0].shape[2:]), torch.cat(last)


def gradients(outputs, inputs):
    each = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.manual_seed(2)
    slopes = [torch.randn(y.shape, dtype=torch.float64) for y in each]
    return torch.autograd.grad(each, inputs, slopes)
