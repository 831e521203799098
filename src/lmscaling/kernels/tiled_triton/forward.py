"""Forward kernels: features of queries and keys, then the result, row by row."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# Triton's annotations of constants are not types, as pyright assumes.

import triton
import triton.language as tl

from lmscaling.kernels.tiled_triton import tiles


@triton.jit(do_not_specialize=["T"])
def _features_forward_kernel(
    x_ptr,  # [B, T, H, K]
    f_ptr,  # [B, T, H, K], contiguous
    T,
    H,
    heads,  # B * H
    stride_xb,
    stride_xt,
    stride_xh,
    FEATURE_MAP: tl.constexpr,
    K: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_head, start = tl.program_id(0) % heads, tl.program_id(0) // heads * BLOCK_I
    x_ptr = tiles.head(x_ptr, i_head, H, stride_xb, stride_xh)
    f_ptr = tiles.head(f_ptr, i_head, H, tl.cast(T, tl.int64) * H * K, K)
    b_x = tiles.load(x_ptr, start, T, stride_xt, K, BLOCK_I, BLOCK_K)
    b_f = tiles.feature(b_x.to(tl.float32), FEATURE_MAP)
    tiles.store(f_ptr, b_f, start, T, H * K, K, BLOCK_I, BLOCK_K)


@triton.jit
def _add_keys(b_q, b_k, b_v, b_sum, b_y, offset, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Add a tile of weights to their sum and to the result; its keys start ``offset`` rows down."""
    b_a = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
    o_i, o_j = tl.arange(0, b_q.shape[0]), tl.arange(0, b_k.shape[0])
    b_a = tiles.visible(b_a, o_i[:, None], offset + o_j[None, :], CAUSAL, WINDOW)
    b_a = b_a.to(b_v.dtype)
    b_sum += tl.sum(b_a.to(tl.float32), 1)
    return b_sum, tl.dot(b_a, b_v, b_y, input_precision="ieee")


@triton.jit(do_not_specialize=["T"])
def _quadratic_forward_kernel(
    q_ptr,  # [B, T, H, K], features
    k_ptr,  # [B, T, H / GROUP, K], features
    v_ptr,  # [B, T, H / GROUP, V]
    y_ptr,  # [B, T, H, V], contiguous
    y32_ptr,  # [B, T, H, V], contiguous, float32; only if NORMALIZE
    inverse_ptr,  # [B, H, T], float32: 1 / D; only if NORMALIZE
    T,
    H,
    heads,  # B * H
    epsilon,
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    NORMALIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    # The longest rows start first, so that no long row runs alone at the end.
    i_head = tl.program_id(0) % heads
    first = (tl.cdiv(T, BLOCK_I) - 1 - tl.program_id(0) // heads) * BLOCK_I
    q_ptr = tiles.head(q_ptr, i_head, H, stride_qb, stride_qh)
    k_ptr = tiles.head(k_ptr, i_head // GROUP, H // GROUP, stride_kb, stride_kh)
    v_ptr = tiles.head(v_ptr, i_head // GROUP, H // GROUP, stride_vb, stride_vh)
    b_q = tiles.load(q_ptr, first, T, stride_qt, K, BLOCK_I, BLOCK_K)
    b_sum = tl.zeros([BLOCK_I], tl.float32)
    b_y = tl.zeros([BLOCK_I, BLOCK_V], tl.float32)
    for start in range(tiles.begin(first, WINDOW, BLOCK_J), first, BLOCK_J):
        b_k = tiles.load(k_ptr, start, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = tiles.load(v_ptr, start, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_sum, b_y = _add_keys(
            b_q, b_k, b_v, b_sum, b_y, start - first, CAUSAL=False, WINDOW=WINDOW
        )
    for offset in tl.static_range(0, BLOCK_I, BLOCK_J):
        b_k = tiles.load(k_ptr, first + offset, T, stride_kt, K, BLOCK_J, BLOCK_K)
        b_v = tiles.load(v_ptr, first + offset, T, stride_vt, V, BLOCK_J, BLOCK_V)
        b_sum, b_y = _add_keys(b_q, b_k, b_v, b_sum, b_y, offset, CAUSAL=True, WINDOW=WINDOW)
    o_y = tl.cast(T, tl.int64) * H * V
    if NORMALIZE:
        o_i = first + tl.arange(0, BLOCK_I)
        b_inverse = 1.0 / tl.where(o_i < T, b_sum + epsilon, 1.0)
        b_y *= b_inverse[:, None]
        inverse_ptr += tl.cast(i_head, tl.int64) * T
        tl.store(inverse_ptr + o_i, b_inverse, mask=o_i < T)
        y32_ptr = tiles.head(y32_ptr, i_head, H, o_y, V)
        tiles.store(y32_ptr, b_y, first, T, H * V, V, BLOCK_I, BLOCK_V)
    y_ptr = tiles.head(y_ptr, i_head, H, o_y, V)
    tiles.store(y_ptr, b_y, first, T, H * V, V, BLOCK_I, BLOCK_V)
