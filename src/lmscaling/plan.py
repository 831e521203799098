"""What a study will cost and what of it cannot run, before anything runs.

Where a calibration has been measured its numbers count; elsewhere memory follows from the shape of
the model and speed from its FLOPs at a usual utilization, and the plan says that it is a guess.
What only the model knows (parameters, FLOPs) comes in as a ``Shape``, so nothing here loads torch.
"""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmscaling import devices
from lmscaling.calibration import Calibration
from lmscaling.columns import aligned
from lmscaling.config import Cell
from lmscaling.devices import Device
from lmscaling.errors import UserError, choose
from lmscaling.explain import checked
from lmscaling.fields import SECONDS, parse_budget
from lmscaling.files import read_json
from lmscaling.grid import Grid

MARGIN = 1.25
"""Time limit of a job over its budget: validation, start-up and reading are not productive time."""
MINUTES = 60
"""Added to every limit; also covers the last minutes in which a job is told to stop."""
UNTIMED = 48 * 60
"""Minutes for a budget in updates or tokens, whose time nobody knows beforehand."""

BRANCH_AT = 0.8
"""A branch leaves its trunk at this share of its own end, as in warmup-stable-decay schedules with
a decay of a fifth (Haegele et al. 2024, arXiv:2405.18392)."""

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


def job_minutes(cell: Cell) -> int:
    """Time limit of one training job, minutes."""
    amount, unit = parse_budget(cell.budget)
    if unit not in SECONDS:
        return UNTIMED
    share = (1 - BRANCH_AT) * cell.branch if cell.branch else 1.0
    return math.ceil(MARGIN * share * amount * SECONDS[unit] / 60) + MINUTES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study's forecasts, and what was assumed for them."""

    study: str
    device: str
    """Kind of device that guesses are made for."""
    forecasts: list[Forecast]
    skipped: list[tuple[str, str]]
    """Cells left out, with the reason."""
    exceptions: list[tuple[str, str]]
    """What differs from the study, with the reason."""

    def to_json(self) -> dict[str, Any]:
        """The plan with its totals, as ``plan.json`` has it."""
        return {**asdict(self), "totals": self.totals()}

    def totals(self) -> dict[str, Any]:
        """Sums over the cells that can run; a sum leaves out what nobody knows."""
        able = [f for f in self.forecasts if not f.cannot]
        return {
            "cells": len(able),
            "gpu_hours": sum(f.gpu_hours or 0 for f in able),
            "branch_gpu_hours": sum(f.branch_gpu_hours or 0 for f in able),
            "tokens": sum(f.tokens or 0 for f in able),
            "disk_bytes": sum(f.disk_bytes for f in able),
            "unknown": sum(f.gpu_hours is None for f in able),
            "measured": sum(f.measured for f in able),
            "cannot": len(self.forecasts) - len(able),
            "skipped": len(self.skipped),
        }

    def table(self) -> str:
        """The plan for the terminal: a line per cell, then totals and what cannot run."""
        head = ["cell", "GPUs", "micro-batch", "accumulate", "GB", "s/update", "tokens", "epochs",
                "GPU-hours", ""]  # fmt: skip
        lines = aligned([head, *(_line(f) for f in self.forecasts)], left={0, 9})
        return "\n".join([*lines, "", *self._closing()])

    def _closing(self) -> list[str]:
        sums = self.totals()
        guessed = sums["cells"] - sums["measured"]
        said = [
            f"{sums['cells']} cells: {sums['gpu_hours']:,.0f} GPU-hours and "
            f"{sums['branch_gpu_hours']:,.0f} for branches, {short(sums['tokens'])} tokens, "
            f"{sums['disk_bytes'] / 1e9:,.1f} GB of weights and kept checkpoints"
        ]
        if sums["unknown"]:
            said.append(f"{sums['unknown']} of them take a time that nobody has measured")
        if guessed:
            said.append(
                f"guessed for {guessed} cells: "
                + (f"{MFU:.0%} of an {self.device}" if self.device else "micro-batch")
                + "; `~` marks them until they are calibrated"
            )
        said += [f"cannot run: {f.name}: {f.cannot}" for f in self.forecasts if f.cannot]
        said += [f"differs: {what}: {reason}" for what, reason in self.exceptions]
        said += [f"skipped: {name}: {reason}" for name, reason in self.skipped]
        return said


def short(n: float) -> str:
    """A count with three digits: ``173B``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g}{letter}"
    return f"{n:.3g}"


def _line(f: Forecast) -> list[str]:
    if f.cannot:
        return [f.name, str(f.gpus), *[""] * 7, f"cannot run: {f.cannot}"]
    mark = "" if f.measured else "~"

    def shown(value: float | None, form: str, mark: str = mark) -> str:
        return "?" if value is None else mark + format(value, form)

    return [
        f.name,
        str(f.gpus),
        f"{mark}{f.micro_batch}",
        f"{mark}{f.accumulation}",
        "" if f.memory_bytes is None else shown(f.memory_bytes / 1e9, ".1f"),
        shown(f.update_seconds, ".3g"),
        "?" if f.tokens is None else mark + short(f.tokens),
        shown(f.epochs, ".2g"),
        shown(f.gpu_hours, ".4g", ""),
        "; ".join([*(["recomputes blocks"] if f.recompute else []), *f.notes]),
    ]


def make(grid: Grid, shapes: dict[str, Shape], device: str, results: Path) -> Plan:
    """The plan of a study.

    Args:
        grid: The study.
        shapes: Of every cell, by run.
        device: Name of the devices that guesses are made for.
        results: ``results/<study>``, for the calibrations and token counts that are there already.

    Raises:
        UserError: The device is not known, or a file there is not whole.
    """
    able = devices.find(device)
    if able is None:
        raise UserError(f"device {device!r} is not known; {choose(device, devices.DEVICES)}")
    calibrations = {
        path.stem: checked(Calibration, read_json(path, "calibration"), str(path))
        for path in sorted(results.glob("calibrations/*.json"))
    }
    tokens = _tokens(grid, results)
    return Plan(
        study=grid.study.study,
        device=device if any(cell.gpus for cell in grid.cells.values()) else "",
        forecasts=[
            forecast(
                cell,
                shapes[run],
                able if cell.gpus else None,
                calibrations.get(cell.calibration),
                tokens,
            )
            for run, cell in grid.cells.items()
        ],
        skipped=[(cell.name, reason) for cell, reason in grid.skipped],
        exceptions=[
            (", ".join(f"{k} {v}" for k, v in {**e.axes, **e.instead}.items()), e.reason)
            for e in grid.study.exceptions
        ],
    )


def _tokens(grid: Grid, results: Path) -> float | None:
    """Training tokens: as counted, else as the dataset's row expects, else None."""
    manifest = results / "tokens" / grid.tokens / "manifest.json"
    if manifest.is_file():
        return sum(shard["tokens"] for shard in read_json(manifest, "manifest")["train"])
    return getattr(grid.study.datasets[grid.study.dataset], "expected_tokens", None)
