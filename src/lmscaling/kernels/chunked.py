"""Causal normalised linear attention, chunk by chunk, in plain PyTorch.

``o_t = sum_{s<=t} (q_t . k_s) v_s / sum_{s<=t} (q_t . k_s)``. The sequence is cut into chunks of C
tokens. Inside a chunk the sum is a masked C x C product; all earlier chunks enter through one
K x V state, so the cost grows linearly with T. The normaliser is one more column of V, of ones.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12; the chunked form as in
Yang et al. 2024 (arXiv:2312.06635), section 4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
"""Tokens per chunk: the C x C product and the state then cost about the same at head width 64."""


def linear_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTV: Tensor, chunk: int = CHUNK) -> Tensor:
    """Linear attention after the feature map.

    Args:
        q_BHTK: Queries, positive.
        k_BHTK: Keys, positive; a row may be zero only if it is to be left out.
        v_BHTV: Values.
        chunk: Tokens per chunk; T need not be a multiple.

    Returns:
        ``o_BHTV`` in the dtype of ``v_BHTV``. Sums are taken in at least float32.

    Raises:
        ValueError: The shapes do not fit.

    Cost:
        ``2 B H T (C (K + V) / 2 + 2 K V)`` FLOPs forward, causal half counted; the states take
        ``B H (T / C) K (V + 1)`` elements.
    """
    dtype = torch.promote_types(v_BHTV.dtype, torch.float32)
    v_and_one = F.pad(v_BHTV.to(dtype), (0, 1), value=1.0)
    sums = weighted_sum(q_BHTK.to(dtype), k_BHTK.to(dtype), v_and_one, chunk)
    return (sums[..., :-1] / sums[..., -1:]).to(v_BHTV.dtype)


def weighted_sum(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTV: Tensor, chunk: int = CHUNK) -> Tensor:
    """``sum_{s<=t} (q_t . k_s) v_s``, in the dtype of the arguments, which is one.

    Raises:
        ValueError: The shapes do not fit.
    """
    if q_BHTK.shape != k_BHTK.shape or v_BHTV.shape[:3] != k_BHTK.shape[:3]:
        raise ValueError(
            f"q, k, v have shapes {tuple(q_BHTK.shape)}, {tuple(k_BHTK.shape)}, "
            f"{tuple(v_BHTV.shape)}; allowed: q like k, v like k up to the last axis"
        )
    T = q_BHTK.shape[2]
    chunk = min(chunk, T)
    q, k, v = (_cut(x, chunk) for x in (q_BHTK, k_BHTK, v_BHTV))  # [B, H, N, C, .]
    added_BHNKV = k.transpose(-1, -2) @ v
    state_BHNKV = added_BHNKV.cumsum(2) - added_BHNKV  # what the chunks before have left
    sums = (q @ k.transpose(-1, -2)).tril() @ v + q @ state_BHNKV
    return sums.flatten(2, 3)[:, :, :T]


def _cut(x_BHTX: Tensor, chunk: int) -> Tensor:
    """[B, H, T, X] to [B, H, N, C, X]; zeros fill the last chunk and add nothing to any sum."""
    T = x_BHTX.shape[2]
    return F.pad(x_BHTX, (0, 0, 0, -T % chunk)).unflatten(2, (-1, chunk))
