"""The gated delta rule chunk by chunk in plain PyTorch; autograd computes the gradients.

Legend and equations: see ``kernels/delta_triton/__init__.py``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmscaling.kernels import at_least_float32
from lmscaling.kernels.delta_triton.op import CHUNK
from lmscaling.kernels.gated.plain import cut


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None = None,
    initial_PHKV: Tensor | None = None,
    lengths: Sequence[int] = (),
    scale: float | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """``y_BTHV``, and the state after each sequence in at least float32; see ``chunked.attend``."""
    factor = q_BTHK.shape[3] ** -0.5 if scale is None else scale
    if not lengths:
        tokens = (q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH)
        return _sequences(*tokens, initial_PHKV, factor, chunk)
    made, first = [], 0
    q, k, v, beta = (x.flatten(0, 1) for x in (q_BTHK, k_BTHK, v_BTHV, beta_BTH))
    g = torch.zeros_like(beta) if log_decay_BTH is None else log_decay_BTH.flatten(0, 1)
    for i, n in enumerate(lengths):
        part = [x[None, first : first + n] for x in (q, k, v, beta, g)]
        initial = None if initial_PHKV is None else initial_PHKV[i : i + 1]
        made.append(_sequences(part[0], part[1], part[2], part[3], part[4], initial, factor, chunk))
        first += n
    y, final = zip(*made, strict=True)
    return torch.cat(y, 1).view(v_BTHV.shape), torch.cat(final)


def _sequences(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    initial_BHKV: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    T = q_BTHK.shape[1]
    q, k, v = (cut(at_least_float32(x), min(chunk, T)) for x in (q_BTHK, k_BTHK, v_BTHV))
    beta = cut(beta_BTH.to(q.dtype).unsqueeze(-1), min(chunk, T))
    g = torch.zeros_like(beta_BTH) if log_decay_BTH is None else log_decay_BTH
    decay = cut(g.to(q.dtype).unsqueeze(-1), min(chunk, T)).cumsum(3)
    lower = torch.ones(q.shape[3], q.shape[3], dtype=torch.bool, device=q.device).tril()
    between = (decay - decay.mT).masked_fill(~lower, float("-inf")).exp()
    rows = torch.cat([beta * v, beta * decay.exp() * k], -1)
    # The solver takes the diagonal as ones and reads nothing above it.
    system = beta * (k @ k.mT) * between
    solved = torch.linalg.solve_triangular(system, rows, upper=False, unitriangular=True)
    values, keys = solved.split([v.shape[-1], k.shape[-1]], -1)
    weights = scale * (q @ k.mT) * between
    reads, last = scale * decay.exp() * q, decay[..., -1:, :]
    writes = ((last - decay).exp() * k).mT
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    state = state if initial_BHKV is None else state + initial_BHKV
    y_N = []
    # Unbound, because the gradient of an index is a tensor as large as what it was taken from.
    chunks = (x.unbind(2) for x in (values, keys, reads, weights, last.exp(), writes))
    for value, key, read, weight, kept, write in zip(*chunks, strict=True):
        u = value - key @ state
        y_N.append(read @ state + weight @ u)
        state = kept * state + write @ u
    return torch.cat(y_N, 2)[:, :, :T].transpose(1, 2).to(v_BTHV.dtype), state
