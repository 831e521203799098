"""Linear attention over all pairs of tokens in tiles: flash attention without the exponential.

Triton on a GPU (``kernels/tiled_triton``); elsewhere, in float64, and on an AMD GPU for heads wider
than 64, a masked product in PyTorch.

With a window, a token sees itself and the ``window - 1`` tokens before it. Keys and values may have
fewer heads than queries (grouped-query attention): head h reads their head ``h // (H / G)``.

Cost:
    ``B H T^2 (K + V)`` FLOPs forward and ``3 B H T^2 (K + V)`` backward, causal half counted;
    in addition to the result ``4 B H T (V + 1)`` bytes if normalized, and temporarily the features.
    A window w replaces ``T^2`` by about ``2 T w``. The masked product takes ``B H T^2`` elements.

Legend: see ``kernels/__init__.py``; G heads of keys and values.

Source: the window as in Beltagy et al. 2020 (arXiv:2004.05150); groups as in Ainslie et al. 2023
(arXiv:2305.13245).
"""

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton import op

WIDEST_ON_AMD = 64
"""Tiles of wider heads take 80 KiB of shared memory with Triton 3.7, and a CDNA 3 GPU has 64."""


def attend(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    feature_map: str,
    normalize: bool,
    window: int | None = None,
) -> Tensor:
    """See ``kernels/__init__.py``.

    Args:
        q_BTHK: Queries.
        k_BTGK: Keys; G divides H.
        v_BTGV: Values.
        feature_map: Name of a feature map.
        normalize: Whether to divide by the sum of weights.
        window: Tokens that a token sees, at least 1; None for all up to itself.

    Raises:
        ValueError: The arguments do not match, the feature map is unknown, or the window is empty.
    """
    kernels.check(q_BTHK, k_BTGK, v_BTGV, grouped=True)
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; allowed: at least 1, the token itself")
    width = max(q_BTHK.shape[3], v_BTGV.shape[3])
    fits = not torch.version.hip or width <= WIDEST_ON_AMD
    if kernels.on_triton_device(v_BTGV) and v_BTGV.dtype != torch.float64 and fits:
        feature_maps.find(feature_map)
        return op.attend(q_BTHK, k_BTGK, v_BTGV, feature_map, normalize, window or 0)
    return _masked_product(q_BTHK, k_BTGK, v_BTGV, feature_map, normalize, window)


def _masked_product(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    feature_map: str,
    normalize: bool,
    window: int | None,
) -> Tensor:
    phi = feature_maps.find(feature_map)
    dtype = torch.promote_types(v_BTGV.dtype, torch.float32)
    k, v = (x.repeat_interleave(q_BTHK.shape[2] // x.shape[2], 2) for x in (k_BTGK, v_BTGV))
    q, k = phi.of(q_BTHK.to(dtype)), phi.of(k.to(dtype))
    a_BHTT = torch.einsum("bthk,bshk->bhts", q, k).tril()
    if window is not None:
        a_BHTT = a_BHTT.triu(1 - window)
    if normalize:
        a_BHTT = a_BHTT / (a_BHTT.sum(-1, keepdim=True) + phi.epsilon)
    return torch.einsum("bhts,bshv->bthv", a_BHTT, v.to(dtype)).to(v_BTGV.dtype)
