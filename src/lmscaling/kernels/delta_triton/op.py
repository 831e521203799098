"""The gated delta rule as PyTorch operators, for autograd and ``torch.compile``.

Triton is loaded when an operator first runs, so that this module can be imported without it.

Legend: see ``kernels/delta_triton/__init__.py``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CHUNK = 32
"""Tokens of every chunk but the last of a sequence."""
DTYPES = (torch.float32, torch.bfloat16)
WIDEST, WIDEST_FLOAT32 = 128, 64
"""Largest width of keys and values: the state of a head must fit in registers."""


def takes(dtype: torch.dtype, key: int, value: int) -> bool:
    """Whether the kernels support a dtype and widths."""
    widest = WIDEST_FLOAT32 if dtype == torch.float32 else WIDEST
    return dtype in DTYPES and max(key, value) <= widest


@torch.library.custom_op("lmscaling::delta", mutates_args=())
def delta(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    initial_PHKV: Tensor | None,
    lengths: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``kernels/gated_delta/chunked.py``.

    Returns:
        ``y_BTHV`` and ``final_PHKV``; for the backward pass the decays since the start of the
        chunk, ``[B, T, H]`` in float32, without elements if there are none; the inverses,
        ``[N, H, C, C]``; ``u_BTHV``; and the state before each chunk, ``[N, H, K, V]``. No gradient
        flows through these four.
    """
    from lmscaling.kernels.delta_triton import launch

    return launch.forward(
        q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH, initial_PHKV, tuple(lengths), scale
    )


@torch.library.custom_op("lmscaling::delta_backward", mutates_args=())
def delta_backward(
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
    lengths: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta, the log-decays and the initial states."""
    from lmscaling.kernels.delta_triton import launch

    return launch.backward(
        q_BTHK, k_BTHK, v_BTHV, beta_BTH, decay_BTH, inverse_NHCC, u_BTHV, states_NHKV,
        dy_BTHV, dfinal_PHKV, tuple(lengths), scale,
    )  # fmt: skip


@delta.register_fake
def _(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    initial_PHKV: Tensor | None,
    lengths: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (B, T, H, K), V = q_BTHK.shape, v_BTHV.shape[3]
    sequences = list(lengths) or [T] * B
    P, N = len(sequences), sum(-(-n // CHUNK) for n in sequences)
    y, u = (v_BTHV.new_empty(v_BTHV.shape) for _ in range(2))
    final = v_BTHV.new_empty(P, H, K, V, dtype=torch.float32)
    decay = beta_BTH.new_empty((0,) if log_decay_BTH is None else (B, T, H))
    return y, final, decay, v_BTHV.new_empty(N, H, CHUNK, CHUNK), u, v_BTHV.new_empty(N, H, K, V)


@delta_backward.register_fake
def _(
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
    lengths: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    P = len(lengths) or q_BTHK.shape[0]
    given = (q_BTHK, k_BTHK, v_BTHV, beta_BTH, decay_BTH)
    dq, dk, dv, dbeta, dg = (x.new_empty(x.shape) for x in given)
    dinitial = states_NHKV.new_empty(P, *states_NHKV.shape[1:], dtype=torch.float32)
    return dq, dk, dv, dbeta, dg, dinitial


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, beta, decays, initial, ctx.lengths, ctx.scale = inputs
    ctx.given = decays is not None, initial is not None
    ctx.save_for_backward(q, k, v, beta, *output[2:])
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, dy: Tensor | None, dfinal: Tensor | None, *unused: None
) -> tuple[Tensor | None, ...]:
    if dy is None and dfinal is None:
        return (None,) * 8
    saved = ctx.saved_tensors
    dy = torch.zeros_like(saved[2]) if dy is None else dy
    *made, dg, dinitial = delta_backward(*saved, dy, dfinal, ctx.lengths, ctx.scale)
    decays, initial = ctx.given
    given = dg if decays else None, dinitial if initial else None
    return *made, *given, None, None


delta.register_autograd(_gradients, setup_context=_keep)
