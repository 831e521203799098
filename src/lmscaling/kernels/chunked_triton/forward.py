"""The forward kernel: one pass over q, k and v.

Tensor cores also sum the weights. z has 16 equal columns, the product of phi(k)^T and a tile of
ones, so that features are used in products only and each is computed once.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.features import feature, high_and_low, pinned


@triton.jit(do_not_specialize=["T", "L", "P"])
def _chunked_forward_kernel(
    qkv_ptr, y_ptr, reciprocal_ptr, before_kv_ptr, before_k_ptr,
    stride_b, stride_t, T, L, P,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr,
    NORMALIZE: tl.constexpr, SEGMENTED: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """y and 1/D of one segment of L tokens; the state before it is read where SEGMENTED."""
    i_h = tl.program_id(0) % H
    i_p = tl.program_id(0) // H % P
    i_b = (tl.program_id(0) // H // P).to(tl.int64)
    i_start = i_p * L
    n_token = tl.minimum(T - i_start, L)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k[None, :] < K, o_v[None, :] < V
    o_qk = o_c[:, None] * stride_t + o_k[None, :]
    o_vt = o_c[:, None] * stride_t + o_v[None, :]
    o_y = o_c[:, None] * (H * V) + o_v[None, :]
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    q_ptr, k_ptr, v_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    y_ptr += (i_b * T + i_start) * (H * V) + i_h * V
    reciprocal_ptr += (i_b * H + i_h) * T + i_start

    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z = tl.zeros([BLOCK_K, 16], tl.float32)
    if SEGMENTED:
        o_state = (i_b * H + i_h) * P + i_p
        o_kv = o_k[:, None] * BLOCK_V + o_v[None, :]
        s = tl.load(before_kv_ptr + o_state * (BLOCK_K * BLOCK_V) + o_kv)
        if NORMALIZE:
            z += tl.load(before_k_ptr + o_state * BLOCK_K + o_k)[:, None]
    ones = tl.full([BLOCK_C, 16], 1.0, dtype)
    m_causal = o_c[:, None] >= o_c[None, :]

    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c < n_token - i_c
        b_q = tl.load(q_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_k = tl.load(k_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_v = tl.load(v_ptr + o_vt, mask=m_c[:, None] & m_v, other=0.0)
        b_q = pinned(feature(b_q.to(tl.float32), PHI, EXACT).to(dtype), PIN)
        f_k = feature(b_k.to(tl.float32), PHI, EXACT)
        if K < BLOCK_K:
            f_k = tl.where(m_k, f_k, 0.0)
        b_k = pinned(f_k.to(dtype), PIN)

        b_a = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        b_a = tl.where(m_causal, b_a, 0.0).to(dtype)
        b_y = tl.dot(b_q, s.to(dtype), input_precision="ieee")
        b_y = tl.dot(b_a, b_v, b_y, input_precision="ieee")
        if NORMALIZE:
            # The sum is that of the rounded weights, so that the weights in use have sum one.
            inside = tl.sum(tl.dot(b_a, ones, input_precision="ieee"), 1) / 16
            before = tl.dot(b_q, high_and_low(z, b_q, 1), input_precision="ieee")
            reciprocal = 1.0 / (inside + tl.sum(before, 1) / 8 + EPSILON)
            b_y = b_y * reciprocal[:, None]
            tl.store(reciprocal_ptr + o_c, reciprocal, mask=m_c)
            z = tl.dot(tl.trans(b_k), ones, z, input_precision="ieee")
            reciprocal_ptr += BLOCK_C
        tl.store(y_ptr + o_y, b_y.to(dtype), mask=m_c[:, None] & m_v)
        s = tl.dot(tl.trans(b_k), b_v, s, input_precision="ieee")
        q_ptr += BLOCK_C * stride_t
        k_ptr += BLOCK_C * stride_t
        v_ptr += BLOCK_C * stride_t
        y_ptr += BLOCK_C * (H * V)
