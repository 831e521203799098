"""The backward kernel: dq, dk and dv in one pass, in reverse over the tokens.

The gradient R of the state stays in registers; the state of each chunk is read as the forward pass
kept it. Queries enter as phi(q) / D, so the division is rounded together with the feature. To
subtract tokens from the last state would save reading it, but divides by gates.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.functions import (
    COPIES,
    HALF,
    between,
    cumulated,
    feature,
    first_chunk,
    high_and_low,
    in_rows,
    pinned,
    scaled,
    segment,
    times_slope,
    unpacked,
)


@triton.jit(do_not_specialize=["T"])
def _chunked_backward_kernel(
    qkv_ptr, dy_ptr, reciprocal_ptr, gate_ptr, table_ptr,
    kept_ptr, means_ptr, after_ptr, dqkv_ptr, dgate_ptr, dbefore_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr, NORMALIZE: tl.constexpr, GATE: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv of one segment, and with a gate dL/dg for each token.

    AFTER: the gradient of its last state is read. BEFORE: that of the state before it is written.
    """
    W: tl.constexpr = H * (2 * K + V)
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    i_slot = first_chunk(table_ptr, H)
    n_chunk = tl.cdiv(n_token, BLOCK_C)
    i_slot += n_chunk - 1
    i_last = i_start + (n_chunk - 1) * BLOCK_C
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k[None, :] < K, o_v[None, :] < V
    o_qk = o_c[:, None] * stride_t + o_k[None, :]
    o_vt = o_c[:, None] * stride_t + o_v[None, :]
    o_dy = o_c[:, None] * (H * V) + o_v[None, :]
    o_dk, o_dv = o_c[:, None] * W + o_k[None, :], o_c[:, None] * W + o_v[None, :]
    o_state = o_k[None, :] * BLOCK_V + o_v[:, None]  # memory holds [K, V], registers its transpose
    STATE: tl.constexpr = BLOCK_K * BLOCK_V
    row_ptr = qkv_ptr + i_b * stride_b + i_last.to(tl.int64) * stride_t
    q_ptr, k_ptr, v_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K, row_ptr + 2 * H * K + i_h * V
    dy_ptr += (i_b * T + i_last) * (H * V) + i_h * V
    row_ptr = dqkv_ptr + (i_b * T + i_last) * W
    dq_ptr, dk_ptr = row_ptr + i_h * K, row_ptr + (H + i_h) * K
    dv_ptr = row_ptr + 2 * H * K + i_h * V
    reciprocal_ptr += (i_b * H + i_h) * T + i_last
    gate_ptr += (i_b * H + i_h) * T + i_last if GATE == "token" else i_h
    dgate_ptr += (i_b * H + i_h) * T + i_last
    kept_ptr += (i_slot * H + i_h) * STATE
    means_ptr += (i_slot * H + i_h) * (BLOCK_K + BLOCK_V)

    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    r = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    r16 = tl.zeros([COPIES, BLOCK_K], tl.float32)  # their sum is eight times dL/dz
    if AFTER:
        after_ptr += i_state * (STATE + BLOCK_K)
        r = tl.load(after_ptr + o_state)
        if NORMALIZE:
            r16 += tl.load(after_ptr + STATE + o_k)[None, :] * (HALF / COPIES)
    m_causal = o_c[:, None] >= o_c[None, :]
    m_suffix = o_c[:, None] <= o_c[None, :]
    eye = tl.where(o_k[:, None] == o_k[None, :], 1.0, 0.0).to(dtype)

    for i_c in range(n_chunk):
        n_left = n_token - (n_chunk - 1 - i_c) * BLOCK_C
        m_c = o_c < n_left
        b_q = tl.load(q_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)  # [C, K]
        b_k = tl.load(k_ptr + o_qk, mask=m_c[:, None] & m_k, other=0.0)
        b_v = tl.load(v_ptr + o_vt, mask=m_c[:, None] & m_v, other=0.0)  # [C, V]
        b_dy = tl.load(dy_ptr + o_dy, mask=m_c[:, None] & m_v, other=0.0)
        b_s = tl.load(kept_ptr + o_v[:, None] * BLOCK_K + o_k[None, :])  # [V, K]
        f_q = feature(unpacked(b_q, PIN), PHI, EXACT)
        if NORMALIZE:
            reciprocal = tl.load(reciprocal_ptr + o_c, mask=m_c, other=0.0)
            f_q *= reciprocal[:, None]
        b_q = pinned(f_q.to(dtype), PIN)
        f_k = feature(unpacked(b_k, PIN), PHI, EXACT)
        if K < BLOCK_K:
            f_k = tl.where(m_k, f_k, 0.0)
        b_k = pinned(f_k.to(dtype), PIN)
        if GATE != "none":
            G, total = cumulated(gate_ptr, o_c, n_left, GATE)

        # dq, from values less c.
        b_da = tl.dot(b_dy, tl.trans(b_v), input_precision="ieee")  # [C, C], queries in rows
        if NORMALIZE:
            z = tl.load(means_ptr + o_k)
            c = tl.load(means_ptr + BLOCK_K + o_v)
            c16 = high_and_low(tl.broadcast_to(c[None, :], [COPIES, BLOCK_V]), b_q)
            centre = tl.sum(tl.dot(b_dy, tl.trans(c16), input_precision="ieee"), 1) / HALF
            b_da -= centre[:, None]
        b_dq = tl.dot(b_dy, b_s, input_precision="ieee")
        if GATE != "none":
            b_da *= between(G[:, None], G[None, :], m_causal)
            b_dq *= tl.exp2(G)[:, None]
            dG = tl.sum(b_q.to(tl.float32) * b_dq, 1)
        b_da = tl.where(m_causal, b_da, 0.0).to(dtype)
        b_dq = tl.dot(b_da, b_k, b_dq, input_precision="ieee")
        p_q = in_rows(b_q, eye)
        if NORMALIZE:
            # phi(q) . dphi(q) = 0 but for epsilon, because scaling a query changes no weight.
            e = EPSILON * centre * reciprocal - tl.sum(p_q * b_dq, 1)
            if GATE != "none":
                b_e = e[:, None] * between(G[:, None], G[None, :], m_causal)
                e_z = e * tl.exp2(G)
                dG += e_z * tl.sum(b_q.to(tl.float32) * z[None, :], 1)
            else:
                b_e = tl.where(m_causal, e[:, None], 0.0)
                e_z = e
            b_dq += e_z[:, None] * z[None, :]
            b_dq = tl.dot(b_e.to(dtype), b_k, b_dq, input_precision="ieee")
            b_dq *= reciprocal[:, None]
            weights = tl.where(m_c, 1.0 / reciprocal, 0.0)
            e -= centre  # dL/dD times D, with the values as they are
            reciprocal_ptr -= BLOCK_C
            means_ptr -= H * (BLOCK_K + BLOCK_V)
        b_dq = times_slope(b_dq, p_q, weights[:, None] if NORMALIZE else 1.0, PHI, EXACT)
        tl.store(dq_ptr + o_dk, b_dq.to(dtype), mask=m_c[:, None] & m_k)

        # dk and dv. Weights are computed transposed, with keys in rows, which avoids a
        # transposition in registers.
        b_r = r.to(dtype)
        b_a = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")  # [C, C], keys in rows
        if GATE != "none":
            b_between = between(G[None, :], G[:, None], m_suffix)
            b_a *= b_between
            b_weight = b_a
        b_a = tl.where(m_suffix, b_a, 0.0).to(dtype)
        b_dv = tl.dot(b_k, tl.trans(b_r), input_precision="ieee")
        if GATE != "none":
            b_dv *= tl.exp2(total - G)[:, None]
        b_dv = tl.dot(b_a, b_dy, b_dv, input_precision="ieee")
        tl.store(dv_ptr + o_dv, b_dv.to(dtype), mask=m_c[:, None] & m_v)
        b_dk = tl.dot(b_v, b_r, input_precision="ieee")
        b_since = scaled(b_q, tl.exp2(G)) if GATE != "none" else b_q
        if NORMALIZE:
            dz = tl.sum(r16, 0) / HALF
            b_dk += dz[None, :]
            if GATE != "none":
                r16 *= tl.exp2(total)
            copies = tl.broadcast_to(e[None, :], [COPIES, BLOCK_C])
            r16 = tl.dot(high_and_low(copies, b_q), b_since, r16, input_precision="ieee")
        b_da = tl.dot(b_v, tl.trans(b_dy), input_precision="ieee")
        if NORMALIZE:
            b_da += e[None, :]
        if GATE != "none":
            # dL/dg_t is the sum over what crosses t: weights of later queries on earlier keys, of
            # later queries on the state before the chunk, and of the state after the chunk on
            # earlier keys and on the state before. Weights between tokens on one side of t cancel
            # exactly, because both sums are of the same products.
            b_product = tl.where(m_suffix, b_weight * b_da, 0.0)
            dG += tl.sum(b_product, 0) - tl.sum(b_product, 1)
            dG = tl.where(m_c, dG, 0.0)
            b_da *= b_between
            b_dk *= tl.exp2(total - G)[:, None]
            added = tl.where(m_c, tl.sum(b_k.to(tl.float32) * b_dk, 1), 0.0)
            carried = tl.sum(b_s.to(tl.float32) * r)
            if NORMALIZE:
                carried += tl.sum(c * tl.sum(r * z[None, :], 1), 0) + tl.sum(z * dz, 0)
            dg = tl.sum(dG, 0) - tl.cumsum(dG, 0) + dG + tl.cumsum(added, 0) - added
            tl.store(dgate_ptr + o_c, dg + tl.exp2(total) * carried, mask=m_c)
            gate_ptr -= BLOCK_C if GATE == "token" else 0
            dgate_ptr -= BLOCK_C
            r *= tl.exp2(total)
        b_da = tl.where(m_suffix, b_da, 0.0).to(dtype)
        b_dk = tl.dot(b_da, b_q, b_dk, input_precision="ieee")
        p_k = in_rows(b_k, eye)
        b_dk = times_slope(b_dk, p_k, 1.0, PHI, EXACT)
        tl.store(dk_ptr + o_dk, b_dk.to(dtype), mask=m_c[:, None] & m_k)
        r = tl.dot(tl.trans(b_dy), b_since, r, input_precision="ieee")
        q_ptr -= BLOCK_C * stride_t
        k_ptr -= BLOCK_C * stride_t
        v_ptr -= BLOCK_C * stride_t
        dy_ptr -= BLOCK_C * (H * V)
        kept_ptr -= H * STATE
        dq_ptr -= BLOCK_C * W
        dk_ptr -= BLOCK_C * W
        dv_ptr -= BLOCK_C * W
    if BEFORE:
        dbefore_ptr += i_state * (STATE + BLOCK_K)
        tl.store(dbefore_ptr + o_state, r)
        tl.store(dbefore_ptr + STATE + o_k, tl.sum(r16, 0) / HALF)
