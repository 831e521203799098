"""Linear attention as a PyTorch operator, for autograd and ``torch.compile``.

The operator takes packed queries, keys and values and returns one packed gradient, so neither needs
a copy. Triton is loaded when it runs. Its public function is ``kernels.linear_attention``.

Legend: see ``kernels/chunked_triton/__init__.py``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels.chunked_triton.plan import Plan, Shape, block, choose, state_width

DTYPES = (torch.float32, torch.bfloat16)
WIDEST, WIDEST_FLOAT32 = 128, 64
"""Largest width of keys and values: the state of a head must fit in registers."""


def takes(dtype: torch.dtype, key: int, value: int) -> bool:
    """Whether the kernels support a dtype and widths."""
    widest = WIDEST_FLOAT32 if dtype == torch.float32 else WIDEST
    return dtype in DTYPES and max(key, value) <= widest


@torch.library.custom_op("lmscaling::chunked", mutates_args=())
def _chunked(
    qkv_BTW: Tensor,
    log_decay: Tensor | None,
    initial: Tensor | None,
    lengths: Sequence[int],
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
    keep: bool,
    final: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from lmscaling.kernels.chunked_triton import launch

    shape = _shape(qkv_BTW, log_decay, heads, key, feature_map, normalize)
    plan = _plan(qkv_BTW, shape, initial is not None or final)
    given: Any = {"log_decay": log_decay, "initial": initial, "lengths": tuple(lengths)}
    keep = keep and plan.one_pass
    made = launch.forward(qkv_BTW, shape, plan, keep=keep, final=final, **given)
    return made.y_BTHV, made.reciprocal_BHT, made.kept, made.means, made.final


@torch.library.custom_op("lmscaling::chunked_backward", mutates_args=())
def _chunked_backward(
    qkv_BTW: Tensor,
    dy_BTHV: Tensor,
    dfinal: Tensor | None,
    made: Sequence[Tensor],
    log_decay: Tensor | None,
    initial: Tensor | None,
    lengths: Sequence[int],
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from lmscaling.kernels.chunked_triton import launch

    shape = _shape(qkv_BTW, log_decay, heads, key, feature_map, normalize)
    plan = _plan(qkv_BTW, shape, initial is not None or dfinal is not None)
    given: Any = {"log_decay": log_decay, "initial": initial, "lengths": tuple(lengths)}
    y_BTHV, reciprocal_BHT, kept, means = made
    forward = launch.Forward(y_BTHV, reciprocal_BHT, kept, means, dy_BTHV.new_empty(0))
    result = launch.backward(qkv_BTW, dy_BTHV, forward, shape, plan, dfinal=dfinal, **given)
    return result.dqkv_BTW, result.dgate.contiguous(), result.dinitial


@_chunked.register_fake
def _(
    qkv_BTW: Tensor,
    log_decay: Tensor | None,
    initial: Tensor | None,
    lengths: Sequence[int],
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
    keep: bool,
    final: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, _ = qkv_BTW.shape
    shape = _shape(qkv_BTW, log_decay, heads, key, feature_map, normalize)
    plan = _plan(qkv_BTW, shape, initial is not None or final)
    sequences = list(lengths) or [T] * B
    chunks = sum(-(-n // plan.forward.chunk) for n in sequences) if keep and plan.one_pass else 0
    K, V = block(key), block(shape.value)
    states = len(sequences) if final else 0
    single = torch.float32
    return (
        qkv_BTW.new_empty(B, T, heads, shape.value),
        qkv_BTW.new_empty(B, heads, T if normalize else 0, dtype=single),
        qkv_BTW.new_empty(chunks, heads, V, K),
        qkv_BTW.new_empty(chunks, heads, K + V if normalize else 0, dtype=single),
        qkv_BTW.new_empty(states, heads, state_width(shape), dtype=single),
    )


@_chunked_backward.register_fake
def _(
    qkv_BTW: Tensor,
    dy_BTHV: Tensor,
    dfinal: Tensor | None,
    made: Sequence[Tensor],
    log_decay: Tensor | None,
    initial: Tensor | None,
    lengths: Sequence[int],
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    given = (log_decay, initial)
    sizes = [(0,) if x is None else x.shape for x in given]
    dgate, dinitial = (qkv_BTW.new_empty(size, dtype=torch.float32) for size in sizes)
    return (
        torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format),
        dgate,
        dinitial,
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv_BTW, log_decay, initial, ctx.lengths, *constants, _, ctx.final = inputs
    ctx.constants = constants
    ctx.save_for_backward(qkv_BTW, log_decay, initial, *output[:4])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    dy_BTHV, dfinal = gradients[0], gradients[4] if ctx.final else None
    qkv_BTW, log_decay, initial, *made = ctx.saved_tensors
    none = (None,) * 7
    if dy_BTHV is None and dfinal is None:
        return (None, None, None, *none)
    if dy_BTHV is None:
        dy_BTHV = torch.zeros_like(made[0])
    given = (made, log_decay, initial, ctx.lengths, *ctx.constants)
    dqkv_BTW, dgate, dinitial = _chunked_backward(qkv_BTW, dy_BTHV, dfinal, *given)
    dgate = None if log_decay is None else dgate.to(log_decay.dtype)
    return dqkv_BTW, dgate, None if initial is None else dinitial, *none


_chunked.register_autograd(_backward, setup_context=_setup)


def chunked(
    qkv_BTW: Tensor,
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
    *,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    lengths: Sequence[int] = (),
    final: bool = False,
) -> tuple[Tensor, Tensor]:
    """Linear attention of packed queries, keys, values.

    Args:
        qkv_BTW: Rows of ``heads`` queries, ``heads`` keys and ``heads`` values; float32 or
            bfloat16; any strides but the last, which is 1.
        heads: Number of heads.
        key: Width of a query or key; the rest of a row is values.
        feature_map: A name of ``feature_maps.FEATURE_MAPS``.
        normalize: Divide by the sum of weights.
        log_decay: Natural logarithms of gates, not positive: ``[H]`` or ``[B, T, H]``.
        initial: State before each sequence, ``[N, H, state_width]``, float32, see ``plan.py``.
        lengths: Tokens of each sequence within the rows; without them each row is one.
        final: Whether to return the state after each sequence.

    Returns:
        ``y_BTHV``, and ``[N, H, state_width]`` states in float32, of which there are none unless
        ``final``.

    Cost:
        ``4 B H T (C + K) V`` FLOPs at K = V. ``qkv_BTW`` is read once and y written once.
        Backward ``10 B H T (C + K) V`` FLOPs. In one pass it reads ``qkv_BTW``, dy and a state of
        K V for each chunk, which the forward pass has written, and writes the gradient; in two it
        reads ``qkv_BTW`` and dy twice and no states. With segments, the forward pass reads keys
        and values again, and the backward pass queries, y and dy.
    """
    differs = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (qkv_BTW, log_decay, initial)
    )
    y_BTHV, _, _, _, states = _chunked(
        qkv_BTW, log_decay, initial, list(lengths), heads, key, feature_map, normalize,
        differs, final,
    )  # fmt: skip
    return y_BTHV, states


def _shape(
    qkv_BTW: Tensor,
    log_decay: Tensor | None,
    heads: int,
    key: int,
    feature_map: str,
    normalize: bool,
) -> Shape:
    gate = "none" if log_decay is None else "head" if log_decay.dim() == 1 else "token"
    return Shape(
        heads=heads,
        key=key,
        value=qkv_BTW.shape[2] // heads - 2 * key,
        feature_map=feature_map,
        normalize=normalize,
        gate=gate,
    )


def _plan(qkv_BTW: Tensor, shape: Shape, has_states: bool) -> Plan:
    """Only the backward pass in one kernel has gradients of states."""
    plan = choose(qkv_BTW, shape)
    return plan.in_one_pass() if has_states else plan
