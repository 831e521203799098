"""Forward kernels: the inverse of every chunk, then the scan over the chunks of each segment."""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from lmscaling.kernels.delta_triton import tiles


@triton.jit(do_not_specialize=["T"])
def _delta_prepare_kernel(
    k_ptr,  # [B, T, H, K]
    beta_ptr,  # [B, T, H], float32
    g_ptr,  # [B, T, H], float32: log-decays; only if GATE
    decay_ptr,  # [B, T, H], float32: their sum since the start of the chunk; only if GATE
    inverse_ptr,  # [N, H, C, C]
    chunks_ptr,  # [N, 3], int32: sequence, start, length
    T,
    GATE: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_h, i_n = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    i_t = tl.load(chunks_ptr + 3 * i_n).to(tl.int64) * T + tl.load(chunks_ptr + 3 * i_n + 1)
    n_token = tl.load(chunks_ptr + 3 * i_n + 2)
    i_row = i_t * H + i_h
    o_c, o_k = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    m_c = o_c < n_token
    b_k = tiles.load(k_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
    beta = tl.load(beta_ptr + i_row + o_c * H, mask=m_c, other=0.0)
    b_l = tl.dot(b_k, tl.trans(b_k), input_precision="tf32x3") * beta[:, None]
    g = tl.zeros([BLOCK_C], tl.float32)
    if GATE:
        g = tl.cumsum(tl.load(g_ptr + i_row + o_c * H, mask=m_c, other=0.0), 0)
        tl.store(decay_ptr + i_row + o_c * H, g, mask=m_c)
    b_l *= tiles.between(g[:, None], g[None, :], o_c[:, None] > o_c[None, :], GATE)
    b_x = tiles.inverse(b_l, BLOCK_C)
    inverse_ptr += (i_n * H + i_h) * BLOCK_C * BLOCK_C
    tiles.store(inverse_ptr, b_x, BLOCK_C, BLOCK_C, o_c, BLOCK_C, BLOCK_C)


@triton.jit(do_not_specialize=["T", "scale"])
def _delta_scan_kernel(
    q_ptr,  # [B, T, H, K]
    k_ptr,  # [B, T, H, K]
    v_ptr,  # [B, T, H, V]
    beta_ptr,  # [B, T, H], float32
    decay_ptr,  # [B, T, H], float32; only if GATE
    inverse_ptr,  # [N, H, C, C]
    initial_ptr,  # [P, H, K, V], float32; only if GIVEN
    table_ptr,  # [P, 4], int32: sequence, start, length, first chunk
    y_ptr,  # [B, T, H, V]
    u_ptr,  # [B, T, H, V]
    states_ptr,  # [N, H, K, V]: the state before each chunk
    final_ptr,  # [P, H, K, V], float32
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
    i_state = tl.load(table_ptr + 4 * i_p + 3).to(tl.int64) * H + i_h
    i_row = i_t * H + i_h
    dtype = q_ptr.dtype.element_ty
    m_causal = o_c[:, None] >= o_c[None, :]
    s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if GIVEN:
        s = tiles.load(initial_ptr + (i_p * H + i_h) * K * V, K, V, o_v, V, BLOCK_K)

    for i_c in range(0, length, BLOCK_C):
        n_token = tl.minimum(length - i_c, BLOCK_C)
        b_s = s.to(dtype)
        tiles.store(states_ptr + i_state * K * V, b_s, K, V, o_v, V, BLOCK_K)
        b_q = tiles.load(q_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
        b_k = tiles.load(k_ptr + i_row * K, n_token, H * K, o_k, K, BLOCK_C)
        b_v = tiles.load(v_ptr + i_row * V, n_token, H * V, o_v, V, BLOCK_C)
        o_x = i_state * BLOCK_C * BLOCK_C
        b_x = tiles.load(inverse_ptr + o_x, BLOCK_C, BLOCK_C, o_c, BLOCK_C, BLOCK_C)
        beta = tl.load(beta_ptr + i_row + o_c * H, mask=o_c < n_token, other=0.0)
        g, last = tiles.decays(decay_ptr + i_row, n_token, H, BLOCK_C, GATE)

        b_e = tl.dot(b_k, b_s, input_precision="tf32x3") * tl.exp(g)[:, None]
        b_e = (b_v.to(tl.float32) - b_e) * beta[:, None]
        b_u = tl.dot(b_x, b_e.to(dtype), input_precision="tf32x3")
        tiles.store(u_ptr + i_row * V, b_u, n_token, H * V, o_v, V, BLOCK_C)
        b_a = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3")
        b_a *= tiles.between(g[:, None], g[None, :], m_causal, GATE) * scale
        b_y = tl.dot(b_q, b_s, input_precision="tf32x3") * (tl.exp(g) * scale)[:, None]
        b_y = tl.dot(b_a.to(dtype), b_u.to(dtype), b_y, input_precision="tf32x3")
        tiles.store(y_ptr + i_row * V, b_y, n_token, H * V, o_v, V, BLOCK_C)
        b_u = (b_u * tl.exp(last - g)[:, None]).to(dtype)
        s = tl.dot(tl.trans(b_k), b_u, s * tl.exp(last), input_precision="tf32x3")
        i_row += BLOCK_C * H
        i_state += H
    tiles.store(final_ptr + (i_p * H + i_h) * K * V, s, K, V, o_v, V, BLOCK_K)
