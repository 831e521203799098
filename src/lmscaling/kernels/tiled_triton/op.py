"""The quadratic kernels as PyTorch operators, their grids and the sizes of their tiles.

``attend`` is what callers use, under autograd and ``torch.compile`` as well. Triton is loaded when
an operator runs, so that this module can be imported without it.
"""

# pyright: reportArgumentType=false
# Triton's annotations of constants are not types, as pyright assumes.

from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton.plan import block

# Rows, columns, warps and stages of the pipeline, by the wider of K and V. Chosen by compiling for
# sm_80 and sm_90 (benchmarks/offline.csv): the largest tiles whose sums stay in registers. Not yet
# timed: on sm_90, ptxas reports that it serializes the products of FORWARD and QUERIES at two or
# three stages. At one stage it does not, but then nothing is loaded ahead.
FORWARD = {64: (128, 64, 8, 3), 128: (128, 64, 8, 2)}
QUERIES = {64: (128, 64, 8, 3), 128: (128, 64, 8, 2)}
KEYS = {64: (64, 128, 8, 2), 128: (64, 64, 8, 2)}
FLOAT32 = (32, 32, 8, 1)
"""Full-precision float32 products use registers instead of tensor cores."""
ROWS = 32
"""Rows per program of the kernels that read their input once."""
GIVEN = "Tensor q, Tensor k, Tensor v, str feature_map"
"""What both passes are given, in the language of PyTorch's operators."""
MADE = "(Tensor, Tensor, Tensor)"


def attend(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """Linear attention in tiles, ``y_BTHV``.

    Raises:
        ValueError: A head is wider than any tile, or the feature map is unknown.
    """
    feature_maps.find(feature_map)
    return forward(q, k, v, feature_map, normalize)[0]


@torch.library.custom_op(
    "lmscaling::quadratic_forward", mutates_args=(), schema=f"({GIVEN}, bool normalize) -> {MADE}"
)
def forward(q: Tensor, k: Tensor, v: Tensor, *form: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``y_BTHV``; if normalized, also y in float32 and ``1 / D`` as ``[B, H, T]``, else empty."""
    from lmscaling.kernels.tiled_triton.kernels import _quadratic_forward_kernel

    feature_map, normalize = form
    (y, y32, inverse), (B, T, H, _) = _made(q, k, v, *form), q.shape
    tile = _tile(FORWARD, q, v)
    with torch.cuda.device_of(v):
        q, k, v = _features(q, feature_map), _features(k, feature_map), _contiguous_rows(v)
        _quadratic_forward_kernel[_grid(q, tile["BLOCK_I"])](
            q, k, v, y, y32, inverse, T, H, B * H, feature_maps.find(feature_map).epsilon,
            *_strides(q, k, v), NORMALIZE=normalize, **tile,
        )  # fmt: skip
    return y, y32, inverse


@forward.register_fake
def _made(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what a forward pass writes."""
    (B, T, H, _), V = q.shape, v.shape[3]
    y32 = v.new_empty((B, T, H, V) if normalize else (0,), dtype=torch.float32)
    inverse = v.new_empty((B, H, T) if normalize else (0,), dtype=torch.float32)
    return v.new_empty(B, T, H, V), y32, inverse


@torch.library.custom_op(
    "lmscaling::quadratic_backward", mutates_args=(),
    schema=f"({GIVEN}, Tensor dy, Tensor y32, Tensor inverse) -> {MADE}",
)  # fmt: skip
def backward(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, *written: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from that of y; ``forward`` returns ``y32`` and ``inverse``."""
    from lmscaling.kernels.tiled_triton.kernels import (
        _keys_backward_kernel,
        _queries_backward_kernel,
    )

    dq, dk, dv = _gradients_of(q, k, v)
    (B, T, H, _), tiles = q.shape, [_tile(table, q, v) for table in (QUERIES, KEYS)]
    with torch.cuda.device_of(v):
        q, k, v = _features(q, feature_map), _features(k, feature_map), _contiguous_rows(v)
        g, delta = _rows(*written)
        same = (T, H, B * H, *_strides(q, k, v, g))
        _queries_backward_kernel[_grid(q, tiles[0]["BLOCK_I"])](
            q, k, v, g, delta, dq, *same, FEATURE_MAP=feature_map, **tiles[0]
        )
        _keys_backward_kernel[_grid(v, tiles[1]["BLOCK_J"])](
            q, k, v, g, delta, dk, dv, *same, FEATURE_MAP=feature_map, **tiles[1]
        )
    return dq, dk, dv


@backward.register_fake
def _gradients_of(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients."""
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, ctx.feature_map, _ = inputs
    _, y32, inverse = output
    ctx.save_for_backward(q, k, v, y32, inverse)
    ctx.mark_non_differentiable(y32, inverse)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 5
    q, k, v, y32, inverse = ctx.saved_tensors
    return *backward(q, k, v, ctx.feature_map, dy, y32, inverse), None, None


forward.register_autograd(_gradients, setup_context=_keep)


def _features(x_BTHK: Tensor, feature_map: str) -> Tensor:
    """Features in the dtype of the argument, in contiguous rows."""
    from lmscaling.kernels.tiled_triton.kernels import _features_forward_kernel

    x_BTHK = _contiguous_rows(x_BTHK)
    if feature_map == "identity":
        return x_BTHK
    B, T, H, K = x_BTHK.shape
    f = torch.empty_like(x_BTHK, memory_format=torch.contiguous_format)
    _features_forward_kernel[_grid(x_BTHK, ROWS)](
        x_BTHK, f, T, H, B * H, *_strides(x_BTHK),
        FEATURE_MAP=feature_map, K=K, BLOCK_I=ROWS, BLOCK_K=block(K),
    )  # fmt: skip
    return f


def _rows(dy: Tensor, y32: Tensor, inverse_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """``g`` and ``g . y`` of every row; dy itself and zeros if not normalized."""
    from lmscaling.kernels.tiled_triton.kernels import _rows_backward_kernel

    dy, (B, T, H, V) = _contiguous_rows(dy), dy.shape
    if not inverse_BHT.numel():
        return dy, dy.new_zeros((B, H, T), dtype=torch.float32)
    g = torch.empty_like(dy, memory_format=torch.contiguous_format)
    delta = torch.empty_like(inverse_BHT)
    _rows_backward_kernel[_grid(dy, ROWS)](
        dy, y32, inverse_BHT, g, delta, T, H, B * H, *_strides(dy),
        V=V, BLOCK_I=ROWS, BLOCK_V=block(V),
    )  # fmt: skip
    return g, delta


def _contiguous_rows(x: Tensor) -> Tensor:
    """The tensor, copied only if its rows are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    """Of sequences, tokens and heads."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def _grid(x_BTHX: Tensor, rows: int) -> tuple[int]:
    """Heads of all sequences vary fastest, so programs that run together read the same columns."""
    B, T, H, _ = x_BTHX.shape
    return (-(-T // rows) * B * H,)


def _tile(table: dict[int, tuple[int, int, int, int]], q: Tensor, v: Tensor) -> dict[str, int]:
    """Widths, tile sizes and launch options of a kernel.

    Raises:
        ValueError: A head is wider than any tile.
    """
    K, V = q.shape[3], v.shape[3]
    if max(K, V) > max(table):
        raise ValueError(f"heads have widths {K} and {V}; allowed: at most {max(table)}")
    width = max(block(max(K, V)), min(table))
    rows, columns, warps, stages = FLOAT32 if v.dtype == torch.float32 else table[width]
    return {
        "K": K, "V": V, "BLOCK_I": rows, "BLOCK_J": columns,
        "BLOCK_K": block(K), "BLOCK_V": block(V),
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip
