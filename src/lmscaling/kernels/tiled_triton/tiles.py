"""Tiles of ``[B, T, H, width]`` tensors, and feature maps, for all kernels of this package.

A head of a sequence is a matrix of T rows, ``stride`` elements apart. Offsets that grow with T are
64-bit, because a batch of 2^19 tokens has more than 2^31 elements.
"""

import triton
import triton.language as tl


@triton.jit
def head(x_ptr, i_head, H, stride_b, stride_h):
    """Pointer to head ``i_head``, one of B * H over the batch."""
    i_b = tl.cast(i_head // H, tl.int64)
    i_h = tl.cast(i_head % H, tl.int64)
    return x_ptr + i_b * stride_b + i_h * stride_h


@triton.jit
def load(x_ptr, start, T, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows ``start`` to ``start + ROWS`` of a head; zeros past row T and column ``WIDTH``."""
    o_row = tl.arange(0, ROWS)
    o_column = tl.arange(0, BLOCK)
    mask = (o_row < T - start)[:, None] & (o_column < WIDTH)[None, :]
    o_x = o_row[:, None].to(tl.int64) * stride + o_column[None, :]
    return tl.load(x_ptr + tl.cast(start, tl.int64) * stride + o_x, mask=mask, other=0.0)


@triton.jit
def store(
    x_ptr, b_x, start, T, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The inverse of ``load``; converts to the element type of ``x_ptr``."""
    o_row = tl.arange(0, ROWS)
    o_column = tl.arange(0, BLOCK)
    mask = (o_row < T - start)[:, None] & (o_column < WIDTH)[None, :]
    o_x = o_row[:, None].to(tl.int64) * stride + o_column[None, :]
    x_ptr += tl.cast(start, tl.int64) * stride
    tl.store(x_ptr + o_x, b_x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def begin(first, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """The first key of the first tile that row ``first`` sees."""
    start = 0
    if WINDOW:
        start = tl.maximum(first - WINDOW + 1, 0) // BLOCK * BLOCK
    return start


@triton.jit
def visible(b_x, o_i, o_j, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """A tile with zeros where a row does not see a column; positions from a common origin."""
    if CAUSAL:
        b_x = tl.where(o_i >= o_j, b_x, 0.0)
    if WINDOW:
        b_x = tl.where(o_i < o_j + WINDOW, b_x, 0.0)
    return b_x


@triton.jit
def feature(b_x, FEATURE_MAP: tl.constexpr):
    """``FEATURE_MAPS[FEATURE_MAP].of`` in float32; the comparisons preserve NaN."""
    if FEATURE_MAP == "softplus":
        # max(x, 0) + log1p(e); log(1 + e) e / ((1 + e) - 1) keeps the digits that 1 + e loses.
        b_e = tl.exp(-tl.abs(b_x))
        b_u = 1.0 + b_e
        b_kept = tl.where(b_u == 1.0, 1.0, b_u - 1.0)
        b_log1p = tl.where(b_u == 1.0, b_e, tl.log(b_u) * (b_e / b_kept))
        b_f = tl.where(b_x < 0.0, 0.0, b_x) + b_log1p
    elif FEATURE_MAP == "elu+1":
        b_f = tl.where(b_x > 0.0, b_x + 1.0, tl.exp(b_x))
    elif FEATURE_MAP == "relu":
        b_f = tl.where(b_x < 0.0, 0.0, b_x)
    else:
        b_f = b_x
    return b_f


@triton.jit
def slope(b_f, FEATURE_MAP: tl.constexpr):
    """``FEATURE_MAPS[FEATURE_MAP].slope`` in float32: the derivative, from the feature."""
    if FEATURE_MAP == "softplus":
        b_d = 1.0 - tl.exp(-b_f)
    elif FEATURE_MAP == "elu+1":
        b_d = tl.where(b_f > 1.0, 1.0, b_f)
    elif FEATURE_MAP == "relu":
        b_d = tl.where(b_f > 0.0, 1.0, 0.0)
    else:
        b_d = tl.full(b_f.shape, 1.0, tl.float32)
    return b_d
