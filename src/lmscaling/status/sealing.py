"""Predictions of the runs of a study that have not begun, for ``lmscaling forecast``."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duckdb import DuckDBPyConnection

from lmscaling import __version__, files
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.config.grid import Grid
from lmscaling.config.types import dump
from lmscaling.fits import unfinished
from lmscaling.formatting import bytes_of, folded, noted
from lmscaling.plan.estimate import Forecast as Cost
from lmscaling.plan.estimate import Shape
from lmscaling.records import forecast
from lmscaling.records.forecast import QUANTITIES, Forecast, Predicted, Seal
from lmscaling.runtime import commit

LEVEL = 0.8
"""Probability of the intervals that are printed."""

MFU = 0.4
"""Share of the peak that plans usually assume."""
MFU_SD = math.log(1.3) / 0.6745
"""Standard deviation of the logarithm of a time by ``MFU``: half of the published times are within
a factor of 1.3."""


def has_begun(study: Path, run: str) -> bool:
    """Whether a run has a record or an attempt."""
    attempts = (study / "scratch" / run).glob("attempt-*.jsonl")
    return (study / "runs" / run / "run.json").is_file() or next(attempts, None) is not None


def predict(
    study: Path,
    grid: Grid,
    costs: dict[str, Cost],
    shapes: dict[str, Shape],
    device: Device | None,
    db: DuckDBPyConnection | None,
) -> list[Forecast]:
    """What is predicted of each run that has not begun.

    Args:
        study: ``results/<study>``.
        grid: Its cells.
        costs: Their forecasts of time and memory, by run.
        shapes: Their model sizes, by run.
        device: The kind of device that ``costs`` assume.
        db: The store of the study; None if no run has finished.
    """
    losses = {row["run"]: found for row, found in unfinished.predict(db)} if db else {}
    no_loss = Predicted(reason="no run has finished")
    found = []
    for run, cell in grid.cells.items():
        cost = costs[run]
        if has_begun(study, run) or cost.cannot:
            continue
        if cell.gpus:
            guess = _at_usual_mfu(cell, shapes[run], device) if device else {}
            time = _normal(cost.update_seconds, cost.update_sd, **guess)
            memory = _normal(cost.memory_bytes, cost.memory_sd)
        else:  # what else runs on its cores changes the time of all runs alike
            time = Predicted(reason="times on a CPU have no interval that was shown to hold")
            memory = Predicted(reason="memory is not measured on a CPU")
        parts = zip(QUANTITIES, (time, memory, losses.get(run, no_loss)), strict=True)
        found += [
            Forecast(run=run, name=cell.name, quantity=quantity, **asdict(predicted))
            for quantity, predicted in parts
        ]
    return found


def _normal(median: float | None, sd: float | None, **guess: Any) -> Predicted:
    if median is None or not sd:
        return Predicted(reason="not known", **guess)
    return Predicted(median=median, sd=sd, **guess)


def _at_usual_mfu(cell: Cell, shape: Shape, device: Device) -> dict[str, Any]:
    """The plain guess of a time."""
    flops = shape.flops_per_token * cell.update_tokens
    seconds = flops / (cell.gpus * device.peak_flops * MFU)
    said = f"{100 * MFU:.0f} % of the peak"
    return {"baseline": said, "baseline_median": seconds, "baseline_sd": MFU_SD}


def seal(study: Path, grid: Grid, forecasts: list[Forecast]) -> tuple[Path, str]:
    """Write predictions where nobody changes them: the path, and the SHA-256 to publish."""
    sealed = Seal(
        study=grid.study.study,
        study_sha256=files.digest(dump(grid.study)),
        version=__version__,
        commit=commit.commit(),
        sealed=datetime.now(UTC).isoformat(timespec="seconds"),  # as runs have it, to compare
        forecasts=forecasts,
    )
    return forecast.write(study, sealed), sealed.sha256


def table(forecasts: list[Forecast]) -> str:
    """A line for each run with medians and intervals, and the reasons of what is not predicted."""
    by_run: dict[str, dict[str, Forecast]] = {}
    for one in forecasts:
        by_run.setdefault(one.name, {})[one.quantity] = one
    head = ["cell", *QUANTITIES.values(), ""]
    lines = [[name, *(_shown(of[q]) for q in QUANTITIES), ""] for name, of in by_run.items()]
    said = [f"{len(by_run)} cells have not begun; brackets hold a value with a probability of 80 %"]
    told = [line for text in [*said, *_missing(forecasts)] for line in folded(text)]
    return "\n".join([*noted([head, *lines], left={0}), "", *told])


def _missing(forecasts: list[Forecast]) -> Iterator[str]:
    """A sentence for each reason why a quantity is not predicted."""
    reasons = Counter((one.quantity, one.reason) for one in forecasts if one.reason)
    for (quantity, reason), n in reasons.items():
        yield f"no {QUANTITIES[quantity]} of {n} cells: {reason}"


def _shown(one: Forecast) -> str:
    if one.median is None:
        return ""
    form = {"memory_bytes": bytes_of, "loss": "{:.3f}".format}.get(one.quantity, "{:.3g}".format)
    ends = unfinished.interval(one, LEVEL)
    said = f" ({form(ends.low)} to {form(ends.high)})" if ends else ""
    return form(one.median) + said


def verify(study: Path) -> tuple[str, bool]:
    """A line for each seal of a study, and whether all are as they were sealed."""
    paths = sorted((study / forecast.FOLDER).glob("*.json"))
    lines, intact = [], True
    for path in paths:
        values, is_intact = forecast.read(path)
        intact &= is_intact
        known = f"sealed {values.get('sealed')}, {len(values.get('forecasts', []))} predictions"
        lines.append(f"{path}: {known if is_intact else 'was changed, so it is not scored'}")
    return "\n".join(lines or [f"{study} has no sealed forecast"]), intact
