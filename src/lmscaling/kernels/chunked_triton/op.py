"""Linear attention as one operator of PyTorch, which autograd and ``torch.compile`` know.

The operator takes queries, keys and values packed in one row and returns one packed gradient:
views of a projection go in and come back without a copy. Triton is loaded when it runs.

Legend: see ``kernels/fused/__init__.py``.
"""

from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels.chunked_triton.plan import Shape, choose

DTYPES = (torch.float32, torch.bfloat16)
WIDEST = 128
"""Widest key or value: the state of a head must fit in registers."""


def takes(dtype: torch.dtype, key: int, value: int) -> bool:
    """Whether the kernels exist for a dtype and widths."""
    return dtype in DTYPES and max(key, value) <= WIDEST


@torch.library.custom_op("lmscaling::chunked", mutates_args=())
def chunked(
    qkv_BTW: Tensor, heads: int, key: int, feature_map: str, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Linear attention of packed queries, keys, values.

    Args:
        qkv_BTW: Rows of ``heads`` queries, ``heads`` keys and ``heads`` values; float32 or
            bfloat16; any strides but the last, which is 1.
        heads: Heads.
        key: Width of a query or key; that of a value is what is left of a row.
        feature_map: A name of ``feature_maps.FEATURE_MAPS``.
        normalize: Divide by the sum of weights.

    Returns:
        ``y_BTHV``, and for the backward pass the reciprocal sums of weights, ``[B, H, T]`` in
        float32; without ``normalize`` they have no elements. No gradient flows through them.

    Cost:
        ``4 B H T (C + K) V`` FLOPs at K = V. Bytes: one reading of ``qkv_BTW``, one writing of y.
        Backward ``10 B H T (C + K) V``; ``qkv_BTW`` and dy are read twice, the gradient written
        once. Cut in segments, keys and values are read once more, and queries and dy backward.
    """
    from lmscaling.kernels.chunked_triton import launch

    shape = _shape(qkv_BTW, heads, key, feature_map, normalize)
    return launch.forward(qkv_BTW, shape, choose(qkv_BTW, shape))


@torch.library.custom_op("lmscaling::chunked_backward", mutates_args=())
def chunked_backward(
    qkv_BTW: Tensor,
    dy_BTHV: Tensor,
    reciprocal_BHT: Tensor,
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
) -> Tensor:
    """The gradient of ``qkv_BTW`` by the loss, packed and contiguous."""
    from lmscaling.kernels.chunked_triton import launch

    shape = _shape(qkv_BTW, heads, key, feature_map, normalize)
    return launch.backward(qkv_BTW, dy_BTHV, reciprocal_BHT, shape, choose(qkv_BTW, shape))


@chunked.register_fake
def _(
    qkv_BTW: Tensor, heads: int, key: int, feature_map: str, normalize: bool
) -> tuple[Tensor, Tensor]:
    B, T, _ = qkv_BTW.shape
    shape = _shape(qkv_BTW, heads, key, feature_map, normalize)
    reciprocal = qkv_BTW.new_empty(B, heads, T if normalize else 0, dtype=torch.float32)
    return qkv_BTW.new_empty(B, T, heads, shape.value), reciprocal


@chunked_backward.register_fake
def _(qkv_BTW: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv_BTW, *ctx.constants = inputs
    ctx.save_for_backward(qkv_BTW, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy_BTHV: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if dy_BTHV is None:
        return (None,) * 5
    qkv_BTW, reciprocal_BHT = ctx.saved_tensors
    gradient = chunked_backward(qkv_BTW, dy_BTHV, reciprocal_BHT, *ctx.constants)
    return gradient, None, None, None, None


chunked.register_autograd(_backward, setup_context=_setup)


def _shape(qkv_BTW: Tensor, heads: int, key: int, feature_map: str, normalize: bool) -> Shape:
    value = qkv_BTW.shape[2] // heads - 2 * key
    return Shape(heads=heads, key=key, value=value, feature_map=feature_map, normalize=normalize)
