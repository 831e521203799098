"""Launch the kernels of one call."""

from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels.delta_triton.backward import (
    _delta_gradients_kernel,
    _delta_scan_backward_kernel,
)
from lmscaling.kernels.delta_triton.forward import _delta_prepare_kernel, _delta_scan_kernel
from lmscaling.kernels.delta_triton.op import CHUNK
from lmscaling.kernels.segments import cut

OPTIONS = {
    # (dtype, padded width): columns of values of a program, warps of the scans
    (torch.bfloat16, 16): (16, 4),
    (torch.bfloat16, 32): (32, 4),
    (torch.bfloat16, 64): (64, 4),
    (torch.bfloat16, 128): (32, 8),
    (torch.float32, 16): (16, 4),
    (torch.float32, 32): (16, 4),
    (torch.float32, 64): (16, 4),
}
"""Chosen by compiling for sm_80 and sm_90 (benchmarks/offline.csv), not by timing: the fewest
spills. Columns of values do not depend on each other, so programs can share those of a head."""
WARPS_OF_CHUNKS = {_delta_prepare_kernel: 4, _delta_gradients_kernel: 8}
"""Of the kernels whose programs compute one chunk each."""


def forward(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    initial_PHKV: Tensor | None,
    lengths: tuple[int, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y, final states, decays, inverses, u and states; see ``op.delta``."""
    table, chunks = _tables(q_BTHK, lengths)
    q, k, v, beta = (x.contiguous() for x in (q_BTHK, k_BTHK, v_BTHV, beta_BTH))
    (T, H, K), V = q.shape[1:], v.shape[3]
    g = beta.new_empty(0) if log_decay_BTH is None else log_decay_BTH.contiguous()
    decay, y, u = torch.empty_like(g), torch.empty_like(v), torch.empty_like(v)
    inverse, states = v.new_empty(len(chunks), H, CHUNK, CHUNK), v.new_empty(len(chunks), H, K, V)
    final = v.new_empty(len(table), H, K, V, dtype=torch.float32)
    initial = final if initial_PHKV is None else initial_PHKV.contiguous()
    constants = _constants(v.dtype, H, K, V, g.numel() > 0, initial_PHKV is not None)
    arguments = (k, beta, g, decay, inverse, chunks, T)
    _launch(_delta_prepare_kernel, len(chunks) * H, constants, *arguments)
    arguments = (q, k, v, beta, decay, inverse, initial, table, y, u, states, final, T, scale)
    _launch(_delta_scan_kernel, len(table) * H * _splits(constants), constants, *arguments)
    return y, final, decay, inverse, u, states


def backward(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    decay_BTH: Tensor,
    inverse_NHCC: Tensor,
    u_BTHV: Tensor,
    states_NHKV: Tensor,
    dy_BTHV: Tensor,
    dfinal_PHKV: Tensor | None,
    lengths: tuple[int, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta, the log-decays and the initial states."""
    table, chunks = _tables(q_BTHK, lengths)
    given = (q_BTHK, k_BTHK, v_BTHV, dy_BTHV, beta_BTH)
    q, k, v, dy, beta = (x.contiguous() for x in given)
    (T, H, K), V = q.shape[1:], v.shape[3]
    dq, dk, dv, de = (torch.empty_like(x) for x in (q, k, v, v))
    dbeta, dg, dstates = (torch.empty_like(x) for x in (beta, decay_BTH, states_NHKV))
    dinitial = v.new_empty(len(table), H, K, V, dtype=torch.float32)
    dfinal = dinitial if dfinal_PHKV is None else dfinal_PHKV.contiguous()
    constants = _constants(v.dtype, H, K, V, dg.numel() > 0, dfinal_PHKV is not None)
    arguments = (q, k, dy, beta, decay_BTH, inverse_NHCC, dfinal, table, de, dstates, dinitial)
    programs = len(table) * H * _splits(constants)
    _launch(_delta_scan_backward_kernel, programs, constants, *arguments, T, scale)
    arguments = (q, k, v, dy, u_BTHV, de, beta, decay_BTH, states_NHKV, dstates, chunks)
    made = (dq, dk, dv, dbeta, dg)
    _launch(_delta_gradients_kernel, len(chunks) * H, constants, *arguments, *made, T, scale)
    return *made, dinitial


def _tables(q_BTHK: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The tables of the segments and of their chunks; each sequence is one segment."""
    B, T = q_BTHK.shape[:2]
    segments = cut(B, T, lengths, -(-T // CHUNK) * CHUNK, CHUNK, q_BTHK.device)
    return segments.table, segments.chunks


def _launch(kernel: Any, programs: int, constants: dict[str, Any], *arguments: Any) -> None:
    fixed = {name: value for name, value in constants.items() if name in kernel.arg_names}
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, **fixed, num_warps=_warps(kernel, constants), num_stages=1)


def _warps(kernel: Any, constants: dict[str, int]) -> int:
    return WARPS_OF_CHUNKS.get(kernel) or constants["WARPS"]


def _splits(constants: dict[str, Any]) -> int:
    """Programs that share the values of a head."""
    return -(-constants["V"] // constants["BLOCK_V"])


def _constants(
    dtype: torch.dtype, H: int, K: int, V: int, gate: bool, given: bool
) -> dict[str, Any]:
    """The constants of all kernels, and the warps of the scans; products need at least 16."""
    key, value = (max(16, 1 << (width - 1).bit_length()) for width in (K, V))
    split, warps = OPTIONS[dtype, max(key, value)]
    return {
        "GATE": gate,
        "GIVEN": given,
        "H": H,
        "K": K,
        "V": V,
        "BLOCK_C": CHUNK,
        "BLOCK_K": key,
        "BLOCK_V": min(split, value),
        "WARPS": warps,
    }
