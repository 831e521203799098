"""Predictions of the runs of a study that have not begun, for ``lmscaling forecast``."""

from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pandas import read_csv

from lmscaling import __version__
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError, choose
from lmscaling.files import digest
from lmscaling.fits import forecast_scores, holdout, loss_surface, points
from lmscaling.fits.holdout import Holdout
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.formatting import noted
from lmscaling.plan.estimate import Forecast as Cost
from lmscaling.plan.footprint import Shape
from lmscaling.records import forecast
from lmscaling.runtime import commit
from lmscaling.store import build as store
from lmscaling.types import dump

Row = dict[str, Any]
"""``run``, ``name``, ``quantity``, and other fields of ``Sealed``."""


def predict(study: Path, grid: Grid, costs: dict[str, Cost], shapes: dict[str, Shape]) -> list[Row]:
    """The loss of each run of ``results/<study>`` that can run and has neither a record nor an
    attempt, those of its branches, and on a GPU its time and memory; on a CPU other jobs change
    these. ``costs`` and ``shapes`` are those of the plan, by run."""
    groups, found = _finished(study), []
    for run, cell in grid.cells.items():
        cost, attempts = costs[run], (study / "scratch" / run).glob("attempt-*.jsonl")
        has_record = (study / "runs" / run / "run.json").is_file()
        if has_record or any(attempts) or cost.cannot:
            continue
        ends = {run: cell, **{key: one for key, one in grid.branches.items() if one.trunk == run}}
        for key, one in ends.items():
            D = cost.tokens and round(cost.tokens * (one.branch or 1.0))
            loss = _loss(groups, one, shapes[run].params, D)
            found.append({"run": key, "name": one.name, "quantity": "loss", **loss})
        values = {}
        if cell.gpus and cost.update_seconds and cost.update_sd:
            values["update_seconds"] = {"median": cost.update_seconds, "sd": cost.update_sd}
        if cell.gpus and cost.memory_bytes and cost.memory_sd:
            values["memory_bytes"] = {"median": cost.memory_bytes, "sd": cost.memory_sd}
        found += [{"run": run, "name": cell.name, "quantity": q, **v} for q, v in values.items()]
    return found


def _finished(study: Path) -> dict[tuple, Group]:
    """The points of losses by source, schedule, attention and context."""
    if not any(study.glob("runs/*/run.json")):
        return {}
    store.build(study)
    with store.connect(study / "store") as db:
        return points.groups(points.read(db.sql(points.QUERY).fetchall()), "attention", "context")


def _loss(groups: dict[tuple, Group], cell: Cell, N: int, D: int | None) -> Row:
    """The loss surface at ``N`` parameters without embeddings and ``D`` tokens, and a ruler. Only
    beyond the points it has an interval: between them none was shown to hold."""
    decays = cell.branch is not None or cell.schedule.kind != "constant"
    schedule = "decayed" if decays else "constant"
    group = groups.get(("measured", schedule, cell.attention, cell.context))
    if not group:
        return {"reason": f"no run of {cell.attention} at {cell.context:,} has finished"}
    if cell.lr_scale != 1:
        return {"reason": "losses are predicted at lr_scale 1 only"}
    if D is None:
        return {"reason": "its number of tokens is not known"}
    surface = _surface(group)
    if surface.estimate is None or surface.status == "refused":
        return {"reason": f"no loss surface: {loss_surface.STATUSES[surface.status]}"}
    found = {"median": float(surface.loss(N, D)), **forecast_scores.ruler(group, N, D)}
    places = {"params": N, "tokens": D}
    is_beyond = any(at > 1.01 * group.column(of).max() for of, at in places.items())
    held = _held_out(group) if is_beyond else []
    form = holdout.form_error(held, N, D)
    if form is not None and all(one.status != "missed" for one in held):
        x, z = np.log([[N], [D]]) - np.reshape(surface.estimate.design.centre, (2, 1))
        (error,) = holdout.predict(surface.estimate, x, z, np.ones(1))[1]
        found["sd"] = float(np.hypot(error, form)) / found["median"]
        found["degrees"] = float(surface.estimate.degrees)
    return found


@cache
def _surface(group: Group) -> LossSurface:
    return loss_surface.fit_group(group)


@cache
def _held_out(group: Group) -> list[Holdout]:
    return [holdout.fit_group(group, by) for by in get_args(holdout.By)]


def stated(path: Path, forecasts: list[Row]) -> list[Row]:
    """The losses that a CSV states in place of predicted ones: ``name`` of a cell and fields of
    ``Sealed``, a row for each guess that has to be beaten.

    Raises:
        UserError: A column is missing, or no such cell is still to begin.
    """
    rows = read_csv(path)
    if lacking := {"name", "median"} - {*rows}:
        raise UserError(f"{path}: write a column {min(lacking)}")
    runs = {one["name"]: one["run"] for one in forecasts}
    for name in {*rows["name"]} - {*runs}:
        raise UserError(f"{path}: {name} is no cell that is still to begin; {choose(name, runs)}")
    others = [o for o in forecasts if o["quantity"] != "loss" or o["name"] not in {*rows["name"]}]
    told = [{k: v for k, v in row.items() if v == v} for row in rows.to_dict("records")]  # no NaN
    return others + [{**row, "run": runs[row["name"]], "quantity": "loss"} for row in told]


def table(forecasts: list[Row]) -> str:
    """A line for each prediction with what it has to beat, or why there is none."""
    lines = [["cell", "quantity", "predicted", "to beat", ""]]
    for one in forecasts:
        shown = (forecast.shown(one, of) for of in ("median", "baseline_median"))
        quantity = forecast.QUANTITIES[one["quantity"]]
        lines.append([one["name"], quantity, *shown, one.get("reason", "")])
    runs = len({one["run"] for one in forecasts})
    return "\n".join([*noted(lines, left={0, 1}), "", f"{runs} runs have not begun"])


def seal(study: Path, grid: Grid, forecasts: list[Row]) -> tuple[Path, str]:
    """Write predictions to ``forecasts/`` of a study: the path, and the SHA-256 to publish."""
    about = {"study": study.name, "study_sha256": digest(dump(grid.study))}
    code = {"version": __version__, "commit": commit.commit()}
    return forecast.write(study, forecasts, **about, **code)


def verify(study: Path) -> str:
    """A line for each seal of a study.

    Raises:
        UserError: One was changed.
    """
    told = {
        path: f"sealed {values['sealed']}, {len(values['forecasts'])} predictions" if values else ""
        for path, values in forecast.read(study).items()
    }
    for path in (path for path, said in told.items() if not said):
        raise UserError(f"{path} was changed, so it is not scored; put the file back")
    lines = [f"{path}: {said}" for path, said in told.items()]
    return "\n".join(lines) or f"{study} has no sealed forecast"
