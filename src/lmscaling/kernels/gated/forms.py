"""The first two forms of linear attention with gates in plain PyTorch; ``plain.py`` is the chunked.

All compute, for the tokens t of a sequence, from logarithms g of gates, at most 0::

    S_t = exp(g_t) S_{t-1} + k_t v_t^T    y_t = S_t^T q_t

which is ``y_t = sum_{s<=t} A_ts v_s`` with ``A_ts = sum_c q_tc k_sc exp(g_{s+1,c} + ... + g_tc)``.
Arguments and results are those of ``plain.attend``, without its chunk.

Legend: B batch, T tokens, H heads, K key width, V value width, G gates of a token: 1 or K.

Source: Yang et al. 2024 (arXiv:2312.06635), eq. 3 and 4.
"""

import torch
from torch import Tensor

from lmscaling.kernels import at_least_float32
from lmscaling.kernels.gated.plain import of_tokens

Form = tuple[Tensor, Tensor]


@torch.compiler.disable(reason="a compiler would unroll the loop over tokens")
def recurrent(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_BHKV: Tensor | None = None,
) -> Form:
    """One loop over tokens with the state.

    Cost:
        ``5 B H T K V`` FLOPs forward. Each token reads and writes the state, ``8 B H T K V`` bytes
        in float32; autograd keeps the state of every token.
    """
    q, k, v, g, S_BHKV = _prepared(q_BTHK, k_BTHK, v_BTHV, log_decay, initial_BHKV)
    y_T = []
    for q_BHK, k_BHK, v_BHV, g_BHG in zip(*(x.unbind(1) for x in (q, k, v, g)), strict=True):
        S_BHKV = g_BHG.exp().unsqueeze(-1) * S_BHKV + k_BHK.unsqueeze(-1) * v_BHV.unsqueeze(-2)
        y_T.append((q_BHK.unsqueeze(-2) @ S_BHKV).squeeze(-2))
    return torch.stack(y_T, 1).to(v_BTHV.dtype), S_BHKV


def parallel(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_BHKV: Tensor | None = None,
) -> Form:
    """The weights of all pairs of tokens in memory. No exponent is positive, so nothing overflows.

    Cost:
        ``2 B H T^2 (K + V)`` FLOPs forward, because the masked half is computed, too. Products of
        channels take ``B H T^2 K`` elements, which autograd keeps.
    """
    q, k, v, g, S_BHKV = _prepared(q_BTHK, k_BTHK, v_BTHV, log_decay, initial_BHKV)
    G_BTHG = g.cumsum(1)
    later_TT = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    between = G_BTHG.unsqueeze(2) - G_BTHG.unsqueeze(1)  # [B, T, S, H, G]
    kept = between.masked_fill(later_TT[..., None, None], float("-inf")).exp()
    weight_BTSH = (q.unsqueeze(2) * k.unsqueeze(1) * kept).sum(-1)
    y_BTHV = torch.einsum("btsh,bshv->bthv", weight_BTSH, v)
    y_BTHV = y_BTHV + torch.einsum("bthk,bhkv->bthv", q * G_BTHG.exp(), S_BHKV)
    last = G_BTHG[:, -1:]
    added = torch.einsum("bthk,bthv->bhkv", k * (last - G_BTHG).exp(), v)
    return y_BTHV.to(v_BTHV.dtype), last[:, 0].exp().unsqueeze(-1) * S_BHKV + added


def _prepared(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay: Tensor, initial: Tensor | None
) -> tuple[Tensor, ...]:
    """Tokens in at least float32, gates ``[B or 1, T, H, G]`` and the first state."""
    q, k, v = (at_least_float32(x) for x in (q_BTHK, k_BTHK, v_BTHV))
    B, T, H, K = q.shape
    g_BTHG = of_tokens(log_decay).to(q.dtype).expand(-1, T, -1, -1)
    zero = q.new_zeros(B, H, K, v.shape[3])
    return q, k, v, g_BTHG, zero if initial is None else zero + initial
