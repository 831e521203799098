"""Backward kernels: the scan in reverse, then the gradients of every chunk."""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from lmscaling.kernels.delta_triton import tiles


@triton.jit(do_not_specialize=["T", "scale"])
def _delta_scan_backward_kernel(
    q_ptr,  # [B, T, H, K]
    k_ptr,  # [B, T, H, K]
    dy_ptr,  # [B, T, H, V]
    beta_ptr,  # [B, T, H], float32
    decay_ptr,  # [B, T, H], float32; only if GATE
    inverse_ptr,  # [N, H, C, C]
    dfinal_ptr,  # [P, H, K, V], float32; only if GIVEN
    table_ptr,  # [P, 4], int32: sequence, start, length, first chunk
    de_ptr,  # [B, T, H, V]
    dstates_ptr,  # [N, H, K, V]: the gradient of the state after each chunk
    dinitial_ptr,  # [P, H, K, V], float32
    T,
    scale,
    GATE: tl.constexpr,
    GIVEN: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    SPLITS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    i_h = tl.program_id(0) // SPLITS % H
    i_p = (tl.program_id(0) // SPLITS // H).to(tl.int64)
    o_c, o_k = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    o_v = tl.program_id(0) % SPLITS * BLOCK_V + tl.arange(0, BLOCK_V)
    i_t = tl.load(table_ptr + 4 * i_p).to(tl.int64) * T + tl.load(table_ptr + 4 * i_p + 1)
    length = tl.load(table_ptr + 4 * i_p + 2)
    n_chunk = tl.cdiv(length, BLOCK_C)
    i_state = (tl.load(table_ptr + 4 * i_p + 3).to(tl.int64) + n_chunk - 1) * H + i_h
    i_row = (i_t + (n_chunk - 1) * BLOCK_C) * H + i_h
    dtype = q_ptr.dtype.element_ty
    m_causal = o_c[:, None] <= o_c[None, :]
    r = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if GIVEN:
        r = tiles.load(dfinal_ptr + (i_p * H + i_h) * K * V, K, V, o_v, V, BLOCK_K)

    for i_c in range(n_chunk):
        n_token = tl.minimum(length - (n_chunk - 1 - i_c) * BLOCK_C, BLOCK_C)
        b_r = r.to(dtype)
        tiles.store(dstates_ptr + i_state * K * V, b_r, K, V, o_v, V, BLOCK_K)
        b_q = tiles.load(q_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
        b_k = tiles.load(k_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
        b_dy = tiles.load(dy_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        o_x = i_state * BLOCK_C * BLOCK_C
        b_x = tiles.load(inverse_ptr + o_x, BLOCK_C, BLOCK_C, o_c, BLOCK_C, BLOCK_C)
        beta = tl.load(beta_ptr + i_row + o_c * H, mask=o_c < n_token, other=0.0)
        g, last = tiles.decays(decay_ptr + i_row, n_token, H, BLOCK_C, GATE)

        # Weights are computed transposed, with keys along the rows.
        b_a = tl.dot(b_k, tl.trans(b_q), input_precision="tf32x3")
        b_a *= tiles.between(g[None, :], g[:, None], m_causal, GATE) * scale
        b_du = tl.dot(b_k, b_r, input_precision="tf32x3") * tl.exp(last - g)[:, None]
        b_du = tl.dot(b_a.to(dtype), b_dy, b_du, input_precision="tf32x3")
        b_de = tl.dot(tl.trans(b_x), b_du.to(dtype), input_precision="tf32x3")
        tiles.store(de_ptr + i_row * V, b_de, n_token, H * V, o_v, V, BLOCK_C)
        b_dy = (b_dy.to(tl.float32) * (tl.exp(g) * scale)[:, None]).to(dtype)
        b_de = (b_de * (tl.exp(g) * -beta)[:, None]).to(dtype)
        r = tl.dot(tl.trans(b_q), b_dy, r * tl.exp(last), input_precision="tf32x3")
        r = tl.dot(tl.trans(b_k), b_de, r, input_precision="tf32x3")
        i_row -= BLOCK_C * H
        i_state -= H
    tiles.store(dinitial_ptr + (i_p * H + i_h) * K * V, r, K, V, o_v, V, BLOCK_K)


@triton.jit(do_not_specialize=["T", "scale"])
def _delta_gradients_kernel(
    q_ptr,  # [B, T, H, K]
    k_ptr,  # [B, T, H, K]
    v_ptr,  # [B, T, H, V]
    dy_ptr,  # [B, T, H, V]
    u_ptr,  # [B, T, H, V]
    de_ptr,  # [B, T, H, V]
    beta_ptr,  # [B, T, H], float32
    decay_ptr,  # [B, T, H], float32; only if GATE
    states_ptr,  # [N, H, K, V]: the state before each chunk
    dstates_ptr,  # [N, H, K, V]: the gradient of the state after each chunk
    chunks_ptr,  # [N, 3], int32: sequence, start, length
    dq_ptr,  # [B, T, H, K]
    dk_ptr,  # [B, T, H, K]
    dv_ptr,  # [B, T, H, V]
    dbeta_ptr,  # [B, T, H], float32
    dg_ptr,  # [B, T, H], float32; only if GATE
    T,
    scale,
    GATE: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_h, i_n = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    i_t = tl.load(chunks_ptr + 3 * i_n).to(tl.int64) * T + tl.load(chunks_ptr + 3 * i_n + 1)
    n_token = tl.load(chunks_ptr + 3 * i_n + 2)
    i_row = i_t * H + i_h
    o_c, o_k = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    m_c = o_c < n_token
    dtype = q_ptr.dtype.element_ty
    states_ptr += (i_n * H + i_h) * K * V
    dstates_ptr += (i_n * H + i_h) * K * V
    beta = tl.load(beta_ptr + i_row + o_c * H, mask=m_c, other=0.0)

    # dA, -dL, their transposes, and the parts of the gradients of q and k that go through states.
    zeros = tl.zeros([BLOCK_C, BLOCK_C], tl.float32)
    b_da, b_da_t, b_dl, b_dl_t = zeros, zeros, zeros, zeros
    zeros = tl.zeros([BLOCK_C, BLOCK_K], tl.float32)
    b_dq, b_read, b_written = zeros, zeros, zeros
    dbeta = tl.zeros([BLOCK_C], tl.float32)
    kept = tl.zeros([BLOCK_K], tl.float32)
    for i_v in range(0, V, BLOCK_V):
        o_v = i_v + tl.arange(0, BLOCK_V)
        b_v = tiles.load(v_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        b_dy = tiles.load(dy_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        b_u = tiles.load(u_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        b_de = tiles.load(de_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        b_s = tiles.load(states_ptr, K, V, o_v, V, BLOCK_K)
        b_r = tiles.load(dstates_ptr, K, V, o_v, V, BLOCK_K)
        b_da = tl.dot(b_dy, tl.trans(b_u), b_da, input_precision="tf32x3")
        b_da_t = tl.dot(b_u, tl.trans(b_dy), b_da_t, input_precision="tf32x3")
        b_dl = tl.dot(b_de, tl.trans(b_u), b_dl, input_precision="tf32x3")
        b_dl_t = tl.dot(b_u, tl.trans(b_de), b_dl_t, input_precision="tf32x3")
        b_dq = tl.dot(b_dy, tl.trans(b_s), b_dq, input_precision="tf32x3")
        b_read = tl.dot(b_de, tl.trans(b_s), b_read, input_precision="tf32x3")
        b_written = tl.dot(b_u, tl.trans(b_r), b_written, input_precision="tf32x3")
        dbeta += tl.sum(b_v.to(tl.float32) * b_de.to(tl.float32), 1)
        if GATE:
            kept += tl.sum(b_s.to(tl.float32) * b_r.to(tl.float32), 1)
        b_dv = b_de.to(tl.float32) * beta[:, None]
        tiles.store(dv_ptr + i_row * V, b_dv, n_token, H * V, o_v, V, BLOCK_C)

    b_q = tiles.load(q_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
    b_k = tiles.load(k_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
    g, last = tiles.decays(decay_ptr + i_row, n_token, H, BLOCK_C, GATE)
    o_i, o_j = o_c[:, None], o_c[None, :]
    b_da *= tiles.between(g[:, None], g[None, :], o_i >= o_j, GATE) * scale
    b_da_t *= tiles.between(g[None, :], g[:, None], o_i <= o_j, GATE) * scale
    b_dl *= -tiles.between(g[:, None], g[None, :], o_i > o_j, GATE)
    b_dl_t *= -tiles.between(g[None, :], g[:, None], o_i < o_j, GATE) * beta[None, :]
    b_dq *= (tl.exp(g) * scale)[:, None]
    b_read *= -tl.exp(g)[:, None]
    b_written *= tl.exp(last - g)[:, None]

    # Row sums: what beta multiplies, and what the decay of a token's row multiplies.
    f_k = b_k.to(tl.float32)
    b_kk = b_dl * tl.dot(b_k, tl.trans(b_k), input_precision="tf32x3")
    erased = tl.sum(b_kk, 1) + tl.sum(b_read * f_k, 1)
    dbeta += erased
    tl.store(dbeta_ptr + i_row + o_c * H, dbeta, mask=m_c)
    if GATE:
        b_p = b_da * tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3")
        written = tl.sum(b_written * f_k, 1)
        dg = tl.sum(b_p, 1) - tl.sum(b_p + b_kk * beta[:, None], 0)
        dg += tl.sum(b_dq * b_q.to(tl.float32), 1) + erased * beta
        # What is written at j is decayed by all later tokens, what the state keeps by all.
        later = tl.sum(tl.where(o_i > o_j, written[None, :], 0.0), 1)
        dg = tl.cumsum(dg, 0, reverse=True) + later + tl.sum(kept, 0) * tl.exp(last)
        tl.store(dg_ptr + i_row + o_c * H, dg, mask=m_c)
    b_dl = (b_dl * beta[:, None]).to(dtype)
    b_dq = tl.dot(b_da.to(dtype), b_k, b_dq, input_precision="tf32x3")
    tiles.store(dq_ptr + i_row * K, b_dq, n_token, H * K, o_k, K, BLOCK_C)
    b_dk = b_written + b_read * beta[:, None]
    b_dk = tl.dot(b_da_t.to(dtype), b_q, b_dk, input_precision="tf32x3")
    b_dk = tl.dot(b_dl, b_k, b_dk, input_precision="tf32x3")
    b_dk = tl.dot(b_dl_t.to(dtype), b_k, b_dk, input_precision="tf32x3")
    tiles.store(dk_ptr + i_row * K, b_dk, n_token, H * K, o_k, K, BLOCK_C)
