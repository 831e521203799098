"""The quadratic kernels, of tiles of ``[B, T, H, width]`` tensors.

A head of a sequence is a matrix of T rows, ``stride`` elements apart. Offsets that grow with T are
64-bit, because a batch of 2^19 tokens has more than 2^31 elements.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.functions import feature, times_slope


@triton.jit
def _head(x_ptr, i_head, H, stride_b, stride_h):
    """Pointer to head ``i_head``, one of B * H over the batch."""
    i_b = tl.cast(i_head // H, tl.int64)
    i_h = tl.cast(i_head % H, tl.int64)
    return x_ptr + i_b * stride_b + i_h * stride_h


@triton.jit
def _load(x_ptr, start, T, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows ``start`` to ``start + ROWS`` of a head; zeros past row T and column ``WIDTH``."""
    o_row = tl.arange(0, ROWS)
    o_column = tl.arange(0, BLOCK)
    mask = (o_row < T - start)[:, None] & (o_column < WIDTH)[None, :]
    o_x = o_row[:, None].to(tl.int64) * stride + o_column[None, :]
    return tl.load(x_ptr + tl.cast(start, tl.int64) * stride + o_x, mask=mask, other=0.0)


@triton.jit
def _store(
    x_ptr, b_x, start, T, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The inverse of ``_load``; converts to the element type of ``x_ptr``."""
    o_row = tl.arange(0, ROWS)
    o_column = tl.arange(0, BLOCK)
    mask = (o_row < T - start)[:, None] & (o_column < WIDTH)[None, :]
    o_x = o_row[:, None].to(tl.int64) * stride + o_column[None, :]
    x_ptr += tl.cast(start, tl.int64) * stride
    tl.store(x_ptr + o_x, b_x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _visible(b_x, o_i, o_j, CAUSAL: tl.constexpr):
    """A tile with zeros where a row does not see a column; positions from a common origin."""
    return tl.where(o_i >= o_j, b_x, 0.0) if CAUSAL else b_x


@triton.jit(do_not_specialize=["T"])
def _features_forward_kernel(
    x_ptr, f_ptr,
    T, H, heads, stride_xb, stride_xt, stride_xh,
    FEATURE_MAP: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    i_head, start = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_I
    x_ptr = _head(x_ptr, i_head, H, stride_xb, stride_xh)
    f_ptr = _head(f_ptr, i_head, H, tl.cast(T, tl.int64) * H * K, K)
    b_x = _load(x_ptr, start, T, stride_xt, K, BLOCK_I, BLOCK_K)
    b_f = feature(b_x.to(tl.float32), FEATURE_MAP, True)
    _store(f_ptr, b_f, start, T, H * K, K, BLOCK_I, BLOCK_K)


@triton.jit
def _add_keys(b_q, b_k, b_v, b_sum, b_y, offset, CAUSAL: tl.constexpr):
    """Add a tile of weights to their sum and to the result; its keys start ``offset`` rows down."""
    b_a = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
    o_i, o_j = tl.arange(0, b_q.shape[0]), tl.arange(0, b_k.shape[0])
    b_a = _visible(b_a, o_i[:, None], offset + o_j[None, :], CAUSAL)
    b_a = b_a.to(b_v.dtype)
    b_sum += tl.sum(b_a.to(tl.float32), 1)
    return b_sum, tl.dot(b_a, b_v, b_y, input_precision="ieee")


@triton.jit(do_not_specialize=["T"])
def _quadratic_forward_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, y32_ptr, inverse_ptr,
    T, H, heads, epsilon,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh,
    NORMALIZE: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    # The longest rows start first, so that no long row runs alone at the end.
    i_head = tl.program_id(0) % heads
    first = (tl.cdiv(T, BLOCK_I) - 1 - tl.program_id(0) // heads) * BLOCK_I
    q_ptr = _head(q_ptr, i_head, H, stride_qb, stride_qh)
    k_ptr = _head(k_ptr, i_head, H, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, i_head, H, stride_vb, stride_vh)
    b_q = _load(q_ptr, first, T, stride_qt, K, BLOCK_I, BLOCK_K)
    b_sum = tl.zeros([BLOCK_I], tl.float32)
    b_y = tl.zeros([BLOCK_I, BLOCK_V], tl.float32)
    for start in range(0, first, BLOCK_J):
        b_k = _load(k_ptr, start, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = _load(v_ptr, start, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_sum, b_y = _add_keys(b_q, b_k, b_v, b_sum, b_y, start - first, CAUSAL=False)
    for offset in tl.static_range(0, BLOCK_I, BLOCK_J):
        b_k = _load(k_ptr, first + offset, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = _load(v_ptr, first + offset, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_sum, b_y = _add_keys(b_q, b_k, b_v, b_sum, b_y, offset, CAUSAL=True)
    o_y = tl.cast(T, tl.int64) * H * V
    if NORMALIZE:
        o_i = first + tl.arange(0, BLOCK_I)
        b_inverse = 1.0 / tl.where(o_i < T, b_sum + epsilon, 1.0)
        b_y *= b_inverse[:, None]
        inverse_ptr += tl.cast(i_head, tl.int64) * T
        tl.store(inverse_ptr + o_i, b_inverse, mask=o_i < T)
        y32_ptr = _head(y32_ptr, i_head, H, o_y, V)
        _store(y32_ptr, b_y, first, T, H * V, V, BLOCK_I, BLOCK_V)
    y_ptr = _head(y_ptr, i_head, H, o_y, V)
    _store(y_ptr, b_y, first, T, H * V, V, BLOCK_I, BLOCK_V)


@triton.jit(do_not_specialize=["T"])
def _rows_backward_kernel(
    dy_ptr, y32_ptr, inverse_ptr, g_ptr, delta_ptr,
    T, H, heads, stride_yb, stride_yt, stride_yh,
    V: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    i_head, first = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_I
    o_y, o_i = tl.cast(T, tl.int64) * H * V, first + tl.arange(0, BLOCK_I)
    dy_ptr = _head(dy_ptr, i_head, H, stride_yb, stride_yh)
    y32_ptr = _head(y32_ptr, i_head, H, o_y, V)
    g_ptr = _head(g_ptr, i_head, H, o_y, V)
    o_i += tl.cast(i_head, tl.int64) * T
    m_i = first + tl.arange(0, BLOCK_I) < T
    b_inverse = tl.load(inverse_ptr + o_i, mask=m_i, other=0.0)
    b_dy = _load(dy_ptr, first, T, stride_yt, V, BLOCK_I, BLOCK_V)
    b_g = (b_dy.to(tl.float32) * b_inverse[:, None]).to(g_ptr.dtype.element_ty)
    b_y = _load(y32_ptr, first, T, H * V, V, BLOCK_I, BLOCK_V)
    b_delta = tl.sum(b_g.to(tl.float32) * b_y, 1)
    tl.store(delta_ptr + o_i, b_delta, mask=m_i)
    _store(g_ptr, b_g, first, T, H * V, V, BLOCK_I, BLOCK_V)


@triton.jit
def _add_keys_backward(b_g, b_delta, b_k, b_v, b_dq, offset, CAUSAL: tl.constexpr):
    """Add a tile of keys, which starts ``offset`` rows down, to the gradient."""
    b_da = tl.dot(b_g, tl.trans(b_v), input_precision="ieee") - b_delta[:, None]
    o_i, o_j = tl.arange(0, b_g.shape[0]), tl.arange(0, b_k.shape[0])
    b_da = _visible(b_da, o_i[:, None], offset + o_j[None, :], CAUSAL)
    return tl.dot(b_da.to(b_k.dtype), b_k, b_dq, input_precision="ieee")


@triton.jit(do_not_specialize=["T"])
def _queries_backward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, delta_ptr, dq_ptr,
    T, H, heads,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_gb, stride_gt, stride_gh,
    FEATURE_MAP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    i_head = tl.program_id(0) % heads
    first = (tl.cdiv(T, BLOCK_I) - 1 - tl.program_id(0) // heads) * BLOCK_I
    q_ptr = _head(q_ptr, i_head, H, stride_qb, stride_qh)
    k_ptr = _head(k_ptr, i_head, H, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, i_head, H, stride_vb, stride_vh)
    g_ptr = _head(g_ptr, i_head, H, stride_gb, stride_gh)
    dq_ptr = _head(dq_ptr, i_head, H, tl.cast(T, tl.int64) * H * K, K)
    o_i = first + tl.arange(0, BLOCK_I)
    delta_ptr += tl.cast(i_head, tl.int64) * T
    b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
    b_g = _load(g_ptr, first, T, stride_gt, V, BLOCK_I, BLOCK_V)
    b_dq = tl.zeros([BLOCK_I, BLOCK_K], tl.float32)
    for start in range(0, first, BLOCK_J):
        b_k = _load(k_ptr, start, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = _load(v_ptr, start, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_dq = _add_keys_backward(b_g, b_delta, b_k, b_v, b_dq, start - first, CAUSAL=False)
    for offset in tl.static_range(0, BLOCK_I, BLOCK_J):
        b_k = _load(k_ptr, first + offset, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = _load(v_ptr, first + offset, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_dq = _add_keys_backward(b_g, b_delta, b_k, b_v, b_dq, offset, CAUSAL=True)
    b_q = _load(q_ptr, first, T, stride_qt, K, BLOCK_I, BLOCK_K)
    b_dq = times_slope(b_dq, b_q.to(tl.float32), 1.0, FEATURE_MAP, True)
    _store(dq_ptr, b_dq, first, T, H * K, K, BLOCK_I, BLOCK_K)


@triton.jit
def _add_rows(b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, offset, CAUSAL: tl.constexpr):
    """Add the contribution of a tile of rows, which starts ``offset`` columns on, to both.

    Weights are computed transposed, by swapping operands: on Hopper, Triton 3.4 to 3.7 transposes
    the result of a product incorrectly (flash-linear-attention issue 640).
    """
    b_a = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
    b_da = tl.dot(b_v, tl.trans(b_g), input_precision="ieee") - b_delta[None, :]
    o_j, o_i = tl.arange(0, b_k.shape[0]), tl.arange(0, b_q.shape[0])
    b_a = _visible(b_a, offset + o_i[None, :], o_j[:, None], CAUSAL)
    b_da = _visible(b_da, offset + o_i[None, :], o_j[:, None], CAUSAL)
    b_dv = tl.dot(b_a.to(b_g.dtype), b_g, b_dv, input_precision="ieee")
    return tl.dot(b_da.to(b_q.dtype), b_q, b_dk, input_precision="ieee"), b_dv


@triton.jit(do_not_specialize=["T"])
def _keys_backward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, delta_ptr, dk_ptr, dv_ptr,
    T, H, heads,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_gb, stride_gt, stride_gh,
    FEATURE_MAP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    i_head, first = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_J
    q_ptr = _head(q_ptr, i_head, H, stride_qb, stride_qh)
    k_ptr = _head(k_ptr, i_head, H, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, i_head, H, stride_vb, stride_vh)
    g_ptr = _head(g_ptr, i_head, H, stride_gb, stride_gh)
    delta_ptr += tl.cast(i_head, tl.int64) * T
    b_k = _load(k_ptr, first, T, stride_kt, K, BLOCK_J, BLOCK_K)
    b_v = _load(v_ptr, first, T, stride_vt, V, BLOCK_J, BLOCK_V)
    b_dk = tl.zeros([BLOCK_J, BLOCK_K], tl.float32)
    b_dv = tl.zeros([BLOCK_J, BLOCK_V], tl.float32)
    # Rows past T are zero in q and g and contribute nothing.
    for offset in tl.static_range(0, BLOCK_J, BLOCK_I):
        o_i = first + offset + tl.arange(0, BLOCK_I)
        b_q = _load(q_ptr, first + offset, T, stride_qt, K, BLOCK_I, BLOCK_K)
        b_g = _load(g_ptr, first + offset, T, stride_gt, V, BLOCK_I, BLOCK_V)
        b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
        b_dk, b_dv = _add_rows(b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, offset, CAUSAL=True)
    for start in range(first + BLOCK_J, T, BLOCK_I):
        o_i = start + tl.arange(0, BLOCK_I)
        b_q = _load(q_ptr, start, T, stride_qt, K, BLOCK_I, BLOCK_K)
        b_g = _load(g_ptr, start, T, stride_gt, V, BLOCK_I, BLOCK_V)
        b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
        b_dk, b_dv = _add_rows(b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, start - first, CAUSAL=False)
    b_dk = times_slope(b_dk, b_k.to(tl.float32), 1.0, FEATURE_MAP, True)
    o_k, o_v = tl.cast(T, tl.int64) * H * K, tl.cast(T, tl.int64) * H * V
    dk_ptr = _head(dk_ptr, i_head, H, o_k, K)
    dv_ptr = _head(dv_ptr, i_head, H, o_v, V)
    _store(dk_ptr, b_dk, first, T, H * K, K, BLOCK_J, BLOCK_K)
    _store(dv_ptr, b_dv, first, T, H * V, V, BLOCK_J, BLOCK_V)
