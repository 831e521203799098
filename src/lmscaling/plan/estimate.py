"""What one cell will take: micro-batch, memory, time, tokens, GPU-hours and disk, before it runs.

Where a calibration has been measured its numbers count; elsewhere memory follows from the shape of
the model and speed from its FLOPs at a usual utilization, and the forecast says that it is a guess.
What only the model knows (parameters, FLOPs) comes in as a ``Shape``, so nothing here loads torch.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from lmscaling.config.budget import SECONDS, parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.formatting import short

MFU = 0.4
"""Utilization that a guess assumes: llm.c's GPT-2 reaches 40 to 49 % on eight H100."""
GUESSED_TOKENS = 2**14
"""Tokens of a micro-batch that nobody has measured; more make an H100 hardly faster."""
FILL = 0.9
"""Share of a device's memory that a guess fills."""

STATE_BYTES = 18
"""Per parameter: float32 weight, gradient and two moments, and the bf16 copy of autocast."""
ACTIVATION_BYTES = 34
"""Per token, layer and unit of width in bf16 without dropout and without T x T matrices
(Korthikanti et al. 2022, arXiv:2205.05198, section 4.1)."""
RESIDUAL_BYTES = 4
"""The same if blocks are recomputed: the residual stream is float32 under autocast."""
HEAD_BYTES = 10 * 2**27
"""The logits that exist at one time, in bf16 and float32, with their gradient."""
CHECKPOINT_BYTES = 12
"""Per parameter on disk: weight and two moments."""


@dataclass(frozen=True)
class Shape:
    """What a cell's model says of itself."""

    params_total: int
    flops_per_token: float


@dataclass(frozen=True)
class Layout:
    """How an update is cut for a device."""

    micro_batch: int
    recompute: bool
    memory_bytes: float
    """Of one device."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one cell will take; None where nobody can know."""

    name: str
    gpus: int
    micro_batch: int | None = None
    accumulation: int | None = None
    recompute: bool = False
    memory_bytes: float | None = None
    """Of one device."""
    measured: bool = False
    """Whether a calibration says so."""
    update_seconds: float | None = None
    updates: int | None = None
    tokens: int | None = None
    """Training tokens until the budget or the data are spent."""
    epochs: float | None = None
    """Passes over the data that the whole budget would take."""
    gpu_hours: float | None = None
    branch_gpu_hours: float | None = None
    disk_bytes: float = 0.0
    """Final weights and the checkpoints kept for branches."""
    notes: list[str] = field(default_factory=list)
    cannot: str = ""
    """Why it cannot run; empty if it can."""


def sequences(cell: Cell) -> int:
    """Sequences of one update on one device."""
    return cell.update_tokens // cell.context // max(1, cell.gpus)


def memory_bytes(cell: Cell, params_total: int, micro_batch: int, recompute: bool) -> float:
    """What training takes on one device, bf16-mixed, without what a kernel keeps beside."""
    shape, tokens = cell.model, micro_batch * cell.context
    per_layer = RESIDUAL_BYTES if recompute else ACTIVATION_BYTES
    units = shape.n_layer * per_layer + (ACTIVATION_BYTES if recompute else 0)
    head = min(HEAD_BYTES, 10 * tokens * shape.vocab_size)
    return STATE_BYTES * params_total + tokens * shape.d_model * units + head


def guess(cell: Cell, params_total: int, memory: float | None) -> Layout | None:
    """The largest micro-batch of usual length that fits; None if not even one sequence does.

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        memory: Bytes of a device; None asks nothing of it.
    """
    fitting = max(1, GUESSED_TOKENS // cell.context)
    sizes = [d for d in range(1, fitting + 1) if sequences(cell) % d == 0]
    ways = [(size, False) for size in reversed(sizes)] + [(1, True)]
    for size, recompute in ways:
        needed = memory_bytes(cell, params_total, size, recompute)
        if memory is None or needed <= FILL * memory:
            return Layout(size, recompute, needed)
    return None


def budget_updates(cell: Cell, update_seconds: float | None) -> int | None:
    """Updates of a cell's whole budget; None if it is a time and nobody knows the speed."""
    amount, unit = parse_budget(cell.budget)
    if unit == "updates":
        return math.ceil(amount)
    if unit == "tokens":
        return math.ceil(amount / cell.update_tokens)
    return int(amount * SECONDS[unit] / update_seconds) if update_seconds else None


def exhausts(cell: Cell, updates: int | None, tokens: float | None) -> str:
    """What to tell of a cell that would pass its data, in words; empty if it would not."""
    if updates is None or not tokens:
        return ""
    passes = updates * cell.update_tokens / tokens
    if passes <= cell.epochs:
        return ""
    spent = cell.epochs / passes
    return (
        f"its {short(tokens)} tokens end at {spent:.0%} of the budget as out_of_tokens; "
        f"epochs: {math.ceil(passes)} would go on"
    )


def forecast(
    cell: Cell,
    shape: Shape,
    device: Device | None,
    calibration: Calibration | None,
    tokens: float | None,
) -> Forecast:
    """What a cell will take.

    Args:
        cell: A trunk.
        shape: Of its model.
        device: What its devices can do; None for the CPU.
        calibration: What was measured for it, or None.
        tokens: Training tokens of its data, or None.
    """
    common: dict[str, Any] = {"name": cell.name, "gpus": cell.gpus}
    if calibration:
        needed = calibration.peak_memory_bytes
        layout = Layout(calibration.micro_batch, calibration.recompute, needed or 0.0)
        seconds = calibration.update_seconds
    else:
        layout = guess(cell, shape.params_total, device and device.memory_bytes)
        flops = cell.gpus * device.peak_flops * MFU if device else 0
        seconds = shape.flops_per_token * cell.update_tokens / flops if flops else None
    if layout is None:
        assert device
        least = memory_bytes(cell, shape.params_total, 1, recompute=True)
        has = device.memory_bytes / 1e9
        cannot = f"one sequence takes {least / 1e9:.0f} GB, a device has {has:.0f}"
        return Forecast(**common, cannot=cannot)
    updates = budget_updates(cell, seconds)
    wanted = None if updates is None else updates * cell.update_tokens
    amount, unit = parse_budget(cell.budget)
    timed = amount * SECONDS[unit] if unit in SECONDS else None
    total = timed or (updates * seconds if updates and seconds else None)
    # A run that has read all its data ends; what it has left of a budget in hours is not spent.
    read = min(1.0, cell.epochs * tokens / wanted) if wanted and tokens else 1.0
    hours = None if total is None else total * read * cell.gpus / 3600
    notes = [exhausts(cell, updates, tokens), _early_branch(cell, updates)]
    return Forecast(
        **common,
        micro_batch=layout.micro_batch,
        accumulation=sequences(cell) // layout.micro_batch,
        recompute=layout.recompute,
        memory_bytes=layout.memory_bytes or None,
        measured=calibration is not None,
        update_seconds=seconds,
        updates=updates,
        tokens=None if wanted is None else int(wanted * read),
        epochs=wanted / tokens if wanted and tokens else None,
        gpu_hours=hours,
        branch_gpu_hours=None if hours is None else hours * (1 - BRANCH_AT) * sum(cell.keep),
        disk_bytes=shape.params_total * (4 + len(cell.keep) * (CHECKPOINT_BYTES + 4)),
        notes=[note for note in notes if note],
    )


def _early_branch(cell: Cell, updates: int | None) -> str:
    warmup = cell.optimizer.warmup_updates
    early = [s for s in cell.keep if updates and BRANCH_AT * s * updates < warmup]
    if not early:
        return ""
    shares = ", ".join(f"{share:g}" for share in early)
    return f"branch {shares} leaves within the warm-up of {warmup} updates"
