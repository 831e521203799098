"""Launch the kernels of one call."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton.backward import _chunked_backward_kernel
from lmscaling.kernels.chunked_triton.backward_kv import _chunked_backward_kv_kernel
from lmscaling.kernels.chunked_triton.backward_q import _chunked_backward_q_kernel
from lmscaling.kernels.chunked_triton.config import Config
from lmscaling.kernels.chunked_triton.features import LOG2_E
from lmscaling.kernels.chunked_triton.forward import _chunked_forward_kernel
from lmscaling.kernels.chunked_triton.plan import Plan, Shape, block, state_width
from lmscaling.kernels.chunked_triton.sums import (
    _scan_kernel,
    _sums_backward_kernel,
    _sums_forward_kernel,
)
from lmscaling.kernels.segments import Segments, cut

SCAN_ELEMENTS, SCAN_WARPS = 1024, 4
"""Of a state that one program of the scan takes."""


class Forward(NamedTuple):
    """What a forward pass writes; what was not asked for has no elements."""

    y_BTHV: Tensor
    reciprocal_BHT: Tensor
    """1/D, float32; only if normalized."""
    kept: Tensor
    """For the backward pass in one kernel: states before each chunk, ``[chunks, H, V, K]``."""
    means: Tensor
    """Sums of features and means of values there, float32, ``[chunks, H, K + V]``."""
    final: Tensor
    """State after each sequence, ``[N, H, state_width]``, float32."""


class Backward(NamedTuple):
    """What a backward pass writes; what was not asked for has no elements."""

    dqkv_BTW: Tensor
    """Packed and contiguous."""
    dgate: Tensor
    """Gradient of the logarithms, float32: ``[B, T, H]``, or ``[H]`` if ``gate`` is ``"head"``."""
    dinitial: Tensor
    """Gradient of the state before each sequence."""


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
    """Linear attention.

    Args:
        qkv_BTW: Packed queries, keys and values; only the last axis must be contiguous.
        shape: Sizes and options.
        plan: Launch options.
        log_decay: Natural logarithms of the gates, as ``shape.gate`` says: ``[H]`` or
            ``[B, T, H]``; not positive.
        initial: State before each sequence, ``[N, H, state_width]``, float32; zero if not given.
        lengths: Tokens of each sequence, which follow one another in rows; none crosses the end
            of a row. Without lengths each row is a sequence.
        keep: Whether to write what the backward pass in one kernel reads.
        final: Whether to write the state after each sequence.
    """
    B, T, W = qkv_BTW.shape
    assert shape.heads * (2 * shape.key + shape.value) == W
    assert qkv_BTW.stride(2) == 1
    call = _Call(qkv_BTW, shape, plan, log_decay, lengths)
    segments = call.segments
    chunks = len(segments.chunks) if keep else 0
    K, V = block(shape.key), block(shape.value)
    means = K + V if shape.normalize else 0
    rows = segments.count if final else 0
    result = Forward(
        y_BTHV=qkv_BTW.new_empty(B, T, shape.heads, shape.value),
        reciprocal_BHT=call.empty(B, shape.heads, T if shape.normalize else 0),
        kept=qkv_BTW.new_empty(chunks, shape.heads, V, K),
        means=call.empty(chunks, shape.heads, means),
        final=call.empty(rows, shape.heads, state_width(shape)),
    )
    before = call.before(initial)
    call.launch(
        _chunked_forward_kernel,
        plan.forward,
        {"y": result.y_BTHV, "reciprocal": result.reciprocal_BHT, "before": before,
         "kept": result.kept, "means": result.means, "final": result.final},
        {"BEFORE": before is not None, "KEEP": keep, "FINAL": final},
    )  # fmt: skip
    if final and segments.is_split:
        result = result._replace(final=result.final[segments.last])
    return result


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
) -> Backward:
    """The gradients; arguments as those of ``forward``, which has ``made`` what it wrote.

    States that it has not kept are computed again.
    """
    call = _Call(qkv_BTW, shape, plan, log_decay, lengths)
    dqkv_BTW = torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format)
    dy_BTHV = dy_BTHV.contiguous()
    after = call.after(made.y_BTHV, dy_BTHV, made.reciprocal_BHT, dfinal)
    given: dict[str, Tensor | None] = {"dy": dy_BTHV, "dqkv": dqkv_BTW, "after": after}
    given["reciprocal"] = made.reciprocal_BHT
    if not plan.one_pass:
        assert shape.gate == "none"
        given["e"] = torch.empty_like(made.reciprocal_BHT)
        given["before"] = call.before(None)
        flags = {"BEFORE": given["before"] is not None, "AFTER": after is not None}
        call.launch(_chunked_backward_q_kernel, plan.backward_q, given, flags)
        call.launch(_chunked_backward_kv_kernel, plan.backward_kv, given, flags)
        return Backward(dqkv_BTW, call.empty(0), call.empty(0))
    assert plan.forward.chunk == plan.backward.chunk
    if not made.kept.numel():
        options = {"log_decay": log_decay, "initial": initial, "lengths": lengths}
        made = forward(qkv_BTW, shape, plan, keep=True, **options)
    B, T, _ = qkv_BTW.shape
    dgate = call.empty(B, shape.heads, T if log_decay is not None else 0)
    count = call.segments.count if initial is not None else 0
    dbefore = call.empty(count, shape.heads, state_width(shape))
    given |= {"kept": made.kept, "means": made.means}
    given |= {"dgate": dgate, "dbefore": dbefore}
    flags = {"BEFORE": initial is not None, "AFTER": after is not None}
    call.launch(_chunked_backward_kernel, plan.backward, given, flags)
    dgate = dgate.sum((0, 2)) if shape.gate == "head" else dgate.transpose(1, 2)
    if initial is not None and call.segments.is_split:
        dbefore = dbefore[call.segments.first]
    return Backward(dqkv_BTW, dgate, dbefore)


def state(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sums over all tokens of phi(k) v^T, ``[B, H, K, V]``, and of phi(k), ``[B, H, K]``."""
    call = _Call(qkv_BTW, shape, plan, None, ())
    sums = call.sums(_sums_forward_kernel, {})[0].unflatten(0, (qkv_BTW.shape[0], -1)).sum(1)
    K, V = block(shape.key), block(shape.value)
    kv_BHX, k_BHK = sums.split([K * V, K], -1)
    kv_BHKV = kv_BHX.unflatten(-1, (K, V))[..., : shape.key, : shape.value]
    return kv_BHKV.contiguous(), k_BHK[..., : shape.key].contiguous()


class _Call:
    """The arguments that all kernels of one call share."""

    def __init__(
        self,
        qkv_BTW: Tensor,
        shape: Shape,
        plan: Plan,
        log_decay: Tensor | None,
        lengths: tuple[int, ...],
    ) -> None:
        B, T, _ = qkv_BTW.shape
        self.qkv_BTW, self.shape, self.plan = qkv_BTW, shape, plan
        self.gate = None
        if log_decay is not None:
            gate = log_decay.float() * LOG2_E.value
            self.gate = gate if shape.gate == "head" else gate.transpose(1, 2).contiguous()
        chunk = (plan.backward if plan.one_pass else plan.forward).chunk
        tokens = plan.segment_tokens(T)
        self.segments: Segments = cut(B, T, lengths, tokens, chunk, qkv_BTW.device)

    def empty(self, *sizes: int) -> Tensor:
        return self.qkv_BTW.new_empty(*sizes, dtype=torch.float32)

    def before(self, initial: Tensor | None) -> Tensor | None:
        """The state before each segment; None if all are zero."""
        given = None if initial is None else initial.contiguous()
        if not self.segments.is_split:
            return given
        sums, total = self.sums(_sums_forward_kernel, {})
        return self._scan(sums, total, given, reverse=False)

    def after(
        self, y_BTHV: Tensor, dy_BTHV: Tensor, reciprocal_BHT: Tensor, dfinal: Tensor | None
    ) -> Tensor | None:
        """The gradient of the state after each segment; None if all are zero."""
        last = None if dfinal is None else dfinal.contiguous()
        if not self.segments.is_split:
            return last
        given = {"y": y_BTHV, "dy": dy_BTHV, "reciprocal": reciprocal_BHT}
        sums, total = self.sums(_sums_backward_kernel, given)
        return self._scan(sums, total, last, reverse=True)

    def sums(self, kernel: Any, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sums over each segment, and those of its gates."""
        S, H = self.segments.count, self.shape.heads
        sums = self.empty(S, H, state_width(self.shape))
        total = self.empty(S, H if self.gate is not None else 0)
        self.launch(kernel, self.plan.sums, {**given, "sums": sums, "total": total}, {})
        return sums, total

    def _scan(
        self, states: Tensor, total: Tensor, given: Tensor | None, *, reverse: bool
    ) -> Tensor:
        size = state_width(self.shape)
        grid = (self.segments.sequences * self.shape.heads, triton.cdiv(size, SCAN_ELEMENTS))
        first = self.empty(0) if given is None else given
        kernel: Any = _scan_kernel
        with torch.cuda.device_of(states):
            kernel[grid](
                states, total, self.segments.ranges, first,
                H=self.shape.heads, SIZE=size, BLOCK=SCAN_ELEMENTS,
                GATE=self.shape.gate, GIVEN=given is not None, REVERSE=reverse,
                num_warps=SCAN_WARPS,
            )  # fmt: skip
        return states

    def launch(
        self, kernel: Any, config: Config, given: dict[str, Tensor | None], flags: dict[str, bool]
    ) -> None:
        """Launch one program per segment and head; heads vary fastest.

        Args:
            kernel: The kernel.
            config: Its launch options.
            given: Tensors, by the names of its pointers; what is missing or None is not read.
            flags: Its constants that say what is read and written.
        """
        qkv_BTW, shape = self.qkv_BTW, self.shape
        given = given | {"qkv": qkv_BTW, "gate": self.gate, "table": self.segments.table}
        names = [name for name in kernel.arg_names if name.endswith("_ptr")]
        unread = self.empty(0)
        tensors = [given.get(name.removesuffix("_ptr")) for name in names]
        pin = qkv_BTW.is_cuda and qkv_BTW.dtype == torch.bfloat16 and torch.version.hip is None
        with torch.cuda.device_of(qkv_BTW):
            kernel[(self.segments.count * shape.heads,)](
                *(unread if x is None else x for x in tensors),
                *qkv_BTW.stride()[:2], qkv_BTW.shape[1],
                **_constants(kernel, shape, config, flags, pin),
                num_warps=config.warps, num_stages=config.stages,
            )  # fmt: skip


def _constants(
    kernel: Any, shape: Shape, config: Config, flags: dict[str, bool], pin: bool
) -> dict[str, Any]:
    """The constants that a kernel takes."""
    every = {
        "H": shape.heads,
        "K": shape.key,
        "V": shape.value,
        "BLOCK_C": config.chunk,
        "BLOCK_K": block(shape.key),
        "BLOCK_V": block(shape.value),
        "PHI": shape.feature_map,
        "EPSILON": feature_maps.find(shape.feature_map).epsilon,
        "NORMALIZE": shape.normalize,
        "GATE": shape.gate,
        "PIN": pin,
        **flags,
    }
    return {name: value for name, value in every.items() if name in kernel.arg_names}
