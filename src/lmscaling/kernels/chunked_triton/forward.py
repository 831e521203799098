"""The forward kernels: one pass over the q, k and v of a segment, and one token.

Tensor cores also sum the weights. z has 16 equal rows, the product of a tile of ones and phi(k), so
that features are used in products only and each is computed once.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.functions import (
    COPIES,
    HALF,
    LOG2_E,
    between,
    cumulated,
    feature,
    first_chunk,
    high_and_low,
    pinned,
    scaled,
    segment,
    unpacked,
)


@triton.jit(do_not_specialize=["T"])
def _chunked_forward_kernel(
    qkv_ptr, y_ptr, reciprocal_ptr, gate_ptr, table_ptr,
    before_ptr, kept_ptr, means_ptr, final_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr, NORMALIZE: tl.constexpr, GATE: tl.constexpr,
    BEFORE: tl.constexpr, KEEP: tl.constexpr, FINAL: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """y and 1/D of one segment.

    BEFORE: its state before is read. FINAL: its state after is written. KEEP: for the backward
    pass, the state before each chunk is written, less c z^T in the dtype of qkv, and z and c.
    """
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    i_slot = first_chunk(table_ptr, H)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k[None, :] < K, o_v[None, :] < V
    o_qk = o_c[:, None] * stride_t + o_k[None, :]
    o_vt = o_c[:, None] * stride_t + o_v[None, :]
    o_y = o_c[:, None] * (H * V) + o_v[None, :]
    o_state = o_k[None, :] * BLOCK_V + o_v[:, None]  # memory holds [K, V], registers its transpose
    STATE: tl.constexpr = BLOCK_K * BLOCK_V
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    q_ptr, k_ptr, v_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    y_ptr += (i_b * T + i_start) * (H * V) + i_h * V
    reciprocal_ptr += (i_b * H + i_h) * T + i_start
    gate_ptr += (i_b * H + i_h) * T + i_start if GATE == "token" else i_h
    kept_ptr += (i_slot * H + i_h) * STATE
    means_ptr += (i_slot * H + i_h) * (BLOCK_K + BLOCK_V)

    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    z16 = tl.zeros([COPIES, BLOCK_K], tl.float32)
    if BEFORE:
        before_ptr += i_state * (STATE + BLOCK_K)
        s = tl.load(before_ptr + o_state)
        if NORMALIZE:
            z16 += tl.load(before_ptr + STATE + o_k)[None, :]
    ones = tl.full([COPIES, BLOCK_C], 1.0, dtype)
    m_causal = o_c[:, None] >= o_c[None, :]
    if KEEP and NORMALIZE:
        # Before any token the state has no mean; that of the first values serves.
        b_v = tl.load(v_ptr + o_vt, mask=(o_c < n_token)[:, None] & m_v, other=0.0)
        c_first = tl.sum(b_v.to(tl.float32), 0) / tl.minimum(n_token, BLOCK_C)

    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c < n_token - i_c
        b_q = tl.load(q_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)  # [C, K]
        b_k = tl.load(k_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_v = tl.load(v_ptr + o_vt, mask=m_c[:, None] & m_v, other=0.0)  # [C, V]
        b_q = pinned(feature(unpacked(b_q, PIN), PHI, EXACT).to(dtype), PIN)
        f_k = feature(unpacked(b_k, PIN), PHI, EXACT)
        if FINAL:
            f_k = tl.where(m_c[:, None] & m_k, f_k, 0.0)
        elif K < BLOCK_K:
            f_k = tl.where(m_k, f_k, 0.0)
        b_k = pinned(f_k.to(dtype), PIN)
        if GATE != "none":
            G, total = cumulated(gate_ptr, o_c, n_token - i_c, GATE)
        if KEEP:
            b_s = s
            if NORMALIZE:
                # The mean c that minimizes the rest of s; it exists for features of any sign.
                z = tl.sum(z16, 0) / COPIES
                zz = tl.sum(z * z, 0)
                c = tl.sum(s * z[None, :], 1) / tl.where(zz > 1e-30, zz, 1.0)
                c = tl.where(zz > 1e-30, c, c_first)
                b_s = s - c[:, None] * z[None, :]
                tl.store(means_ptr + o_k, z)
                tl.store(means_ptr + BLOCK_K + o_v, c)
                means_ptr += H * (BLOCK_K + BLOCK_V)
            tl.store(kept_ptr + o_v[:, None] * BLOCK_K + o_k[None, :], b_s.to(dtype))
            kept_ptr += H * STATE

        b_a = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")  # [C, C], weights
        if GATE != "none":
            b_a *= between(G[:, None], G[None, :], m_causal)
        b_a = tl.where(m_causal, b_a, 0.0).to(dtype)
        b_y = tl.dot(b_q, tl.trans(s.to(dtype)), input_precision="ieee")  # [C, V]
        if GATE != "none":
            b_y *= tl.exp2(G)[:, None]
        b_y = tl.dot(b_a, b_v, b_y, input_precision="ieee")
        if NORMALIZE:
            # The sum is that of the rounded weights, so that the weights in use have sum one.
            inside = tl.sum(tl.dot(b_a, tl.trans(ones), input_precision="ieee"), 1) / COPIES
            z_rows = high_and_low(z16, b_q)
            before = tl.sum(tl.dot(b_q, tl.trans(z_rows), input_precision="ieee"), 1) / HALF
            if GATE != "none":
                before *= tl.exp2(G)
            reciprocal = 1.0 / (inside + before + EPSILON)
            b_y = b_y * reciprocal[:, None]
            tl.store(reciprocal_ptr + o_c, reciprocal, mask=m_c)
            reciprocal_ptr += BLOCK_C
        tl.store(y_ptr + o_y, b_y.to(dtype), mask=m_c[:, None] & m_v)
        if GATE != "none":
            b_k = scaled(b_k, tl.exp2(total - G))
            s *= tl.exp2(total)
            z16 *= tl.exp2(total)
            gate_ptr += BLOCK_C if GATE == "token" else 0
        if NORMALIZE:
            z16 = tl.dot(ones, b_k, z16, input_precision="ieee")
        s = tl.dot(tl.trans(b_v), b_k, s, input_precision="ieee")
        q_ptr += BLOCK_C * stride_t
        k_ptr += BLOCK_C * stride_t
        v_ptr += BLOCK_C * stride_t
        y_ptr += BLOCK_C * (H * V)
    if FINAL:
        final_ptr += i_state * (STATE + BLOCK_K)
        tl.store(final_ptr + o_state, s)
        tl.store(final_ptr + STATE + o_k, tl.sum(z16, 0) / COPIES)


@triton.jit
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, kv_ptr, k_sum_ptr, log_decay_ptr,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr, NORMALIZE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """y of one token of one head, from the state scaled by the gate and with its key and value.

    A program owns the complete state of a head, in float32, and updates it in place: two programs
    for one head would race on the sum of keys.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    b_q = tl.load(q_ptr + i_b * stride_qb + i_h * stride_qh + o_k, mask=m_k, other=0.0)
    b_k = tl.load(k_ptr + i_b * stride_kb + i_h * stride_kh + o_k, mask=m_k, other=0.0)
    b_v = tl.load(v_ptr + i_b * stride_vb + i_h * stride_vh + o_v, mask=m_v, other=0.0)
    dtype = b_v.dtype
    EXACT: tl.constexpr = dtype == tl.float32
    # Rounded as in the other kernels, so that they can exchange states.
    f_q = feature(b_q.to(tl.float32), PHI, EXACT).to(dtype).to(tl.float32)
    f_k = feature(b_k.to(tl.float32), PHI, EXACT).to(dtype).to(tl.float32)
    kv_ptr += i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
    m_kv = m_k[:, None] & m_v[None, :]
    kept = tl.exp2(tl.load(log_decay_ptr + i_bh) * LOG2_E) if GATED else 1.0
    s = kept * tl.load(kv_ptr, mask=m_kv, other=0.0) + f_k[:, None] * b_v.to(tl.float32)[None, :]
    tl.store(kv_ptr, s, mask=m_kv)
    f_q = tl.where(m_k, f_q, 0.0)
    b_y = tl.sum(f_q[:, None] * s, 0)
    if NORMALIZE:
        k_sum_ptr += i_bh * K + o_k
        z = kept * tl.load(k_sum_ptr, mask=m_k, other=0.0) + f_k
        tl.store(k_sum_ptr, z, mask=m_k)
        b_y = b_y / (tl.sum(f_q * z, 0) + EPSILON)
    tl.store(y_ptr + i_bh * V + o_v, b_y.to(dtype), mask=m_v)
