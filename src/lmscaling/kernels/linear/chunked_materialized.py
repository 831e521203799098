"""Linear attention chunk by chunk in plain PyTorch, with the state of every chunk in memory.

The sequence is cut into chunks of C tokens. Within a chunk, the sum is a masked C x C product. All
earlier chunks contribute through one K x V state, the cumulative sum over chunks, so the cost grows
linearly with T. The sum of weights is computed as an additional column of V, of ones.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N chunks.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12; the chunked form as in
Yang et al. 2024 (arXiv:2312.06635), section 4.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from lmscaling.kernels import at_least_float32, check
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.gated.plain import CHUNK, weighted_sum


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    feature_map: str,
    normalize: bool,
    chunk: int = CHUNK,
) -> Tensor:
    """Linear attention; the contract is in ``kernels/__init__.py``.

    Args:
        q_BTHK: Queries.
        k_BTHK: Keys.
        v_BTHV: Values.
        feature_map: Name of a feature map.
        normalize: Whether to divide by the sum of weights.
        chunk: Tokens per chunk, a power of two; T need not be a multiple.

    Raises:
        ValueError: The arguments do not match, the feature map is unknown, or the chunk is not a
            power of two.

    Cost:
        ``2 B H T (C (K + V) / 2 + 2 K V)`` FLOPs forward, causal half counted. The states take
        ``B H (T / C) K (V + 1)`` elements, written twice and read twice, and the weights
        ``B H T C``; autograd keeps both.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    check_chunk(chunk)
    phi = find(feature_map)
    q_BTHK, k_BTHK = phi.of(at_least_float32(q_BTHK)), phi.of(at_least_float32(k_BTHK))
    values = at_least_float32(v_BTHV)
    if not normalize:
        return weighted_sum(q_BTHK, k_BTHK, values, None, None, chunk)[0].to(v_BTHV.dtype)
    values = F.pad(values, (0, 1), value=1.0)
    sums, _ = weighted_sum(q_BTHK, k_BTHK, values, None, None, chunk)
    return (sums[..., :-1] / (sums[..., -1:] + phi.epsilon)).to(v_BTHV.dtype)


def check_chunk(chunk: int) -> None:
    """Raise ValueError if the chunk is not a power of two."""
    if chunk < 1 or chunk & (chunk - 1):
        nearest = 2 ** round(math.log2(max(chunk, 1)))
        raise ValueError(f"chunk is {chunk}; allowed: powers of two; nearest is {nearest}")
