"""Linear attention with gates, chunk by chunk in plain PyTorch; autograd computes the gradients.

Of one head, with a gate for each token, or for each token and channel of its keys::

    S_t = exp(g_t) S_{t-1} + k_t v_t^T             the gate scales rows of S
    y_t = S_t^T q_t

With G the sum of g since the start of the chunk and ``S`` the state before it::

    y_i = S^T (exp(G_i) q_i) + sum_{j<=i} A_ij v_j      A_ij = sum_c q_ic k_jc exp(G_ic - G_jc)
    S  <- exp(G_C) S + sum_j exp(G_C - G_j) k_j v_j^T

No exponent is ever positive: neither the factor ``exp(-G_j)`` alone nor a masked difference is
computed, for both overflow. With gates of channels, A is not a product of two matrices, so a chunk
is halved again and again: the second half reads the first relative to the gates at its own first
token, from which both exponents are negative, and blocks of ``LEAF`` tokens take all differences.

Legend: B batch (1 if all sequences have the same gates), T tokens, H heads, K key width, V value
width, F width of expanded keys, C chunk, N chunks, G gates of a token: 1 or K.

Source: Yang et al. 2024 (arXiv:2312.06635), sections 4.1 to 4.3.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.kernels import at_least_float32

CHUNK = 64
"""Tokens per chunk. At head width 64, the C x C product and the state cost about the same."""
LEAF = 4
"""Tokens between which gates of channels are compared directly, a power of two."""


def _same(x: Tensor) -> Tensor:
    return x


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor | None = None,
    initial_BHKV: Tensor | None = None,
    chunk: int = CHUNK,
    expand: Callable[[Tensor], Tensor] = _same,
    weigh: Callable[[Tensor], Tensor] = _same,
) -> tuple[Tensor, Tensor]:
    """Weighted sums of values, and the state after the last token.

    Args:
        q_BTHK: Queries.
        k_BTHK: Keys.
        v_BTHV: Values.
        log_decay: Natural logarithms of the gates, not positive, which is not checked: ``[H]``,
            ``[B, T, H]`` or ``[B, T, H, K]``; 1 everywhere if None.
        initial_BHKV: State before the first token; zero if None.
        chunk: Tokens per chunk; T need not be a multiple.
        expand: Features of queries and keys, ``[..., K]`` to ``[..., F]``. The state then has F
            rows. Not with gates of channels.
        weigh: With ``expand``, the product of two features as a function of ``q . k``, which costs
            less than the features inside a chunk.

    Returns:
        ``y_BTHV`` in the dtype of v, and ``[B, H, K, V]`` in at least float32.

    Cost:
        ``2 B H T (C (K + V) / 2 + 2 K V)`` FLOPs forward, causal half counted; with gates of
        channels ``K (2 log2(C / LEAF) + LEAF + 2)`` exponentials a token and head. Autograd keeps
        the states, ``B H (T / C) K V`` elements, and the weights, ``B H T C``.
    """
    G_BTHG, T = None if log_decay is None else of_tokens(log_decay), q_BTHK.shape[1]
    if G_BTHG is None or G_BTHG.shape[-1] == 1 or T == 1:
        chunk = min(chunk, T)
    else:
        chunk = 1 << (chunk - 1).bit_length()  # halved equally often at any T, as compilers need
    q, k, v = (cut(at_least_float32(x), chunk) for x in (q_BTHK, k_BTHK, v_BTHV))
    if G_BTHG is None:
        added_BHNKV = expand(k).mT @ v
        # The state before each chunk. Subtracting a chunk's contribution from the inclusive sum
        # would make the rounding of an output depend on later tokens of its chunk.
        state = F.pad(added_BHNKV.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
        if initial_BHKV is not None:
            state = state + initial_BHKV.unsqueeze(2)
        y = weigh(q @ k.mT).tril() @ v + expand(q) @ state
        final = state[:, :, -1] + added_BHNKV[:, :, -1]
    else:
        G = cut(G_BTHG.to(q.dtype).expand(-1, T, -1, -1), chunk).cumsum(3)
        last = G[..., -1:, :]
        added_BHNKV = (expand(k) * (last - G).exp()).mT @ v
        state, final = _states(added_BHNKV, last.mT.exp(), initial_BHKV)
        y = _inside(q, k, v, G, weigh) + (expand(q) * G.exp()) @ state
    return y.flatten(2, 3)[:, :, :T].transpose(1, 2).to(v_BTHV.dtype), final


def of_tokens(log_decay: Tensor) -> Tensor:
    """Gates as ``[B, T, H, G]``; one of a head is one of every token, ``[1, 1, H, 1]``."""
    if log_decay.dim() == 4:
        return log_decay
    return log_decay.unsqueeze(-1) if log_decay.dim() == 3 else log_decay[None, None, :, None]


def cut(x_BTHX: Tensor, chunk: int) -> Tensor:
    """[B, T, H, X] to [B, H, N, C, X]; zeros, which change no sum, fill the last chunk."""
    T = x_BTHX.shape[1]
    return F.pad(x_BTHX.transpose(1, 2), (0, 0, 0, -T % chunk)).unflatten(2, (-1, chunk))


def _states(
    added_BHNKV: Tensor, kept_BHNG1: Tensor, initial_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The state before each chunk, ``[B, H, N, K, V]``, and the one after the last."""
    added = added_BHNKV.unbind(2)
    state = torch.zeros_like(added[0]) if initial_BHKV is None else initial_BHKV.to(added[0].dtype)
    before = []
    for a, kept in zip(added, kept_BHNG1.unbind(2), strict=True):
        before.append(state)
        state = kept * state + a
    return torch.stack(before, 2), state


def _inside(
    q: Tensor, k: Tensor, v: Tensor, G: Tensor, weigh: Callable[[Tensor], Tensor]
) -> Tensor:
    """What the tokens of a chunk read of it, ``[..., C, V]``."""
    if G.shape[-1] == 1:
        return (weigh(q @ k.mT) * _kept(G, G.mT, _later(G))) @ v
    C, size = q.shape[-2], min(LEAF, q.shape[-2])
    rows, columns, values, g = (x.unflatten(-2, (-1, size)) for x in (q, k, v, G))
    kept = _kept(g.unsqueeze(-2), g.unsqueeze(-3), _later(g).unsqueeze(-1))
    weights = (rows.unsqueeze(-2) * columns.unsqueeze(-3) * kept).sum(-1)
    y = (weights @ values).flatten(-3, -2)
    while size < C:
        halves = [x.unflatten(-2, (-1, 2, size)).unbind(-3) for x in (q, k, v, G)]
        (_, rows), (columns, _), (values, _), (g1, g2) = halves
        start = g2[..., :1, :]
        weights = (rows * (g2 - start).exp()) @ (columns * (start - g1).exp()).mT
        y = y + F.pad(weights @ values, (0, 0, size, 0)).flatten(-3, -2)
        size *= 2
    return y


def _later(G: Tensor) -> Tensor:
    """Which tokens of a block come after a token, ``[C, C]``."""
    C = G.shape[-2]
    return torch.ones(C, C, dtype=torch.bool, device=G.device).triu(1)


def _kept(rows: Tensor, columns: Tensor, later: Tensor) -> Tensor:
    """How much of each column's token each row's token sees; nothing of a later one."""
    return (rows - columns).masked_fill(later, float("-inf")).exp()
