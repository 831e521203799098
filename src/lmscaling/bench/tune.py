"""Find the fastest configuration of the fused kernels on this GPU, among those that are correct.

Each kernel is varied alone while the others keep their best configuration so far. A configuration
is timed only after it has computed integers exactly and numbers close to float64: some compilers
have generated wrong code for the products used here. Entries are written one by one, and points
that the file already has for the same versions of Triton and ptxas are not measured again.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmscaling.bench import clock
from lmscaling.bench.checks import exactness
from lmscaling.bench.memory import Memory
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.kernels.chunked_triton import tuned
from lmscaling.kernels.chunked_triton.config import Config
from lmscaling.kernels.chunked_triton.plan import Plan, Shape, block, choose, numbered
from lmscaling.runtime import environment
from lmscaling.runtime.faults import first_line, machine_fault

CANDIDATES = [
    Config(chunk=chunk, warps=warps, stages=stages)
    for chunk, warps, stages in product((32, 64, 128), (4, 8), (1, 2, 3))
]
WIDTHS = (64,)
"""Padded widths of heads that are tuned: those of GPT-2."""
POINTS = ((1, 12, 1024), (1, 12, 16384), (1, 12, 131072), (128, 12, 1024), (8, 12, 16384))
"""Sequences, heads and tokens: one sequence, and a full device."""
ROLES = ("forward", "backward_q", "backward_kv", "backward")
"""The last is timed against both before it."""
SECONDS, MOST = 0.05, 50
"""Of one measurement, and its most repeats."""

Attend = Callable[..., Tensor]


class _Fused(torch.autograd.Function):
    """The kernels with a given plan."""

    @staticmethod
    def forward(ctx: Any, qkv_BTW: Tensor, shape: Shape, plan: Plan) -> Tensor:
        from lmscaling.kernels.chunked_triton import launch

        made = launch.forward(qkv_BTW, shape, plan, keep=plan.one_pass)
        ctx.save_for_backward(qkv_BTW, *made)
        ctx.given = (shape, plan)
        return made.y_BTHV

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from lmscaling.kernels.chunked_triton import launch

        (dy_BTHV,) = gradients
        qkv_BTW, *made = ctx.saved_tensors
        result = launch.backward(qkv_BTW, dy_BTHV, launch.Forward(*made), *ctx.given)
        return result.dqkv_BTW, None, None


def attend_by(plan: Plan) -> Attend:
    """An implementation of linear attention that runs the kernels as a plan says."""

    def attend(
        q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
    ) -> Tensor:
        shape = Shape(
            heads=q_BTHK.shape[2],
            key=q_BTHK.shape[3],
            value=v_BTHV.shape[3],
            feature_map=feature_map,
            normalize=normalize,
        )
        qkv_BTW = torch.cat([x.flatten(2) for x in (q_BTHK, k_BTHK, v_BTHV)], -1)
        return _Fused.apply(qkv_BTW, shape, plan)

    return attend


def tune(out: Path | None) -> str:
    """Measure every point and write the entries, after each.

    Raises:
        UserError: There is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise UserError(
            "tune kernels measures a CUDA device, and this machine has none; type it on one "
            "that has a GPU"
        )
    import triton

    path = out or tuned.TUNED
    capability = torch.cuda.get_device_capability()
    compilers = {"triton": triton.__version__, **environment.ptxas(*capability)}
    entries = {_key(entry): entry for entry in tuned.read(path)}
    for width, (batch, heads, tokens) in product(WIDTHS, POINTS):
        shape = Shape(heads=heads, key=width, value=width, feature_map="softplus", normalize=True)
        known = entries.get((_architecture(), "bfloat16", block(width), batch * heads, tokens))
        if known is None or not compilers.items() <= asdict(known).items():
            entry = _measure(shape, batch, tokens, compilers)
            entries[_key(entry)] = entry
            write_json(path, [asdict(e) for e in entries.values()])
            print(f"tune: {batch} x {heads} heads, {tokens} tokens: {entry.seconds}", flush=True)
    return f"tune: {len(entries)} entries in {path}"


def _architecture() -> int:
    return numbered(*torch.cuda.get_device_capability())


def _key(entry: tuned.Entry) -> tuple[int, str, int, int, int]:
    return entry.architecture, entry.dtype, entry.width, entry.heads, entry.tokens


def _measure(shape: Shape, batch: int, tokens: int, compilers: dict[str, str]) -> tuned.Entry:
    """The fastest configurations at one point."""
    device, dtype, width = torch.device("cuda"), torch.bfloat16, shape.key
    packed = shape.heads * (2 * shape.key + shape.value)
    qkv_BTW = torch.randn(batch, tokens, packed, device=device, dtype=dtype)

    def fault(plan: Plan) -> str | None:
        short = replace(plan, segments=min(2, plan.segments))  # its sequences are short
        return exactness.fault("linear", attend_by(short), device, dtype, width)

    plan, seconds = search(
        choose(qkv_BTW, shape),
        CANDIDATES,
        fault,
        lambda role, plan: _seconds(role, plan, qkv_BTW, shape),
    )
    return tuned.Entry(
        architecture=_architecture(),
        dtype="bfloat16",
        width=block(width),
        heads=batch * shape.heads,
        tokens=tokens,
        seconds=seconds,
        device=torch.cuda.get_device_name(),
        **compilers,
        **{role: getattr(plan, role) for role in ROLES[:-1]},
        backward=plan.backward if plan.one_pass else None,
    )


def search(
    plan: Plan,
    candidates: Iterable[Config],
    fault: Callable[[Plan], str | None],
    seconds: Callable[[str, Plan], float],
) -> tuple[Plan, dict[str, float]]:
    """The plan with the fastest kernels, chosen one after the other among those without a fault.

    Args:
        plan: Where to begin; kept where no candidate is correct.
        candidates: Configurations of each kernel.
        fault: What is wrong with the numbers of a plan, or None.
        seconds: Seconds of the forward pass, or of both passes, that a kernel is part of.

    Returns:
        The plan, and the time of the pass with each kernel's choice; kernels without a correct
        candidate have no time.
    """
    tried, times = list(candidates), dict[str, float]()
    plan = replace(plan, one_pass=False)
    for role in ROLES:
        best = plan
        for config in tried:
            other = replace(plan, **{role: config})
            if role == "backward":
                other = other.in_one_pass()
            try:
                wrong = fault(other)
                if wrong:
                    print(f"tune: {role} {config}: {wrong}", flush=True)
                    continue
                taken = seconds(role, other)
            except Exception as error:  # Triton's OutOfResources is no RuntimeError
                if machine_fault(error):
                    raise
                print(f"tune: {role} {config}: {first_line(error)}", flush=True)
                continue
            if role not in times or taken < times[role]:
                times[role], best = taken, other
        if role != "backward" or times.get(role, math.inf) < _both(times):
            plan = best
    return plan, times


def _both(times: dict[str, float]) -> float:
    """Time of the backward pass in two kernels."""
    return min((times[role] for role in ROLES[1:3] if role in times), default=math.inf)


def _seconds(role: str, plan: Plan, qkv_BTW: Tensor, shape: Shape) -> float:
    """Median time of the forward pass; of both passes for a kernel of the backward pass."""
    from lmscaling.kernels.chunked_triton import launch

    made = launch.forward(qkv_BTW, shape, plan, keep=plan.one_pass)
    dy_BTHV = torch.randn_like(made.y_BTHV)

    def both() -> None:  # the backward pass in one kernel makes the forward pass write states
        kept = launch.forward(qkv_BTW, shape, plan, keep=plan.one_pass)
        launch.backward(qkv_BTW, dy_BTHV, kept, shape, plan)

    calls = {True: lambda: launch.forward(qkv_BTW, shape, plan), False: both}
    measured = clock.timed(calls[role == "forward"], Memory(qkv_BTW.device), SECONDS, MOST).seconds
    return measured[len(measured) // 2]
