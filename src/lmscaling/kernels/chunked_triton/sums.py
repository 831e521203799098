"""States at the borders of segments: sums over each segment, then a scan over the segments.

States are float32 ``[S, H, BLOCK_K BLOCK_V + BLOCK_K]``: the sum of phi(k) v^T, row by row, then
that of phi(k), with widths padded as in registers.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from lmscaling.kernels.chunked_triton.functions import (
    cumulated,
    feature,
    scaled,
    segment,
)


@triton.jit(do_not_specialize=["T"])
def _sums_forward_kernel(
    qkv_ptr, gate_ptr, table_ptr, sums_ptr, total_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Sums of phi(k) v^T and of phi(k) over one segment, as they are at its end, and its gates."""
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    row_ptr = qkv_ptr + i_b * stride_b + i_start.to(tl.int64) * stride_t
    key_ptr = row_ptr + (H + i_h) * K + o_c[:, None] * stride_t + o_k[None, :]
    value_ptr = row_ptr + 2 * H * K + i_h * V + o_c[:, None] * stride_t + o_v[None, :]
    gate_ptr += (i_b * H + i_h) * T + i_start if GATE == "token" else i_h
    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z = tl.zeros([BLOCK_K], tl.float32)
    sum_of_gates = 0.0
    for i_c in range(0, n_token, BLOCK_C):
        m_c = o_c[:, None] < n_token - i_c
        m_k, m_v = m_c & (o_k[None, :] < K), m_c & (o_v[None, :] < V)
        b_k = tl.load(key_ptr, mask=m_k, other=0.0)
        b_v = tl.load(value_ptr, mask=m_v, other=0.0)
        b_k = tl.where(m_k, feature(b_k.to(tl.float32), PHI, EXACT), 0.0).to(dtype)
        if GATE != "none":
            G, total = cumulated(gate_ptr, o_c, n_token - i_c, GATE)
            b_k = scaled(b_k, tl.exp2(total - G))
            s *= tl.exp2(total)
            z *= tl.exp2(total)
            sum_of_gates += total
            gate_ptr += BLOCK_C if GATE == "token" else 0
        s = tl.dot(tl.trans(b_k), b_v, s, input_precision="ieee")
        z += tl.sum(b_k.to(tl.float32), 0)
        key_ptr += BLOCK_C * stride_t
        value_ptr += BLOCK_C * stride_t
    sums_ptr += i_state * (BLOCK_K * BLOCK_V + BLOCK_K)
    tl.store(sums_ptr + o_k[:, None] * BLOCK_V + o_v[None, :], s)
    tl.store(sums_ptr + BLOCK_K * BLOCK_V + o_k, z)
    if GATE != "none":
        tl.store(total_ptr + i_state, sum_of_gates)


@triton.jit(do_not_specialize=["T"])
def _sums_backward_kernel(
    qkv_ptr, y_ptr, dy_ptr, reciprocal_ptr, gate_ptr, table_ptr, sums_ptr, total_ptr,
    stride_b, stride_t, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, NORMALIZE: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Sums of phi(q) dy^T / D and of phi(q) e / D over one segment, as they are at its start."""
    i_h, i_state, i_b, i_start, n_token = segment(table_ptr, H)
    n_chunk = tl.cdiv(n_token, BLOCK_C)
    i_last = i_start + (n_chunk - 1) * BLOCK_C
    o_c, o_k, o_v = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    row_ptr = qkv_ptr + i_b * stride_b + i_last.to(tl.int64) * stride_t
    query_ptr = row_ptr + i_h * K + o_c[:, None] * stride_t + o_k[None, :]
    o_y = (i_b * T + i_last) * (H * V) + i_h * V + o_c[:, None] * (H * V) + o_v[None, :]
    reciprocal_ptr += (i_b * H + i_h) * T + i_last + o_c
    gate_ptr += (i_b * H + i_h) * T + i_last if GATE == "token" else i_h
    dtype = qkv_ptr.dtype.element_ty
    EXACT: tl.constexpr = dtype == tl.float32
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    z = tl.zeros([BLOCK_K], tl.float32)
    sum_of_gates = 0.0
    for i_c in range(n_chunk):
        n_left = n_token - (n_chunk - 1 - i_c) * BLOCK_C
        m_c = o_c < n_left
        m_v = m_c[:, None] & (o_v[None, :] < V)
        b_q = tl.load(query_ptr, mask=m_c[:, None] & (o_k[None, :] < K), other=0.0)
        b_dy = tl.load(dy_ptr + o_y, mask=m_v, other=0.0)
        f_q = feature(b_q.to(tl.float32), PHI, EXACT)
        if NORMALIZE:
            f_q *= tl.load(reciprocal_ptr, mask=m_c, other=0.0)[:, None]
        b_q = f_q.to(dtype)
        if GATE != "none":
            G, total = cumulated(gate_ptr, o_c, n_left, GATE)
            b_q = scaled(b_q, tl.exp2(G))
            s *= tl.exp2(total)
            z *= tl.exp2(total)
            sum_of_gates += total
            gate_ptr -= BLOCK_C if GATE == "token" else 0
        if NORMALIZE:
            b_y = tl.load(y_ptr + o_y, mask=m_v, other=0.0)
            e = -tl.sum(b_dy.to(tl.float32) * b_y.to(tl.float32), 1)
            z += tl.sum(b_q.to(tl.float32) * e[:, None], 0)
            reciprocal_ptr -= BLOCK_C
        s = tl.dot(tl.trans(b_q), b_dy, s, input_precision="ieee")
        query_ptr -= BLOCK_C * stride_t
        o_y -= BLOCK_C * (H * V)
    sums_ptr += i_state * (BLOCK_K * BLOCK_V + BLOCK_K)
    tl.store(sums_ptr + o_k[:, None] * BLOCK_V + o_v[None, :], s)
    tl.store(sums_ptr + BLOCK_K * BLOCK_V + o_k, z)
    if GATE != "none":
        tl.store(total_ptr + i_state, sum_of_gates)


@triton.jit
def _scan_kernel(
    states_ptr, total_ptr, ranges_ptr, given_ptr,
    H: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    GATE: tl.constexpr, GIVEN: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Replace the sum over each segment of a sequence by the state before it, in place.

    REVERSE: by the gradient of the state after it. GIVEN: the first one, of each sequence.
    """
    i_h = tl.program_id(0) % H
    i_n = tl.program_id(0) // H
    first, count = tl.load(ranges_ptr + 2 * i_n), tl.load(ranges_ptr + 2 * i_n + 1)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < SIZE
    running = tl.zeros([BLOCK], tl.float32)
    if GIVEN:
        running = tl.load(given_ptr + (i_n.to(tl.int64) * H + i_h) * SIZE + o, mask=m, other=0.0)
    for i in range(count):
        i_s = first + (count - 1 - i if REVERSE else i)
        i_state = i_s.to(tl.int64) * H + i_h
        b = tl.load(states_ptr + i_state * SIZE + o, mask=m, other=0.0)
        tl.store(states_ptr + i_state * SIZE + o, running, mask=m)
        if GATE != "none":
            running *= tl.exp2(tl.load(total_ptr + i_state))
        running += b
