"""Linear attention in chunks as a PyTorch operator: what is allocated, and which kernels run.

``chunked`` is what callers use, under autograd and ``torch.compile`` as well. It takes packed
queries, keys and values and returns one packed gradient, so neither needs a copy. ``forward`` and
``backward`` launch the kernels of a call. Triton is loaded when they run.

Legend: see ``kernels/chunked_triton/__init__.py``.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton import plan as plans
from lmscaling.kernels.chunked_triton.plan import Config, Plan, Shape, block, choose, state_width

DTYPES = (torch.float32, torch.bfloat16)
WIDEST, WIDEST_FLOAT32 = 128, 64
"""Largest width of keys and values: the state of a head must fit in registers."""
SCAN_ELEMENTS = 1024
"""Of a state that one program of the scan takes."""
GIVEN = "Tensor qkv_BTW, Tensor? log_decay, Tensor? initial, int[] lengths"
GIVEN += ", int heads, int key, str feature_map, bool normalize"
"""What both passes are given, in the language of PyTorch's operators."""


class Forward(NamedTuple):
    """What a forward pass writes; what was not asked for has no elements."""

    y_BTHV: Tensor
    reciprocal_BHT: Tensor
    """1/D, float32; only if normalized."""
    kept: Tensor
    """For the backward pass: states before each chunk, ``[chunks, H, V, K]``."""
    means: Tensor
    """Sums of features and means of values there, float32, ``[chunks, H, K + V]``."""
    final: Tensor
    """State after each sequence, ``[N, H, state_width]``, float32."""


def runs(x: Tensor, key: int, value: int) -> bool:
    """Whether the kernels run on a tensor's device with its dtype and heads of these widths."""
    widest = WIDEST_FLOAT32 if x.dtype == torch.float32 else WIDEST
    return kernels.on_triton_device(x) and x.dtype in DTYPES and max(key, value) <= widest


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
        initial: State before each sequence, ``[N, H, state_width]``, float32, see ``plan.py``;
            zero if not given.
        lengths: Tokens of each sequence, which follow one another in rows; none crosses the end
            of a row. Without lengths each row is a sequence.
        final: Whether to return the state after each sequence.

    Returns:
        ``y_BTHV``, and ``[N, H, state_width]`` states in float32, of which there are none unless
        ``final``.

    Raises:
        ValueError: The feature map is unknown, or the lengths do not divide the rows.

    Cost:
        ``4 B H T (C + K) V`` FLOPs at K = V. ``qkv_BTW`` is read once and y written once.
        Backward ``10 B H T (C + K) V`` FLOPs. It reads ``qkv_BTW``, dy and a state of K V for each
        chunk, which the forward pass has written, and writes the gradient. With segments, the
        forward pass reads keys and values again, and the backward pass queries, y and dy.
    """
    feature_maps.find(feature_map)
    plans.check_lengths(qkv_BTW.shape[0], qkv_BTW.shape[1], lengths)
    given = (qkv_BTW, log_decay, initial, list(lengths), heads, key, feature_map, normalize)
    differs = any(x is not None and x.requires_grad for x in given[:3])
    y_BTHV, _, _, _, states = _chunked(*given, differs and torch.is_grad_enabled(), final)
    return y_BTHV, states


def _read(
    qkv_BTW: Tensor, log_decay: Any, initial: Any, lengths: Sequence[int], *constants: Any
) -> tuple[Shape, Plan, dict[str, Any]]:
    """The further arguments of ``forward`` and ``backward``, from ``GIVEN``."""
    heads, key, feature_map, normalize = constants
    gate = "none" if log_decay is None else "head" if log_decay.dim() == 1 else "token"
    value, same = qkv_BTW.shape[2] // heads - 2 * key, {"normalize": normalize, "gate": gate}
    shape = Shape(heads=heads, key=key, value=value, feature_map=feature_map, **same)
    options = {"log_decay": log_decay, "initial": initial, "lengths": tuple(lengths)}
    return shape, choose(qkv_BTW, shape), options


@torch.library.custom_op(
    "lmscaling::chunked", mutates_args=(),
    schema=f"({GIVEN}, bool keep, bool final) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
def _chunked(*arguments: Any) -> tuple[Tensor, ...]:
    *given, keep, final = arguments
    shape, plan, options = _read(*given)
    return tuple(forward(given[0], shape, plan, keep=keep, final=final, **options))


@_chunked.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, keep, final = arguments
    shape, plan, options = _read(*given)
    return tuple(_made(given[0], shape, plan.chunk, options["lengths"], keep, final))


@torch.library.custom_op(
    "lmscaling::chunked_backward", mutates_args=(),
    schema=f"({GIVEN}, Tensor dy, Tensor? dfinal, Tensor[] made) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _chunked_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *given, dy_BTHV, dfinal, made = arguments
    shape, plan, options = _read(*given)
    made = Forward(*made, final=dy_BTHV.new_empty(0))
    return backward(given[0], dy_BTHV, made, shape, plan, dfinal=dfinal, **options)


@_chunked_backward.register_fake
def _(qkv_BTW: Tensor, log_decay: Any, initial: Any, *options: Any) -> tuple[Tensor, ...]:
    sizes = [(0,) if x is None else x.shape for x in (log_decay, initial)]
    dgate, dinitial = (qkv_BTW.new_empty(size, dtype=torch.float32) for size in sizes)
    return torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format), dgate, dinitial


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv_BTW, log_decay, initial, *ctx.constants, _, ctx.final = inputs
    ctx.save_for_backward(qkv_BTW, log_decay, initial, *output[:4])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    dy_BTHV, dfinal = gradients[0], gradients[4] if ctx.final else None
    qkv_BTW, log_decay, initial, *made = ctx.saved_tensors
    if dy_BTHV is None and dfinal is None:
        return (None,) * 10
    if dy_BTHV is None:
        dy_BTHV = torch.zeros_like(made[0])
    given = (qkv_BTW, log_decay, initial, *ctx.constants)
    dqkv_BTW, dgate, dinitial = _chunked_backward(*given, dy_BTHV, dfinal, made)
    dgate = None if log_decay is None else dgate.to(log_decay.dtype)
    return dqkv_BTW, dgate, None if initial is None else dinitial, *(None,) * 7


_chunked.register_autograd(_backward, setup_context=_setup)


def forward(
    qkv_BTW: Tensor,
    shape: Shape,
    plan: Plan,
    *,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    lengths: tuple[int, ...] = (),
    keep: bool = False,
    final: bool = False,
) -> Forward:
    """Launch the forward pass; tensors and lengths are those of ``chunked``.

    ``keep`` says whether to write what the backward pass reads.
    """
    from lmscaling.kernels.chunked_triton.forward import _chunked_forward_kernel
    from lmscaling.kernels.chunked_triton.sums import _sums_forward_kernel

    call = _Call(qkv_BTW, shape, plan, log_decay, lengths)
    made = _made(qkv_BTW, shape, plan.chunk, lengths, keep, final)
    is_cut = final and call.segments.is_split
    states = call.empty(len(call.segments.table), *made.final.shape[1:]) if is_cut else made.final
    given = {
        "y": made.y_BTHV,
        "reciprocal": made.reciprocal_BHT,
        "before": call.at_borders(_sums_forward_kernel, {}, initial, reverse=False),
        "kept": made.kept,
        "means": made.means,
        "final": states,
    }
    flags = {"BEFORE": given["before"] is not None, "KEEP": keep, "FINAL": final}
    call.launch(_chunked_forward_kernel, plan.forward, given, flags)
    return made._replace(final=states[call.segments.ranges.sum(1) - 1]) if is_cut else made


def _made(
    qkv_BTW: Tensor, shape: Shape, chunk: int, lengths: Sequence[int], keep: bool, final: bool
) -> Forward:
    """Memory for what a forward pass writes."""
    B, T, _ = qkv_BTW.shape
    H, K, V, sequences = shape.heads, block(shape.key), block(shape.value), lengths or [T] * B
    chunks = sum(-(-n // chunk) for n in sequences) if keep else 0
    single = partial(qkv_BTW.new_empty, dtype=torch.float32)
    return Forward(
        y_BTHV=qkv_BTW.new_empty(B, T, H, shape.value),
        reciprocal_BHT=single(B, H, T if shape.normalize else 0),
        kept=qkv_BTW.new_empty(chunks, H, V, K),
        means=single(chunks, H, K + V if shape.normalize else 0),
        final=single(len(sequences) if final else 0, H, state_width(shape)),
    )


def backward(
    qkv_BTW: Tensor,
    dy_BTHV: Tensor,
    made: Forward,
    shape: Shape,
    plan: Plan,
    *,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    dfinal: Tensor | None = None,
    lengths: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the backward pass; ``forward`` made ``made`` of the same arguments, with ``keep``.

    Returns:
        The gradients of the packed rows, contiguous; of ``log_decay``, and of ``initial``, in
        float32. What was not given has a gradient without elements.
    """
    from lmscaling.kernels.chunked_triton.backward import _chunked_backward_kernel
    from lmscaling.kernels.chunked_triton.sums import _sums_backward_kernel

    call = _Call(qkv_BTW, shape, plan, log_decay, lengths)
    assert made.kept.numel()
    B, T, _ = qkv_BTW.shape
    dy_BTHV = dy_BTHV.contiguous()
    dqkv_BTW = torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format)
    dgate = call.empty(B, shape.heads, T if log_decay is not None else 0)
    count = len(call.segments.table) if initial is not None else 0
    dbefore = call.empty(count, shape.heads, state_width(shape))
    read = {"y": made.y_BTHV, "dy": dy_BTHV, "reciprocal": made.reciprocal_BHT}
    after = call.at_borders(_sums_backward_kernel, read, dfinal, reverse=True)
    read |= {"kept": made.kept, "means": made.means, "after": after}
    written = {"dqkv": dqkv_BTW, "dgate": dgate, "dbefore": dbefore}
    flags = {"BEFORE": initial is not None, "AFTER": after is not None}
    call.launch(_chunked_backward_kernel, plan.backward, read | written, flags)
    dgate = dgate.sum((0, 2)) if shape.gate == "head" else dgate.transpose(1, 2).contiguous()
    if initial is not None and call.segments.is_split:
        dbefore = dbefore[call.segments.ranges[:, 0]]
    return dqkv_BTW, dgate, dbefore


def state(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sums over all tokens of phi(k) v^T, ``[B, H, K, V]``, and of phi(k), ``[B, H, K]``."""
    from lmscaling.kernels.chunked_triton.sums import _sums_forward_kernel

    call = _Call(qkv_BTW, shape, plan, None, ())
    sums = call.sums(_sums_forward_kernel, {})[0].unflatten(0, (qkv_BTW.shape[0], -1)).sum(1)
    K, V = block(shape.key), block(shape.value)
    kv_BHX, k_BHK = sums.split([K * V, K], -1)
    kv_BHKV = kv_BHX.unflatten(-1, (K, V))[..., : shape.key, : shape.value]
    return kv_BHKV.contiguous(), k_BHK[..., : shape.key].contiguous()


class _Call:
    """The arguments that all kernels of one call share."""

    def __init__(
        self, qkv_BTW: Tensor, shape: Shape, plan: Plan, log_decay: Any, lengths: tuple[int, ...]
    ) -> None:
        B, T, _ = qkv_BTW.shape
        self.qkv_BTW, self.shape, self.plan, self.gate = qkv_BTW, shape, plan, None
        if log_decay is not None:
            gate = log_decay.float() * math.log2(math.e)
            self.gate = gate if shape.gate == "head" else gate.transpose(1, 2).contiguous()
        self.segments = plans.cut(B, T, lengths, plan.segment_tokens(T), plan.chunk, qkv_BTW.device)

    def empty(self, *sizes: int) -> Tensor:
        return self.qkv_BTW.new_empty(*sizes, dtype=torch.float32)

    def at_borders(
        self, kernel: Any, read: dict[str, Any], given: Tensor | None, *, reverse: bool
    ) -> Tensor | None:
        """The state before each segment, or in reverse the gradient of the one after it; None if
        all are zero. ``given`` is that of each sequence, and the kernel sums over a segment."""
        from lmscaling.kernels.chunked_triton.sums import _scan_kernel

        given = None if given is None else given.contiguous()
        if not self.segments.is_split:
            return given
        states, total = self.sums(kernel, read)
        size, heads = state_width(self.shape), self.shape.heads
        grid = (len(self.segments.ranges) * heads, -(-size // SCAN_ELEMENTS))
        scan: Any = _scan_kernel
        with torch.cuda.device_of(states):
            scan[grid](
                states, total, self.segments.ranges, self.empty(0) if given is None else given,
                H=heads, SIZE=size, BLOCK=SCAN_ELEMENTS,
                GATE=self.shape.gate, GIVEN=given is not None, REVERSE=reverse,
            )  # fmt: skip
        return states

    def sums(self, kernel: Any, read: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Sums over each segment, and those of its gates."""
        S, H = len(self.segments.table), self.shape.heads
        sums = self.empty(S, H, state_width(self.shape))
        total = self.empty(S, H if self.gate is not None else 0)
        self.launch(kernel, self.plan.forward, read | {"sums": sums, "total": total}, {})
        return sums, total

    def launch(
        self, kernel: Any, config: Config, given: dict[str, Any], flags: dict[str, bool]
    ) -> None:
        """Launch one program per segment and head, heads fastest, with what the kernel names of the
        tensors and constants; a tensor that is missing or None is not read."""
        qkv_BTW, shape, unread = self.qkv_BTW, self.shape, self.empty(0)
        given = given | {"qkv": qkv_BTW, "gate": self.gate, "table": self.segments.table}
        names = [name.removesuffix("_ptr") for name in kernel.arg_names if name.endswith("_ptr")]
        constants = {
            "H": shape.heads,
            "K": shape.key,
            "V": shape.value,
            "BLOCK_C": self.plan.chunk,
            "BLOCK_K": block(shape.key),
            "BLOCK_V": block(shape.value),
            "PHI": shape.feature_map,
            "EPSILON": feature_maps.find(shape.feature_map).epsilon,
            "NORMALIZE": shape.normalize,
            "GATE": shape.gate,
            "PIN": qkv_BTW.is_cuda and qkv_BTW.dtype == torch.bfloat16 and not torch.version.hip,
            **flags,
        }
        with torch.cuda.device_of(qkv_BTW):
            kernel[(len(self.segments.table) * shape.heads,)](
                *(unread if given.get(name) is None else given[name] for name in names),
                *qkv_BTW.stride()[:2], qkv_BTW.shape[1],
                **{name: value for name, value in constants.items() if name in kernel.arg_names},
                num_warps=config.warps, num_stages=config.stages,
            )  # fmt: skip
