"""Grids and tile sizes of the quadratic kernels."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# Triton's annotations of constants are not types, as pyright assumes.

import torch
import triton
from torch import Tensor

from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton.backward import _queries_backward_kernel, _rows_backward_kernel
from lmscaling.kernels.tiled_triton.backward_keys import _keys_backward_kernel
from lmscaling.kernels.tiled_triton.forward import (
    _features_forward_kernel,
    _quadratic_forward_kernel,
)

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


def forward(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    feature_map: str,
    normalize: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``y_BTHV``; if normalized, also y in float32 and ``1 / D`` as ``[B, H, T]``, else empty."""
    q, k, v = _contiguous_rows(q_BTHK), _contiguous_rows(k_BTGK), _contiguous_rows(v_BTGV)
    (B, T, H, K), V = q.shape, v.shape[-1]
    y = v.new_empty(B, T, H, V)
    y32 = v.new_empty(y.shape if normalize else (0,), dtype=torch.float32)
    inverse = v.new_empty((B, H, T) if normalize else (0,), dtype=torch.float32)
    tile = _tile(FORWARD, v.dtype, K, V)
    with torch.cuda.device_of(v):
        q, k = features(q, feature_map), features(k, feature_map)
        _quadratic_forward_kernel[_grid(q, tile["BLOCK_I"])](
            q, k, v, y, y32, inverse, T, H, B * H, feature_maps.find(feature_map).epsilon,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            NORMALIZE=normalize, WINDOW=_window(window, T), GROUP=H // v.shape[2], K=K, V=V, **tile,
        )  # fmt: skip
    return y, y32, inverse


def backward(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    dy_BTHV: Tensor,
    y32_BTHV: Tensor,
    inverse_BHT: Tensor,
    feature_map: str,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; ``forward`` returns ``y32`` and ``inverse``."""
    q, k, v = _contiguous_rows(q_BTHK), _contiguous_rows(k_BTGK), _contiguous_rows(v_BTGV)
    dy = _contiguous_rows(dy_BTHV)
    (B, T, H, K), (G, V) = q.shape, v.shape[2:]
    options = {"FEATURE_MAP": feature_map, "WINDOW": _window(window, T), "GROUP": H // G}
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    with torch.cuda.device_of(v):
        q, k = features(q, feature_map), features(k, feature_map)
        g, delta = _rows(dy, y32_BTHV, inverse_BHT)
        tile = _tile(QUERIES, v.dtype, K, V)
        _queries_backward_kernel[_grid(q, tile["BLOCK_I"])](
            q, k, v, g, delta, dq, T, H, B * H,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:3],
            **options, K=K, V=V, **tile,
        )  # fmt: skip
        tile = _tile(KEYS, v.dtype, K, V)
        _keys_backward_kernel[_grid(v, tile["BLOCK_J"])](
            q, k, v, g, delta, dk, dv, T, H, B * G,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:3],
            **options, K=K, V=V, **tile,
        )  # fmt: skip
    return dq, dk, dv


def features(x_BTHK: Tensor, feature_map: str) -> Tensor:
    """Features in the dtype of the argument, contiguous; the argument itself for ``identity``."""
    if feature_map == "identity":
        return x_BTHK
    (B, T, H, K), BLOCK_K = x_BTHK.shape, _width(x_BTHK)
    f = torch.empty_like(x_BTHK, memory_format=torch.contiguous_format)
    _features_forward_kernel[_grid(x_BTHK, ROWS)](
        x_BTHK, f, T, H, B * H, *x_BTHK.stride()[:3],
        FEATURE_MAP=feature_map, K=K, BLOCK_I=ROWS, BLOCK_K=BLOCK_K,
    )  # fmt: skip
    return f


def _window(window: int, T: int) -> int:
    """The window that the kernels are compiled for: 0 if every token sees all before it."""
    return window if window < T else 0


def _rows(dy: Tensor, y32: Tensor, inverse_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """``g`` and ``g . y`` of every row; dy itself and zeros if not normalized."""
    B, T, H, V = dy.shape
    if not inverse_BHT.numel():
        return dy, dy.new_zeros((B, H, T), dtype=torch.float32)
    g = torch.empty_like(dy, memory_format=torch.contiguous_format)
    delta = torch.empty_like(inverse_BHT)
    _rows_backward_kernel[_grid(dy, ROWS)](
        dy, y32, inverse_BHT, g, delta, T, H, B * H, *dy.stride()[:3],
        V=V, BLOCK_I=ROWS, BLOCK_V=_width(dy),
    )  # fmt: skip
    return g, delta


def _contiguous_rows(x: Tensor) -> Tensor:
    """The tensor, copied only if its rows are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _grid(x_BTHX: Tensor, block: int) -> tuple[int]:
    """Heads of all sequences vary fastest, so programs that run together read the same columns."""
    B, T, H, _ = x_BTHX.shape
    return (triton.cdiv(T, block) * B * H,)


def _width(x: Tensor) -> int:
    """The smallest power of two that is not below the width of a row; products need 16."""
    return max(16, triton.next_power_of_2(x.shape[-1]))


def _tile(
    table: dict[int, tuple[int, int, int, int]], dtype: torch.dtype, K: int, V: int
) -> dict[str, int]:
    """Tile sizes and launch options of a kernel.

    Raises:
        ValueError: A head is wider than any tile.
    """
    width = max(16, triton.next_power_of_2(max(K, V)))
    if width > max(table):
        raise ValueError(f"heads have widths {K} and {V}; allowed: at most {max(table)}")
    tile = FLOAT32 if dtype == torch.float32 else table[max(width, min(table))]
    rows, columns, warps, stages = tile
    return {
        "BLOCK_I": rows,
        "BLOCK_J": columns,
        "BLOCK_K": max(16, triton.next_power_of_2(K)),
        "BLOCK_V": max(16, triton.next_power_of_2(V)),
        "num_warps": warps,
        "num_stages": stages,
    }
