"""Forecasts of what a study costs and which cells cannot run, with totals, before it runs."""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lmscaling.config import sweeps
from lmscaling.config.budget import parse_budget
from lmscaling.config.grid import Grid
from lmscaling.config.validation import checked
from lmscaling.files import read_json
from lmscaling.formatting import bytes_of, folded, noted, short, skipped
from lmscaling.plan import calibrations, jobs, measurements, totals
from lmscaling.plan.estimate import Forecast, Range, forecast
from lmscaling.plan.footprint import Shape, memory_scale
from lmscaling.plan.text_needs import Supply, supply
from lmscaling.plan.throughput.model import QUANTILES

HEAD = ("cell", "GPUs", "micro-batch", "memory", "s/update", "80 %", "tokens", "epochs",
        "GPU-hours", "notes")  # fmt: skip
COMMON = 4
"""Cells that share a note which is told once."""


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
    """Training text: needed, tokenized, and to be read from the hub."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Jobs of the complete study by rule."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Runs of each task, which no estimate includes."""
    speed: dict[str, int] = field(default_factory=dict)
    """Points of the speed study by kind of measurement."""
    measured_on: str = ""
    """A device that is not listed, whose measurements are used all the same; else empty."""
    gpus: int = 0
    """GPUs of a cell that no exception changes, if the budget is a time; else 0."""
    is_published: bool = True
    """Whether published times tell of the device."""
    updates_measured: int = 0
    """Measured updates that predictions have seen."""
    calibrations: list[str] | None = None
    """Cells that ``calibrate: auto`` has chosen; None if it is not the study's."""
    range_80: dict[str, Range] = field(default_factory=dict)
    """Intervals of the totals with a probability of 80 %."""
    range_95: dict[str, Range] = field(default_factory=dict)
    """The same of 95 %."""

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
            "out_of_tokens": sum(f.lasts < 1 for f in runnable),
            **{
                name: sum(getattr(f, name) for f in runnable)
                for name in ("dollars", "kwh")
                if runnable and all(getattr(f, name) is not None for f in runnable)
            },
            "cannot": len(self.forecasts) - len(runnable),
            "skipped": len(self.skipped),
            "jobs": sum(self.jobs.values()),
            "speed_points": sum(self.speed.values()),
        }

    def table(self) -> str:
        """The plan for the terminal: a line per cell, then the summary and all jobs."""
        sums = self.totals()
        points = ", ".join(f"{n:,} {kind}" for kind, n in self.speed.items())
        each = ", ".join(f"{n:,} {rule}" for rule, n in self.jobs.items())
        said = self.summary()
        if points:
            said.append(f"speed study, on one device: {sums['speed_points']:,} points: {points}")
        said.append(f"{sums['jobs']:,} jobs in all: {each}")
        folds = [line for text in said for line in folded(text)]
        return "\n".join([*noted(self.lines(), left={0}), "", *folds])

    def lines(self) -> list[list[str]]:
        """Header and a line per cell, as text.

        ``~`` marks estimates, and what is not known is empty. A micro-batch of ``64 x 4`` is 64
        sequences, four of which make an update. Notes that many cells share are sentences of
        ``summary``.
        """
        common = self._common()
        return [list(HEAD), *(_line(f, common) for f in self.forecasts)]

    def _common(self) -> dict[str, int]:
        """Notes that at least ``COMMON`` cells have, with their number."""
        counts = Counter(note for f in self.forecasts for note in f.notes)
        return {note: n for note, n in counts.items() if n >= COMMON}

    def summary(self) -> list[str]:
        """Sentences on totals, estimates, cells that cannot run, exceptions and skipped cells."""
        sums = self.totals()
        hours = f"{self._sum('gpu_hours', 'GPU-hours')} and "
        hours += f"{self._sum('branch_gpu_hours', 'for branches')}, "
        amounts = f"{self._sum('tokens', 'tokens')}, {bytes_of(sums['disk_bytes'])}"
        each = ", ".join(f"{n} of {name}" for name, n in self.tasks.items())
        bound = "if the boards take their largest power all the time, without hosts and cooling"
        costs = [self._sum("dollars", "dollars")] if "dollars" in sums else []
        costs += [f"at most {self._sum('kwh', 'kWh')}, {bound}"] if "kwh" in sums else []
        chosen, unknown = self.calibrations or [], sums["unknown"]
        return [
            f"{sums['cells']} cells: {hours if self.device else ''}{amounts} of weights and kept "
            "checkpoints",
            *_if(each, f"{sum(self.tasks.values())} runs of tasks, in no estimate: {each}"),
            *_if(costs, f"with branches: {'; '.join(costs)}"),
            *self._budgets(),
            *self._fewer_gpus(),
            *_if(unknown, f"cells whose time is not known before they are measured: {unknown}"),
            *self._sources(),
            *_if(
                self.calibrations is not None,
                f"{len(chosen)} calibrations of {len(self.forecasts)} cells, with whose options "
                f"the others train: {', '.join(chosen)}",
            ),
            *(f"{n} cells: {note}" for note, n in self._common().items()),
            *self.text.summary(),
            *(f"cannot run: {f.name}: {f.cannot}" for f in self.forecasts if f.cannot),
            *(f"exception: {values}: {reason}" for values, reason in self.exceptions),
            *skipped(self.skipped),
        ]

    def _budgets(self) -> list[str]:
        """How many cells get their budget, if it is known: text may end before it."""
        known = [f for f in self.forecasts if not f.cannot and f.epochs]
        ends = sorted(f.lasts for f in known if f.lasts < 1)
        if not ends:
            return _if(known, f"{len(known)} of {len(known)} cells get their complete budget")
        most = max(math.ceil(f.epochs or 0) for f in known)
        span = f"{ends[0]:.0%}" + (f" to {ends[-1]:.0%}" if ends[-1] > ends[0] else "")
        return [
            f"{len(ends)} of {len(known)} cells do not get their budget: their text ends at {span} "
            f"of it (out_of_tokens); give them epochs: {most} under exceptions, or more text"
        ]

    def _fewer_gpus(self) -> list[str]:
        """How many cells have fewer GPUs than the others for the same time."""
        runnable = [f for f in self.forecasts if not f.cannot]
        few = sorted({f.gpus for f in runnable if f.gpus < self.gpus})
        n, numbers = sum(f.gpus in few for f in runnable), " or ".join(map(str, few))
        return _if(
            few,
            f"{n} of {len(runnable)} cells have {numbers} of {self.gpus} GPUs for the same time: "
            "their GPU-hours are fewer, so their budget is not the same",
        )

    def _sum(self, name: str, unit: str) -> str:
        """A total with its unit, and with its interval of 80 % if it is uncertain."""
        if self.forecasts and all(getattr(f, name, 0) is None for f in self.forecasts):
            return f"an unknown number of {unit}"
        form = short if name == "tokens" else "{:,.0f}".format
        low, high = map(form, self.range_80.get(name, (0, 0)))
        total = f"{form(self.totals()[name])} {unit}"
        return f"{total} ({low} to {high})" if low != high else total

    def _sources(self) -> list[str]:
        """Where the numbers come from."""
        runnable = [f for f in self.forecasts if not f.cannot]
        estimated = [f for f in runnable if not f.measured]
        factors = [_factor(f) for f in estimated if f.update_seconds]
        n_calibrated, n_run = (sum(f.source == x for f in runnable) for x in ("calibrated", "run"))
        basis = "" if self.device else " (micro-batches)"
        until = ", until they are measured" if self.calibrations is None else ""
        return [
            *_if(estimated, f"{len(estimated)} cells are estimates{basis}, marked ~{until}"),
            *_if(n_calibrated, f"{n_calibrated} cells have the time of their calibration"),
            *_if(n_run, f"{n_run} cells have the time of their finished run"),
            *_if(
                factors,
                f"times of updates are predicted for an {self.device}, from published ones and "
                f"{self.updates_measured} measured; they are right within a factor of "
                f"{median(factors or [1]):.2f} (at most {max(factors, default=1):.2f}) with a "
                "probability of 80 %; so are tokens and epochs of a budget in hours, and "
                "GPU-hours of another one",
            ),
            *_if(
                factors and not self.is_published,
                f"no published time is of an {self.device}, so the factors are wider, as those of "
                "A100s and H100s predicted from each other need them",
            ),
            *_if(
                self.measured_on,
                f"measured times are of {self.measured_on}, of which no rates are known, so they "
                f"tell nothing of the others; give them with --set 'devices.{self.measured_on}="
                "{peak_flops: ..., bandwidth: ..., memory_bytes: ...}'",
            ),
        ]


def _if(holds: object, sentence: str) -> list[str]:
    """The sentence where it holds."""
    return [sentence] if holds else []


def _factor(f: Forecast) -> float:
    """The factor within which the time of an update is right with a probability of 80 %."""
    return math.exp(QUANTILES[0.8] * (f.update_sd or 0.0))


def _line(f: Forecast, common: Collection[str]) -> list[str]:
    if f.cannot:
        return [f.name, str(f.gpus), *[""] * 7, f"cannot run: {f.cannot}"]
    mark = "" if f.measured else "~"

    def shown(value: float | None, form: str, mark: str = mark) -> str:
        return "" if value is None else mark + format(value, form)

    return [
        f.name,
        str(f.gpus),
        f"{mark}{f.micro_batch} x {f.accumulation}",
        "" if f.memory_bytes is None else mark + bytes_of(f.memory_bytes),
        shown(f.update_seconds, ".3g"),
        f"x {_factor(f):.2f}" if f.update_sd else "",
        "" if f.tokens is None else mark + short(f.tokens),
        shown(f.epochs, ".2g"),
        shown(f.gpu_hours, ".4g", ""),
        "; ".join(
            [
                *(["recomputes blocks"] if f.recompute else []),
                *([f"memory {f.fits}"] if f.fits == "likely fits" else []),
                *([f"text ends at {f.lasts:.0%} of the budget"] if f.lasts < 1 else []),
                *(note for note in f.notes if note not in common),
            ]
        ),
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
        device: Name of the device that estimates are made for; empty for that of the measurements,
            or an H100.
        results: ``results/<study>``; its calibrations and token counts are used.

    Raises:
        UserError: The device is unknown, or a file of the results is incomplete.
    """
    found = measurements.read(grid, shapes, device, results)
    tokens = _tokens(grid, results)
    existing = {path.stem for path in results.glob("calibrations/*.json")}
    calibrated = calibrations.chosen(grid, existing)
    is_auto = grid.study.calibrate == calibrations.AUTO
    forecasts, fitted = [], []
    for run, cell in grid.cells.items():
        ways = calibrations.ways(cell)
        near = calibrations.nearest(cell, calibrated) if is_auto else ""
        peak = found.calibrations.get(near)
        other = calibrated.get(near)
        made = forecast(
            cell,
            shapes[run],
            found.device if cell.gpus else None,
            found.calibrations.get(cell.calibration),
            tokens,
            found.fitted(ways),
            run=found.runs.get(run),
            is_refitted=bool(found.telling(ways)),
            scale=memory_scale(other, shapes[other.run], peak) if other and peak else 1.0,
            price=grid.study.price_per_gpu_hour,
        )
        forecasts.append(made)
        fitted.append(found.fitted(ways))
    runnable = [f for f in forecasts if not f.cannot and f.update_seconds]
    behind = [
        c for f, c in zip(forecasts, fitted, strict=True) if not f.cannot and f.update_seconds
    ]
    is_timed = any(parse_budget(cell.budget).seconds for cell in grid.cells.values())
    return Plan(
        study=grid.study.study,
        device=found.name if any(cell.gpus for cell in grid.cells.values()) else "",
        gpus=grid.study.gpus if is_timed else 0,
        is_published=found.device.published,
        measured_on=found.unlisted,
        updates_measured=len(found.updates),
        calibrations=[cell.name for cell in calibrated.values()] if is_auto else None,
        range_80=totals.ranges(runnable, behind, 0.8),
        range_95=totals.ranges(runnable, behind, 0.95),
        forecasts=forecasts,
        text=supply(grid, forecasts, tokens, results),
        jobs=jobs.counts(grid),
        speed=_points(grid),
        tasks=dict(Counter(str(cell.task) for cell in grid.tasks.values())),
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
