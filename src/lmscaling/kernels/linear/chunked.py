"""Chunked and fused: Triton kernels on CUDA tensors, plain PyTorch on others.

Queries, keys and values that are views of one projection are read where they lie, and their
gradient is written in one piece; others are packed first.

Legend: see ``kernels/__init__.py``; W = H (2 K + V) is the width of a packed row.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked import weighted_sum
from lmscaling.kernels.fused import op


def attend(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """Linear attention; the contract stands in ``kernels/__init__.py``.

    The kernels take float32 and bfloat16 and widths up to 128. Anything else, and every tensor
    that is not on a CUDA device, is computed in plain PyTorch.

    Raises:
        ValueError: The arguments do not fit, or the feature map is not known.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    heads, key = q_BTHK.shape[2:]
    if v_BTHV.is_cuda and op.takes(v_BTHV.dtype, key, v_BTHV.shape[3]):
        feature_maps.find(feature_map)
        qkv_BTW = packed(q_BTHK, k_BTHK, v_BTHV)
        return op.chunked(qkv_BTW, heads, key, feature_map, normalize)[0]
    return _plain(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize)


def packed(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Rows of queries, keys, values, ``[B, T, W]``: what the three are views of, else a copy.

    While ``torch.compile`` traces it is a copy, since offsets into memory cannot be traced; a
    compiled model may hand its projection to ``op.chunked`` itself.
    """
    arguments = (q_BTHK, k_BTHK, v_BTHV)
    widths = [x.shape[2] * x.shape[3] for x in arguments]
    shape = (*v_BTHV.shape[:2], sum(widths))
    base = None if torch.compiler.is_compiling() else v_BTHV._base
    if (
        base is not None
        and base is q_BTHK._base
        and base is k_BTHK._base
        and base.is_contiguous()
        and base.numel() == math.prod(shape)
    ):
        parts = base.view(shape).split(widths, -1)
        if all(_same(part.view(x.shape), x) for part, x in zip(parts, arguments, strict=True)):
            return base.view(shape)
    return torch.cat([x.flatten(2) for x in arguments], -1)


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two views of one tensor, of one shape, are the same elements."""
    strides = zip(x.shape, x.stride(), y.stride(), strict=True)
    return x.storage_offset() == y.storage_offset() and all(n == 1 or a == b for n, a, b in strides)


def _plain(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    phi, dtype = feature_maps.find(feature_map), torch.promote_types(v_BTHV.dtype, torch.float32)
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    sums_BTHV = weighted_sum(phi.of(q), phi.of(k), F.pad(v, (0, 1), value=1.0)).transpose(1, 2)
    if normalize:
        return (sums_BTHV[..., :-1] / (sums_BTHV[..., -1:] + phi.epsilon)).to(v_BTHV.dtype)
    return sums_BTHV[..., :-1].to(v_BTHV.dtype)
