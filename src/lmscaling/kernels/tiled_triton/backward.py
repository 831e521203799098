"""Backward kernels over rows: ``g`` and ``g . y`` of each, then the gradient of queries."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# Triton's annotations of constants are not types, as pyright assumes.

import triton
import triton.language as tl

from lmscaling.kernels.tiled_triton import tiles


@triton.jit(do_not_specialize=["T"])
def _rows_backward_kernel(
    dy_ptr,  # [B, T, H, V]
    y32_ptr,  # [B, T, H, V], contiguous, float32
    inverse_ptr,  # [B, H, T], float32
    g_ptr,  # [B, T, H, V], contiguous: dy / D
    delta_ptr,  # [B, H, T], float32: g . y
    T,
    H,
    heads,  # B * H
    stride_yb,
    stride_yt,
    stride_yh,
    V: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_head, first = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_I
    o_y, o_i = tl.cast(T, tl.int64) * H * V, first + tl.arange(0, BLOCK_I)
    dy_ptr = tiles.head(dy_ptr, i_head, H, stride_yb, stride_yh)
    y32_ptr = tiles.head(y32_ptr, i_head, H, o_y, V)
    g_ptr = tiles.head(g_ptr, i_head, H, o_y, V)
    o_i += tl.cast(i_head, tl.int64) * T
    m_i = first + tl.arange(0, BLOCK_I) < T
    b_inverse = tl.load(inverse_ptr + o_i, mask=m_i, other=0.0)
    b_dy = tiles.load(dy_ptr, first, T, stride_yt, V, BLOCK_I, BLOCK_V)
    b_g = (b_dy.to(tl.float32) * b_inverse[:, None]).to(g_ptr.dtype.element_ty)
    b_y = tiles.load(y32_ptr, first, T, H * V, V, BLOCK_I, BLOCK_V)
    b_delta = tl.sum(b_g.to(tl.float32) * b_y, 1)
    tl.store(delta_ptr + o_i, b_delta, mask=m_i)
    tiles.store(g_ptr, b_g, first, T, H * V, V, BLOCK_I, BLOCK_V)


@triton.jit
def _add_keys(b_g, b_delta, b_k, b_v, b_dq, offset, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Add a tile of keys, which starts ``offset`` rows down, to the gradient."""
    b_da = tl.dot(b_g, tl.trans(b_v), input_precision="ieee") - b_delta[:, None]
    o_i, o_j = tl.arange(0, b_g.shape[0]), tl.arange(0, b_k.shape[0])
    b_da = tiles.visible(b_da, o_i[:, None], offset + o_j[None, :], CAUSAL, WINDOW)
    return tl.dot(b_da.to(b_k.dtype), b_k, b_dq, input_precision="ieee")


@triton.jit(do_not_specialize=["T"])
def _queries_backward_kernel(
    q_ptr,  # [B, T, H, K], features
    k_ptr,  # [B, T, H / GROUP, K], features
    v_ptr,  # [B, T, H / GROUP, V]
    g_ptr,  # [B, T, H, V]
    delta_ptr,  # [B, H, T], float32
    dq_ptr,  # [B, T, H, K], contiguous: before the feature map
    T,
    H,
    heads,  # B * H
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_gb,
    stride_gt,
    stride_gh,
    FEATURE_MAP: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_head = tl.program_id(0) % heads
    first = (tl.cdiv(T, BLOCK_I) - 1 - tl.program_id(0) // heads) * BLOCK_I
    q_ptr = tiles.head(q_ptr, i_head, H, stride_qb, stride_qh)
    k_ptr = tiles.head(k_ptr, i_head // GROUP, H // GROUP, stride_kb, stride_kh)
    v_ptr = tiles.head(v_ptr, i_head // GROUP, H // GROUP, stride_vb, stride_vh)
    g_ptr = tiles.head(g_ptr, i_head, H, stride_gb, stride_gh)
    dq_ptr = tiles.head(dq_ptr, i_head, H, tl.cast(T, tl.int64) * H * K, K)
    o_i = first + tl.arange(0, BLOCK_I)
    delta_ptr += tl.cast(i_head, tl.int64) * T
    b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
    b_g = tiles.load(g_ptr, first, T, stride_gt, V, BLOCK_I, BLOCK_V)
    b_dq = tl.zeros([BLOCK_I, BLOCK_K], tl.float32)
    for start in range(tiles.begin(first, WINDOW, BLOCK_J), first, BLOCK_J):
        b_k = tiles.load(k_ptr, start, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = tiles.load(v_ptr, start, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_dq = _add_keys(b_g, b_delta, b_k, b_v, b_dq, start - first, CAUSAL=False, WINDOW=WINDOW)
    for offset in tl.static_range(0, BLOCK_I, BLOCK_J):
        b_k = tiles.load(k_ptr, first + offset, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = tiles.load(v_ptr, first + offset, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_dq = _add_keys(b_g, b_delta, b_k, b_v, b_dq, offset, CAUSAL=True, WINDOW=WINDOW)
    b_q = tiles.load(q_ptr, first, T, stride_qt, K, BLOCK_I, BLOCK_K)
    b_dq *= tiles.slope(b_q.to(tl.float32), FEATURE_MAP)
    tiles.store(dq_ptr, b_dq, first, T, H * K, K, BLOCK_I, BLOCK_K)
