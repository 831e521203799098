"""Sums over segments, for the state before or after each, or at the end of a prompt."""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.features import feature


@triton.jit(do_not_specialize=["T", "L", "P"])
def _sums_forward_kernel(
    qkv_ptr, kv_ptr, k_ptr,
    stride_b, stride_t, T, L, P,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr,
):  # fmt: skip
    """Sums of phi(k) v^T and of phi(k) over one segment."""
    i_h = tl.program_id(0) % H
    i_p = tl.program_id(0) // H % P
    i_b = (tl.program_id(0) // H // P).to(tl.int64)
    i_start = i_p * L
    n_token = tl.minimum(T - i_start, L)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    key_ptr = row_ptr + (H + i_h) * K + o_c[:, None] * stride_t + o_k[None, :]
    value_ptr = row_ptr + 2 * H * K + i_h * V + o_c[:, None] * stride_t + o_v[None, :]
    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z = tl.zeros([BLOCK_K], tl.float32)
    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c[:, None] < n_token - i_c
        m_k, m_v = m_c & (o_k[None, :] < K), m_c & (o_v[None, :] < V)
        b_k = tl.load(key_ptr, mask=m_k, other=0.0)
        b_v = tl.load(value_ptr, mask=m_v, other=0.0)
        b_k = tl.where(m_k, feature(b_k.to(tl.float32), PHI, EXACT), 0.0).to(dtype)
        s = tl.dot(tl.trans(b_k), b_v, s, input_precision="ieee")
        z += tl.sum(b_k.to(tl.float32), 0)
        key_ptr += BLOCK_C * stride_t
        value_ptr += BLOCK_C * stride_t
    o_state = (i_b * H + i_h) * P + i_p
    o_kv = o_k[:, None] * BLOCK_V + o_v[None, :]
    tl.store(kv_ptr + o_state * (BLOCK_K * BLOCK_V) + o_kv, s)
    tl.store(k_ptr + o_state * BLOCK_K + o_k, z)


@triton.jit(do_not_specialize=["T", "L", "P"])
def _sums_backward_kernel(
    qkv_ptr, dy_ptr, reciprocal_ptr, e_ptr, kv_ptr, k_ptr,
    stride_b, stride_t, T, L, P,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """Sums of phi(q) dy^T / D and of phi(q) e / D over one segment."""
    i_h = tl.program_id(0) % H
    i_p = tl.program_id(0) // H % P
    i_b = (tl.program_id(0) // H // P).to(tl.int64)
    i_start = i_p * L
    n_token = tl.minimum(T - i_start, L)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    query_ptr = row_ptr + i_h * K + o_c[:, None] * stride_t + o_k[None, :]
    dy_ptr += (i_b * T + i_start) * (H * V) + i_h * V + o_c[:, None] * (H * V) + o_v[None, :]
    reciprocal_ptr += (i_b * H + i_h) * T + i_start + o_c
    e_ptr += (i_b * H + i_h) * T + i_start + o_c
    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z = tl.zeros([BLOCK_K], tl.float32)
    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c < n_token - i_c
        b_q = tl.load(query_ptr, mask=m_c[:, None] & (o_k[None, :] < K), other=0.0)
        b_dy = tl.load(dy_ptr, mask=m_c[:, None] & (o_v[None, :] < V), other=0.0)
        f_q = feature(b_q.to(tl.float32), PHI, EXACT)
        if NORMALIZE:
            f_q *= tl.load(reciprocal_ptr, mask=m_c, other=0.0)[:, None]
            e = tl.load(e_ptr, mask=m_c, other=0.0)
            z += tl.sum(f_q.to(dtype).to(tl.float32) * e[:, None], 0)
            reciprocal_ptr += BLOCK_C
            e_ptr += BLOCK_C
        s = tl.dot(tl.trans(f_q.to(dtype)), b_dy, s, input_precision="ieee")
        query_ptr += BLOCK_C * stride_t
        dy_ptr += BLOCK_C * (H * V)
    o_state = (i_b * H + i_h) * P + i_p
    o_kv = o_k[:, None] * BLOCK_V + o_v[None, :]
    tl.store(kv_ptr + o_state * (BLOCK_K * BLOCK_V) + o_kv, s)
    if NORMALIZE:
        tl.store(k_ptr + o_state * BLOCK_K + o_k, z)
