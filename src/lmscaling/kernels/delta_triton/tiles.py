"""Tiles of one chunk of one head: rows, decays, and the inverse of a triangular matrix."""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def load(x_ptr, n_row, stride, o_column, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Rows of a matrix, in some of its columns; zeros past ``n_row`` and ``WIDTH``."""
    o_row = tl.arange(0, ROWS)
    mask = (o_row < n_row)[:, None] & (o_column < WIDTH)[None, :]
    return tl.load(x_ptr + o_row[:, None] * stride + o_column[None, :], mask=mask, other=0.0)


@triton.jit
def store(x_ptr, b_x, n_row, stride, o_column, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """The inverse of ``load``; converts to the element type of ``x_ptr``."""
    o_row = tl.arange(0, ROWS)
    mask = (o_row < n_row)[:, None] & (o_column < WIDTH)[None, :]
    x_ptr += o_row[:, None] * stride + o_column[None, :]
    tl.store(x_ptr, b_x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def decays(decay_ptr, n_row, stride, ROWS: tl.constexpr, GATE: tl.constexpr):
    """G of each token, and of the last one, which stands in the rows past it as well."""
    if GATE:
        o_row = tl.arange(0, ROWS)
        last = tl.load(decay_ptr + (n_row - 1) * stride)
        g = tl.load(decay_ptr + o_row * stride, mask=o_row < n_row, other=0.0)
        g = tl.where(o_row < n_row, g, last)
    else:
        g = tl.zeros([ROWS], tl.float32)
        last = 0.0
    return g, last


@triton.jit
def between(g_later, g_earlier, mask, GATE: tl.constexpr):
    """exp of a difference of decays, zero outside the mask."""
    if GATE:
        b_d = tl.exp(tl.where(mask, g_later - g_earlier, float("-inf")))
    else:
        b_d = tl.where(mask, 1.0, 0.0)
    return b_d


@triton.jit
def inverse(b_l, C: tl.constexpr):
    """(I + L)^-1 of a strictly lower triangular L, float32; C is a power of two."""
    BLOCKS: tl.constexpr = C // 16
    o_c, o_r = tl.arange(0, C), tl.arange(0, 16)
    i_row, i_column = o_c[:, None] // 16, o_c[None, :] // 16
    # The blocks on the diagonal, [BLOCKS, 16, 16]: row i is e_i - sum_{j<i} L_ij (row j).
    b_x = tl.where(i_row == i_column, -b_l, 0.0)
    b_x = tl.reshape(tl.sum(tl.reshape(b_x, [C, BLOCKS, 16]), 1), [BLOCKS, 16, 16])
    for i in range(1, 16):
        m_i = o_r[None, :, None] == i
        row = tl.sum(tl.where(m_i, b_x, 0.0), 1)
        row += tl.sum(row[:, :, None] * b_x, 1)
        b_x = tl.where(m_i, row[:, None, :], b_x)
    b_x = tl.broadcast_to(tl.reshape(b_x, [C, 1, 16]), [C, BLOCKS, 16])
    b_x = tl.where(i_row == i_column, tl.reshape(b_x, [C, C]), 0.0)
    b_x += tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0)
    # Two inverses X, Y on the diagonal and E below X become one, with -Y E X in the place of E.
    for level in tl.static_range(C // 32):
        i_row, i_column = o_c[:, None] // (16 << level), o_c[None, :] // (16 << level)
        b_e = tl.where((i_row == i_column + 1) & (i_row % 2 == 1), b_l, 0.0)
        b_e = tl.dot(b_x, b_e, input_precision="tf32x3")
        b_x -= tl.dot(b_e, b_x, input_precision="tf32x3")
    return b_x
