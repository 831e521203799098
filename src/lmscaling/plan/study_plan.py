"""What a study will cost and what of it cannot run, before anything runs: forecasts, and totals."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmscaling.config import devices
from lmscaling.config.calibration import Calibration
from lmscaling.config.grid import Grid
from lmscaling.config.types import less
from lmscaling.config.validation import checked
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.formatting import aligned, bytes_of, short
from lmscaling.plan.estimate import MFU, Forecast, Shape, forecast
from lmscaling.plan.text_needs import Supply, supply

HEAD = ("cell", "GPUs", "micro-batch", "accumulate", "memory", "s/update", "tokens", "epochs",
        "GPU-hours", "")  # fmt: skip


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
    text: Supply
    """Training text: what is needed, there, and to be fetched."""

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
        return "\n".join([*aligned(self.lines(), left={0, 9}), "", *self.said()])

    def lines(self) -> list[list[str]]:
        """Head and a line per cell, as text; ``~`` marks what is guessed, ``?`` what is unknown."""
        return [list(HEAD), *(_line(f) for f in self.forecasts)]

    def said(self) -> list[str]:
        """Totals, what is guessed, what cannot run, and what differs, in sentences."""
        sums = self.totals()
        guessed = sums["cells"] - sums["measured"]
        hours = (
            f"{sums['gpu_hours']:,.0f} GPU-hours and {sums['branch_gpu_hours']:,.0f} for branches"
        )
        parts = [
            *([hours] if self.device else []),
            f"{short(sums['tokens'])} tokens",
            f"{bytes_of(sums['disk_bytes'])} of weights and kept checkpoints",
        ]
        said = [f"{sums['cells']} cells: {', '.join(parts)}"]
        if self.device and sums["unknown"]:
            said.append(f"{sums['unknown']} of them take a time that nobody has measured")
        if guessed:
            what = f"{MFU:.0%} of an {self.device}" if self.device else "micro-batches"
            said.append(
                f"{guessed} cells are guessed ({what}), with a ~, until they are calibrated"
            )
        said += self.text.summary()
        said += [f"cannot run: {f.name}: {f.cannot}" for f in self.forecasts if f.cannot]
        said += [f"differs: {what}: {reason}" for what, reason in self.exceptions]
        said += [f"skipped: {name}: {reason}" for name, reason in self.skipped]
        return said


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
        "" if f.memory_bytes is None else mark + bytes_of(f.memory_bytes),
        shown(f.update_seconds, ".3g"),
        "?" if f.tokens is None else mark + short(f.tokens),
        shown(f.epochs, ".2g"),
        shown(f.gpu_hours, ".4g", ""),
        "; ".join([*(["recomputes blocks"] if f.recompute else []), *f.notes]),
    ]


def read(path: Path) -> Plan:
    """``plan.json``.

    Raises:
        UserError: It is not whole.
    """
    values = read_json(path, "plan")
    try:
        forecasts = [Forecast(**made) for made in values.pop("forecasts")]
        text = Supply(**values.pop("text"))
        return Plan(**less(values, "totals"), forecasts=forecasts, text=text)
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"plan {path} is not whole; delete it and run snakemake again") from None


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
    forecasts = [
        forecast(
            cell,
            shapes[run],
            able if cell.gpus else None,
            calibrations.get(cell.calibration),
            tokens,
        )
        for run, cell in grid.cells.items()
    ]
    return Plan(
        study=grid.study.study,
        device=device if any(cell.gpus for cell in grid.cells.values()) else "",
        forecasts=forecasts,
        text=supply(grid, forecasts, tokens, results),
        skipped=[(cell.name, reason) for cell, reason in grid.skipped],
        exceptions=[
            (", ".join([e.words, *(f"{k}: {v}" for k, v in e.instead.items())]), e.reason)
            for e in grid.study.exceptions
        ],
    )


def _tokens(grid: Grid, results: Path) -> float | None:
    """Training tokens: as counted, else as the dataset's row expects, else None."""
    manifest = results / "tokens" / grid.tokens / "manifest.json"
    if manifest.is_file():
        return sum(shard["tokens"] for shard in read_json(manifest, "manifest")["train"])
    return grid.study.datasets[grid.study.dataset].expected_tokens
