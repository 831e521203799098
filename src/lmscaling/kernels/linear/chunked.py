"""Linear attention in chunks: fused Triton kernels on CUDA tensors, plain PyTorch on others.

Queries, keys and values that are views of one projection are read without a copy, and their
gradient is written as one tensor; others are packed first.

Legend: see ``kernels/__init__.py``; W = H (2 K + V) is the width of a packed row.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import segments
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.gated.plain import CHUNK
from lmscaling.kernels.linear import chunked_materialized
from lmscaling.kernels.linear.chunked_materialized import check_chunk


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    feature_map: str,
    normalize: bool,
    chunk: int = CHUNK,
) -> Tensor:
    """Linear attention; the contract is in ``kernels/__init__.py``.

    The kernels support bfloat16 up to width 128 and float32 up to 64. Everything else, and every
    tensor that is not on a CUDA device, is computed in plain PyTorch with ``chunk`` tokens per
    chunk; the kernels have their own table of chunk sizes.

    Raises:
        ValueError: The arguments do not match, the feature map is unknown, or the chunk is not a
            power of two.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    heads, key = q_BTHK.shape[2:]
    if kernels.on_triton_device(v_BTHV) and op.takes(v_BTHV.dtype, key, v_BTHV.shape[3]):
        find(feature_map)
        check_chunk(chunk)
        qkv_BTW = packed(q_BTHK, k_BTHK, v_BTHV)
        return op.chunked(qkv_BTW, heads, key, feature_map, normalize)[0]
    return chunked_materialized.attend(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize, chunk)


def attend_packed(
    qkv_BTW: Tensor,
    heads: int,
    feature_map: str,
    normalize: bool,
    chunk: int = CHUNK,
    lengths: Sequence[int] = (),
) -> Tensor:
    """``attend`` of a packed projection ``[B, T, 3 H K]``, without a copy under ``torch.compile``.

    ``lengths``, only where ``is_fused``, are the tokens of the sequences in the rows.

    Raises:
        ValueError: As ``attend``; or the lengths do not divide the rows.
    """
    q, k, v = qkv_BTW.unflatten(-1, (3, heads, -1)).unbind(2)
    if is_fused(qkv_BTW, heads):
        find(feature_map)
        check_chunk(chunk)
        segments.check(qkv_BTW.shape[0], qkv_BTW.shape[1], lengths)
        return op.chunked(qkv_BTW, heads, k.shape[3], feature_map, normalize, lengths=lengths)[0]
    assert not lengths
    return chunked_materialized.attend(q, k, v, feature_map, normalize, chunk)


def is_fused(qkv_BTW: Tensor, heads: int) -> bool:
    """Whether the kernels compute a packed projection."""
    width = qkv_BTW.shape[2] // (3 * heads)
    return kernels.on_triton_device(qkv_BTW) and op.takes(qkv_BTW.dtype, width, width)


def packed(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Rows of queries, keys, values, ``[B, T, W]``: the tensor of which they are views, or a copy.

    Under ``torch.compile`` it is always a copy, because memory offsets cannot be traced; callers
    that have the projection use ``attend_packed``.
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
        # A view that is a leaf must receive its own gradient, which its base would not pass on.
        and all(x.requires_grad == base.requires_grad for x in arguments)
        and not any(x.requires_grad and x.is_leaf for x in arguments)
    ):
        parts = base.view(shape).split(widths, -1)
        if all(_same(part.view(x.shape), x) for part, x in zip(parts, arguments, strict=True)):
            return base.view(shape)
    return torch.cat([x.flatten(2) for x in arguments], -1)


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two views with the same base and shape have the same elements."""
    strides = zip(x.shape, x.stride(), y.stride(), strict=True)
    return x.storage_offset() == y.storage_offset() and all(n == 1 or a == b for n, a, b in strides)
