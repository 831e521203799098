"""Linear attention over all pairs of tokens in tiles: flash attention without the exponential.

Triton on a GPU (``kernels/tiled_triton``); elsewhere, in float64, and on an AMD GPU for heads wider
than 64, a masked product in PyTorch.

Cost:
    ``B H T^2 (K + V)`` FLOPs forward and ``3 B H T^2 (K + V)`` backward, causal half counted;
    in addition to the result ``4 B H T (V + 1)`` bytes if normalized, and temporarily the features.
    The masked product takes ``B H T^2`` elements.
"""

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton import op

WIDEST_ON_AMD = 64
"""Tiles of wider heads take 80 KiB of shared memory with Triton 3.7, and a CDNA 3 GPU has 64."""


def attend(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """See ``kernels/__init__.py``."""
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    width = max(q_BTHK.shape[3], v_BTHV.shape[3])
    fits = not torch.version.hip or width <= WIDEST_ON_AMD
    if kernels.on_triton_device(v_BTHV) and v_BTHV.dtype != torch.float64 and fits:
        feature_maps.find(feature_map)
        return op.attend(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize)
    return _masked_product(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize)


def _masked_product(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    phi = feature_maps.find(feature_map)
    dtype = torch.promote_types(v_BTHV.dtype, torch.float32)
    q, k = phi.of(q_BTHK.to(dtype)), phi.of(k_BTHK.to(dtype))
    a_BHTT = torch.einsum("bthk,bshk->bhts", q, k).tril()
    if normalize:
        a_BHTT = a_BHTT / (a_BHTT.sum(-1, keepdim=True) + phi.epsilon)
    return torch.einsum("bhts,bshv->bthv", a_BHTT, v_BTHV.to(dtype)).to(v_BTHV.dtype)
