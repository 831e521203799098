"""Linear attention as a PyTorch operator, for autograd and ``torch.compile``.

The operator takes packed queries, keys and values and returns one packed gradient, so neither needs
a copy. Triton is loaded when it runs.

Legend: see ``kernels/chunked_triton/__init__.py``.
"""

from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels.chunked_triton.plan import Shape, choose

DTYPES = (torch.float32, torch.bfloat16)
WIDEST = 128
"""Largest width of keys and values: the state of a head must fit in registers."""


def takes(dtype: torch.dtype, key: int, value: int) -> bool:
    """Whether the kernels support a dtype and widths."""
    return dtype in DTYPES and max(key, value) <= WIDEST


@torch.library.custom_op("lmscaling::chunked", mutates_args=())
def chunked(
    qkv_BTW: Tensor, heads: int, key: int, feature_map: str, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Linear attention of packed queries, keys, values.

    Args:
        qkv_BTW: Rows of ``heads`` queries, ``heads`` keys and ``heads`` values; float32 or
            bfloat16; any strides but the last, which is 1.
        heads: Number of heads.
        key: Width of a query or key; the rest of a row is values.
        feature_map: A name of ``feature_maps.FEATURE_MAPS``.
        normalize: Divide by the sum of weights.

    Returns:
        ``y_BTHV``, and for the backward pass the reciprocal sums of weights, ``[B, H, T]`` in
        float32, which have no elements without ``normalize``. No gradient flows through them.

    Cost:
        ``4 B H T (C + K) V`` FLOPs at K = V. ``qkv_BTW`` is read once and y written once.
        Backward ``10 B H T (C + K) V``; ``qkv_BTW`` and dy are read twice, the gradient is written
        once. With segments, the forward pass reads keys and values again, and the backward pass
        also queries and dy.
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
    """The gradient of the loss with respect to ``qkv_BTW``, packed and contiguous."""
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
