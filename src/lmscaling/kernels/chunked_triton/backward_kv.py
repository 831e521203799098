"""The backward kernel that runs in reverse over the tokens: dk and dv.

Queries enter as phi(q) / D, so the division is rounded together with the feature.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.features import (
    COPIES,
    HALF,
    feature,
    high_and_low,
    in_rows,
    pinned,
    times_slope,
    unpacked,
)
from lmscaling.kernels.chunked_triton.programs import segment


@triton.jit(do_not_specialize=["T"])
def _chunked_backward_kv_kernel(
    qkv_ptr, dy_ptr, reciprocal_ptr, e_ptr, table_ptr, after_ptr, dqkv_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, NORMALIZE: tl.constexpr, AFTER: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """dk and dv of one segment; the gradient of its last state is read where AFTER."""
    W: tl.constexpr = H * (2 * K + V)
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    n_chunk = tl.cdiv(n_token, BLOCK_C)
    i_last = i_start + (n_chunk - 1) * BLOCK_C
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k[None, :] < K, o_v[None, :] < V
    o_qk = o_c[:, None] * stride_t + o_k[None, :]
    o_vt = o_c[:, None] * stride_t + o_v[None, :]
    o_dy = o_c[:, None] * (H * V) + o_v[None, :]
    o_dk, o_dv = o_c[:, None] * W + o_k[None, :], o_c[:, None] * W + o_v[None, :]
    row_ptr = qkv_ptr + i_b * stride_b + i_last.to(tl.int64) * stride_t
    q_ptr, k_ptr, v_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    dy_ptr += (i_b * T + i_last) * (H * V) + i_h * V
    row_ptr = dqkv_ptr + (i_b * T + i_last) * W
    dk_ptr, dv_ptr = row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    reciprocal_ptr += (i_b * H + i_h) * T + i_last
    e_ptr += (i_b * H + i_h) * T + i_last

    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z16 = tl.zeros([COPIES, BLOCK_K], tl.float32)
    if AFTER:
        after_ptr += i_state * (BLOCK_K * BLOCK_V + BLOCK_K)
        s = tl.load(after_ptr + o_k[:, None] * BLOCK_V + o_v[None, :])
        if NORMALIZE:
            z16 += tl.load(after_ptr + BLOCK_K * BLOCK_V + o_k)[None, :] * (HALF / COPIES)
    eye = tl.where(o_k[:, None] == o_k[None, :], 1.0, 0.0).to(dtype)
    m_causal = o_c[:, None] <= o_c[None, :]

    for i_c in range(n_chunk):
        m_c = o_c < n_token - (n_chunk - 1 - i_c) * BLOCK_C
        b_q = tl.load(q_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_k = tl.load(k_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_v = tl.load(v_ptr + o_vt, mask=m_c[:, None] & m_v, other=0.0)
        b_dy = tl.load(dy_ptr + o_dy, mask=m_c[:, None] & m_v, other=0.0)
        f_q = feature(unpacked(b_q, PIN), PHI, EXACT)
        if NORMALIZE:
            f_q *= tl.load(reciprocal_ptr + o_c, mask=m_c, other=0.0)[:, None]
            reciprocal_ptr -= BLOCK_C
        b_q = pinned(f_q.to(dtype), PIN)
        f_k = feature(unpacked(b_k, PIN), PHI, EXACT)
        if K < BLOCK_K:
            f_k = tl.where(m_k, f_k, 0.0)
        b_k = pinned(f_k.to(dtype), PIN)

        # Weights and their slopes are computed transposed, with keys along the rows, which avoids
        # a transposition in registers.
        b_a = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
        b_a = tl.where(m_causal, b_a, 0.0).to(dtype)
        b_s = s.to(dtype)
        b_dv = tl.dot(b_k, b_s, input_precision="ieee")
        b_dv = tl.dot(b_a, b_dy, b_dv, input_precision="ieee")
        tl.store(dv_ptr + o_dv, b_dv.to(dtype), mask=m_c[:, None] & m_v)
        b_da = tl.dot(b_v, tl.trans(b_dy), input_precision="ieee")
        b_dk = tl.dot(b_v, tl.trans(b_s), input_precision="ieee")
        if NORMALIZE:
            e = tl.load(e_ptr + o_c, mask=m_c, other=0.0)
            b_da += e[None, :]
            b_dk += (tl.sum(z16, 0) / HALF)[None, :]
            copies = tl.broadcast_to(e[None, :], [COPIES, BLOCK_C])
            z16 = tl.dot(high_and_low(copies, b_q, 0), b_q, z16, input_precision="ieee")
            e_ptr -= BLOCK_C
        b_da = tl.where(m_causal, b_da, 0.0).to(dtype)
        b_dk = tl.dot(b_da, b_q, b_dk, input_precision="ieee")
        b_dk = times_slope(b_dk, in_rows(b_k, eye), 1.0, PHI, EXACT)
        tl.store(dk_ptr + o_dk, b_dk.to(dtype), mask=m_c[:, None] & m_k)
        s = tl.dot(tl.trans(b_q), b_dy, s, input_precision="ieee")
        q_ptr -= BLOCK_C * stride_t
        k_ptr -= BLOCK_C * stride_t
        v_ptr -= BLOCK_C * stride_t
        dy_ptr -= BLOCK_C * (H * V)
        dk_ptr -= BLOCK_C * W
        dv_ptr -= BLOCK_C * W
