"""The backward kernel that runs forward over the tokens: dq, and dL/dD for the other kernel.

The state is transposed, so that z, its mean and both products share one register layout.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.features import (
    COPIES,
    feature,
    pinned,
    times_slope,
    unpacked,
)
from lmscaling.kernels.chunked_triton.programs import segment


@triton.jit(do_not_specialize=["T"])
def _chunked_backward_q_kernel(
    qkv_ptr, dy_ptr, reciprocal_ptr, e_ptr, table_ptr, before_ptr, dqkv_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr,
    NORMALIZE: tl.constexpr, BEFORE: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """dq of one segment, whose state before is read where BEFORE, and e_i = -dy_i . y_i."""
    W: tl.constexpr = H * (2 * K + V)
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k[None, :] < K, o_v[None, :] < V
    o_qk = o_c[:, None] * stride_t + o_k[None, :]
    o_vt = o_c[:, None] * stride_t + o_v[None, :]
    o_dy = o_c[:, None] * (H * V) + o_v[None, :]
    o_dq = o_c[:, None] * W + o_k[None, :]
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    q_ptr, k_ptr, v_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    dy_ptr += (i_b * T + i_start) * (H * V) + i_h * V
    dq_ptr = dqkv_ptr + (i_b * T + i_start) * W + i_h * K
    reciprocal_ptr += (i_b * H + i_h) * T + i_start
    e_ptr += (i_b * H + i_h) * T + i_start

    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    z16 = tl.zeros([COPIES, BLOCK_K], tl.float32)
    if BEFORE:
        before_ptr += i_state * (BLOCK_K * BLOCK_V + BLOCK_K)
        s = tl.load(before_ptr + o_k[None, :] * BLOCK_V + o_v[:, None])
        if NORMALIZE:
            z16 += tl.load(before_ptr + BLOCK_K * BLOCK_V + o_k)[None, :]
    ones = tl.full([COPIES, BLOCK_C], 1.0, dtype)
    m_causal = o_c[:, None] >= o_c[None, :]

    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c < n_token - i_c
        b_q = tl.load(q_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_k = tl.load(k_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_v = tl.load(v_ptr + o_vt, mask=m_c[:, None] & m_v, other=0.0)
        b_dy = tl.load(dy_ptr + o_dy, mask=m_c[:, None] & m_v, other=0.0)
        f_k = feature(unpacked(b_k, PIN), PHI, EXACT)
        if K < BLOCK_K:
            f_k = tl.where(m_k, f_k, 0.0)
        b_k = pinned(f_k.to(dtype), PIN)
        f_q = feature(unpacked(b_q, PIN), PHI, EXACT).to(dtype).to(tl.float32)

        b_da = tl.dot(b_dy, tl.trans(b_v), input_precision="ieee")
        if NORMALIZE:
            # The mean that minimizes the rest of s; it exists for features of any sign.
            z = tl.sum(z16, 0) / COPIES
            zz = tl.sum(z * z, 0)
            c = tl.sum(s * z[None, :], 1) / tl.where(zz > 0, zz, 1.0)
            b_s = (s - c[:, None] * z[None, :]).to(dtype)
            dy_c = tl.sum(b_dy.to(tl.float32) * c[None, :], 1)
            # The first chunk has no state and no mean, so each row uses its own.
            inside = tl.sum(tl.where(m_causal, b_da, 0.0), 1) / (o_c + 1)
            centre = tl.where(zz > 0, dy_c, inside)
            b_da -= centre[:, None]
        else:
            b_s = s.to(dtype)
        b_da = tl.where(m_causal, b_da, 0.0).to(dtype)
        b_dq = tl.dot(b_dy, b_s, input_precision="ieee")
        b_dq = tl.dot(b_da, b_k, b_dq, input_precision="ieee")
        if NORMALIZE:
            # phi(q) . dphi(q) = 0 up to epsilon, because scaling a query changes no weight.
            reciprocal = tl.load(reciprocal_ptr + o_c, mask=m_c, other=0.0)
            e = (EPSILON * centre - tl.sum(f_q * b_dq, 1)) * reciprocal
            tl.store(e_ptr + o_c, e - centre, mask=m_c)
            b_e = tl.where(m_causal, e[:, None], 0.0).to(dtype)
            b_dq = tl.dot(b_e, b_k, b_dq + e[:, None] * z[None, :], input_precision="ieee")
            b_dq *= reciprocal[:, None]
            z16 = tl.dot(ones, b_k, z16, input_precision="ieee")
            reciprocal_ptr += BLOCK_C
            e_ptr += BLOCK_C
        b_dq = times_slope(b_dq, f_q, 1.0, PHI, EXACT)
        tl.store(dq_ptr + o_dq, b_dq.to(dtype), mask=m_c[:, None] & m_k)
        s = tl.dot(tl.trans(b_v), b_k, s, input_precision="ieee")
        q_ptr += BLOCK_C * stride_t
        k_ptr += BLOCK_C * stride_t
        v_ptr += BLOCK_C * stride_t
        dy_ptr += BLOCK_C * (H * V)
        dq_ptr += BLOCK_C * W
