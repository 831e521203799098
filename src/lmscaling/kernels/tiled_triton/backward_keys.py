"""Backward kernel over columns: gradients of keys and values.

Weights are computed transposed, by swapping operands: on Hopper, Triton 3.4 to 3.7 transposes the
result of a product incorrectly (flash-linear-attention issue 640).
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# Triton's annotations of constants are not types, as pyright assumes.

import triton
import triton.language as tl

from lmscaling.kernels.tiled_triton import tiles


@triton.jit
def _add_rows(
    b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, offset, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Add the contribution of a tile of rows, which starts ``offset`` columns on, to both."""
    b_a = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
    b_da = tl.dot(b_v, tl.trans(b_g), input_precision="ieee") - b_delta[None, :]
    o_j, o_i = tl.arange(0, b_k.shape[0]), tl.arange(0, b_q.shape[0])
    b_a = tiles.visible(b_a, offset + o_i[None, :], o_j[:, None], CAUSAL, WINDOW)
    b_da = tiles.visible(b_da, offset + o_i[None, :], o_j[:, None], CAUSAL, WINDOW)
    b_dv = tl.dot(b_a.to(b_g.dtype), b_g, b_dv, input_precision="ieee")
    return tl.dot(b_da.to(b_q.dtype), b_q, b_dk, input_precision="ieee"), b_dv


@triton.jit(do_not_specialize=["T"])
def _keys_backward_kernel(
    q_ptr,  # [B, T, H, K], features
    k_ptr,  # [B, T, H / GROUP, K], features
    v_ptr,  # [B, T, H / GROUP, V]
    g_ptr,  # [B, T, H, V]
    delta_ptr,  # [B, H, T], float32
    dk_ptr,  # [B, T, H / GROUP, K], contiguous: before the feature map
    dv_ptr,  # [B, T, H / GROUP, V], contiguous
    T,
    H,
    heads,  # B * H / GROUP
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
    i_head, first = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_J
    q_ptr = tiles.head(q_ptr, i_head * GROUP, H, stride_qb, stride_qh)
    k_ptr = tiles.head(k_ptr, i_head, H // GROUP, stride_kb, stride_kh)
    v_ptr = tiles.head(v_ptr, i_head, H // GROUP, stride_vb, stride_vh)
    g_ptr = tiles.head(g_ptr, i_head * GROUP, H, stride_gb, stride_gh)
    delta_ptr += tl.cast(i_head * GROUP, tl.int64) * T
    b_k = tiles.load(k_ptr, first, T, stride_kt, K, BLOCK_J, BLOCK_K)
    b_v = tiles.load(v_ptr, first, T, stride_vt, V, BLOCK_J, BLOCK_V)
    b_dk = tl.zeros([BLOCK_J, BLOCK_K], tl.float32)
    b_dv = tl.zeros([BLOCK_J, BLOCK_V], tl.float32)
    end = T
    if WINDOW:
        end = tl.minimum(T, first + BLOCK_J + WINDOW - 1)
    for _ in range(GROUP):
        # Rows past T are zero in q and g and contribute nothing.
        for offset in tl.static_range(0, BLOCK_J, BLOCK_I):
            o_i = first + offset + tl.arange(0, BLOCK_I)
            b_q = tiles.load(q_ptr, first + offset, T, stride_qt, K, BLOCK_I, BLOCK_K)
            b_g = tiles.load(g_ptr, first + offset, T, stride_gt, V, BLOCK_I, BLOCK_V)
            b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
            b_dk, b_dv = _add_rows(
                b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, offset, CAUSAL=True, WINDOW=WINDOW
            )
        for start in range(first + BLOCK_J, end, BLOCK_I):
            o_i = start + tl.arange(0, BLOCK_I)
            b_q = tiles.load(q_ptr, start, T, stride_qt, K, BLOCK_I, BLOCK_K)
            b_g = tiles.load(g_ptr, start, T, stride_gt, V, BLOCK_I, BLOCK_V)
            b_delta = tl.load(delta_ptr + o_i, mask=o_i < T, other=0.0)
            b_dk, b_dv = _add_rows(
                b_q, b_g, b_delta, b_k, b_v, b_dk, b_dv, start - first, CAUSAL=False, WINDOW=WINDOW
            )
        q_ptr += stride_qh
        g_ptr += stride_gh
        delta_ptr += T
    b_dk *= tiles.slope(b_k.to(tl.float32), FEATURE_MAP)
    o_k, o_v = tl.cast(T, tl.int64) * (H // GROUP) * K, tl.cast(T, tl.int64) * (H // GROUP) * V
    dk_ptr = tiles.head(dk_ptr, i_head, H // GROUP, o_k, K)
    dv_ptr = tiles.head(dv_ptr, i_head, H // GROUP, o_v, V)
    tiles.store(dk_ptr, b_dk, first, T, H // GROUP * K, K, BLOCK_J, BLOCK_K)
    tiles.store(dv_ptr, b_dv, first, T, H // GROUP * V, V, BLOCK_J, BLOCK_V)
