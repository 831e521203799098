"""Forecasts of what a study costs and which cells cannot run, with totals, before it runs."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lmscaling.config import devices, sweeps
from lmscaling.config.calibration import Calibration
from lmscaling.config.grid import Grid
from lmscaling.config.validation import checked
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.formatting import bytes_of, folded, noted, short, skipped
from lmscaling.plan import jobs
from lmscaling.plan.estimate import Forecast, Shape, forecast, measured
from lmscaling.plan.text_needs import Supply, supply
from lmscaling.plan.throughput.coefficients import shipped

HEAD = ("cell", "GPUs", "micro-batch", "memory", "s/update", "tokens", "epochs", "GPU-hours",
        "notes")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The forecasts of a study and their assumptions."""

    study: str
    device: str
    """Kind of device that estimates are made for."""
    forecasts: list[Forecast]
    skipped: list[tuple[str, str]]
    """Skipped cells with the reason."""
    exceptions: list[tuple[str, str]]
    """Exceptions of the study with the reason."""
    text: Supply
    """Training text: needed, tokenized, and to be fetched."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Jobs of the complete study by rule."""
    speed: dict[str, int] = field(default_factory=dict)
    """Points of the speed study by kind of measurement."""

    def to_json(self) -> dict[str, Any]:
        """The content of ``plan.json``: the plan and its totals."""
        return {**asdict(self), "totals": self.totals()}

    def totals(self) -> dict[str, Any]:
        """Sums over the cells that can run; unknown values are left out."""
        runnable = [f for f in self.forecasts if not f.cannot]
        return {
            "cells": len(runnable),
            "gpu_hours": sum(f.gpu_hours or 0 for f in runnable),
            "branch_gpu_hours": sum(f.branch_gpu_hours or 0 for f in runnable),
            "tokens": sum(f.tokens or 0 for f in runnable),
            "disk_bytes": sum(f.disk_bytes for f in runnable),
            "unknown": sum(f.gpu_hours is None for f in runnable),
            "measured": sum(f.measured for f in runnable),
            "cannot": len(self.forecasts) - len(runnable),
            "skipped": len(self.skipped),
            "jobs": sum(self.jobs.values()),
            "speed_points": sum(self.speed.values()),
        }

    def table(self) -> str:
        """The plan for the terminal: a line per cell, then the summary."""
        said = [line for text in [*self.summary(), *self.work()] for line in folded(text)]
        return "\n".join([*noted(self.lines(), left={0}), "", *said])

    def work(self) -> list[str]:
        """Sentences on the measurements of the speed study and on all jobs."""
        lines, sums = [], self.totals()
        points = ", ".join(f"{n:,} {kind}" for kind, n in self.speed.items())
        if points:
            lines.append(f"speed study, on one device: {sums['speed_points']:,} points: {points}")
        each = ", ".join(f"{n:,} {rule}" for rule, n in self.jobs.items())
        return [*lines, f"{sums['jobs']:,} jobs in all: {each}"]

    def lines(self) -> list[list[str]]:
        """Header and a line per cell, as text.

        ``~`` marks estimates, and what is not known is empty. A micro-batch of ``64 x 4`` is 64
        sequences, four of which make an update.
        """
        return [list(HEAD), *(_line(f) for f in self.forecasts)]

    def summary(self) -> list[str]:
        """Sentences on totals, estimates, cells that cannot run, exceptions and skipped cells."""
        sums = self.totals()
        estimated = sums["cells"] - sums["measured"]
        hours = (
            f"{sums['gpu_hours']:,.0f} GPU-hours and {sums['branch_gpu_hours']:,.0f} for branches"
        )
        parts = [
            *([hours] if self.device else []),
            f"{short(sums['tokens'])} tokens",
            f"{bytes_of(sums['disk_bytes'])} of weights and kept checkpoints",
        ]
        lines = [f"{sums['cells']} cells: {', '.join(parts)}"]
        if sums["unknown"]:
            lines.append(
                f"the time of {sums['unknown']} cells is unknown until they are calibrated"
            )
        if estimated:
            basis = "" if self.device else " (micro-batches)"
            lines.append(
                f"{estimated} cells are estimates{basis}, marked ~, until they are calibrated"
            )
        ranges = [
            (f.update_seconds_range[1] / f.update_seconds_range[0]) ** 0.5
            for f in self.forecasts
            if f.update_seconds_range
        ]
        if ranges:
            lines.append(
                f"times of updates are predicted for an {self.device}, from published ones and "
                f"{sums['measured']} measured; they are right within a factor of "
                f"{median(ranges):.2f} (at most {max(ranges):.2f}) with a probability of 80 %"
            )
        lines += self.text.summary()
        lines += [f"cannot run: {f.name}: {f.cannot}" for f in self.forecasts if f.cannot]
        lines += [f"exception: {values}: {reason}" for values, reason in self.exceptions]
        return lines + skipped(self.skipped)


def _line(f: Forecast) -> list[str]:
    if f.cannot:
        return [f.name, str(f.gpus), *[""] * 6, f"cannot run: {f.cannot}"]
    mark = "" if f.measured else "~"

    def shown(value: float | None, form: str, mark: str = mark) -> str:
        return "" if value is None else mark + format(value, form)

    return [
        f.name,
        str(f.gpus),
        f"{mark}{f.micro_batch} x {f.accumulation}",
        "" if f.memory_bytes is None else mark + bytes_of(f.memory_bytes),
        shown(f.update_seconds, ".3g"),
        "" if f.tokens is None else mark + short(f.tokens),
        shown(f.epochs, ".2g"),
        shown(f.gpu_hours, ".4g", ""),
        "; ".join([*(["recomputes blocks"] if f.recompute else []), *f.notes]),
    ]


def read(path: Path) -> Plan:
    """The plan in a file ``plan.json``.

    Raises:
        UserError: The file is incomplete.
    """
    return checked(
        Plan, read_json(path, "plan"), f"plan {path} (delete it and run snakemake again)"
    )


def make(grid: Grid, shapes: dict[str, Shape], device: str, results: Path) -> Plan:
    """The plan of a study.

    Args:
        grid: The study.
        shapes: Model size of every cell, by run.
        device: Name of the device that estimates are made for.
        results: ``results/<study>``; its calibrations and token counts are used.

    Raises:
        UserError: The device is unknown, or a file of the results is incomplete.
    """
    known = devices.find(device)
    if known is None:
        raise UserError(f"device {device!r} is not known; {choose(device, devices.DEVICES)}")
    calibrations = {
        path.stem: checked(Calibration, read_json(path, "calibration"), str(path))
        for path in sorted(results.glob("calibrations/*.json"))
    }
    tokens = _tokens(grid, results)
    timings = (
        measured(cell, shapes[run], known, calibrations[cell.calibration])
        for run, cell in grid.cells.items()
        if cell.gpus and cell.calibration in calibrations
    )
    fitted = shipped().measured([timing for timing in timings if timing])
    forecasts = [
        forecast(
            cell,
            shapes[run],
            known if cell.gpus else None,
            calibrations.get(cell.calibration),
            tokens,
            fitted,
        )
        for run, cell in grid.cells.items()
    ]
    return Plan(
        study=grid.study.study,
        device=device if any(cell.gpus for cell in grid.cells.values()) else "",
        forecasts=forecasts,
        text=supply(grid, forecasts, tokens, results),
        jobs=jobs.counts(grid),
        speed=_points(grid),
        skipped=[(cell.name, reason) for cell, reason in grid.skipped],
        exceptions=[
            (", ".join([e.describe(), *(f"{k}: {v}" for k, v in e.overrides.items())]), e.reason)
            for e in grid.study.exceptions
        ],
    )


def _points(grid: Grid) -> dict[str, int]:
    points: Counter[str] = Counter()
    for sweep in sweeps.expand(grid.study).values():
        points[sweep.kind] += len(sweep.points)
    return dict(points)


def _tokens(grid: Grid, results: Path) -> float | None:
    """Training tokens: counted, or as the dataset's row expects; None if unknown."""
    manifest = results / "tokens" / grid.tokens / "manifest.json"
    if manifest.is_file():
        return sum(shard["tokens"] for shard in read_json(manifest, "manifest")["train"])
    return grid.study.datasets[grid.study.dataset].expected_tokens
