"""Predictions of the runs of a study that have not begun, for ``lmscaling forecast``."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lmscaling import __version__, files
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError
from lmscaling.fits import loss_surface, points
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.formatting import bytes_of, folded, noted
from lmscaling.plan.estimate import Forecast as Cost
from lmscaling.plan.footprint import Shape
from lmscaling.records import forecast
from lmscaling.records.forecast import QUANTITIES
from lmscaling.runtime import commit
from lmscaling.store import build as store
from lmscaling.types import dump

Row = dict[str, Any]
"""``run``, ``name``, ``quantity``, and ``median`` and ``sd`` of ``Sealed`` or the ``reason``."""


def predict(study: Path, grid: Grid, costs: dict[str, Cost], shapes: dict[str, Shape]) -> list[Row]:
    """Each of ``QUANTITIES`` of each run of ``results/<study>`` that can run and has not begun: it
    has neither a record nor an attempt. ``costs`` and ``shapes`` are those of the plan,
    by run."""
    groups, found = _finished(study), []
    for run, cell in grid.cells.items():
        cost, attempts = costs[run], (study / "scratch" / run).glob("attempt-*.jsonl")
        has_record = (study / "runs" / run / "run.json").is_file()
        if has_record or any(attempts) or cost.cannot:
            continue
        if cell.gpus:
            time = _known(cost.update_seconds, cost.update_sd)
            memory = _known(cost.memory_bytes, cost.memory_sd)
        else:  # what else runs on its cores changes the time of all runs alike
            time = {"reason": "times on a CPU have no interval that was shown to hold"}
            memory = {"reason": "memory is not measured on a CPU"}
        loss = _loss(groups, cell, shapes[run].params, cost.tokens)
        for quantity, values in zip(QUANTITIES, (time, memory, loss), strict=True):
            found.append({"run": run, "name": cell.name, "quantity": quantity, **values})
    return found


def _known(median: float | None, sd: float | None) -> Row:
    return {"median": median, "sd": sd} if median and sd else {"reason": "not known"}


def _finished(study: Path) -> dict[tuple, Group]:
    """The points of losses by source, schedule, attention and context."""
    if not any(study.glob("runs/*/run.json")):
        return {}
    store.build(study)
    with store.connect(study / "store") as db:
        return points.groups(points.read(db.sql(points.QUERY).fetchall()), "attention", "context")


def _loss(groups: dict[tuple, Group], cell: Cell, N: int, D: int | None) -> Row:
    """The value of the loss surface at ``N`` parameters without embeddings and ``D`` tokens. It has
    no interval: how often one would hold between the finished runs has not been shown."""
    schedule = "constant" if cell.schedule.kind == "constant" else "decayed"
    group = groups.get(("measured", schedule, cell.attention, cell.context))
    if not group:
        return {"reason": f"no run of {cell.attention} at {cell.context:,} has finished"}
    if cell.lr_scale != 1:
        return {"reason": "losses are predicted at lr_scale 1 only"}
    if D is None:
        return {"reason": "its number of tokens is not known"}
    for name, of, at in (("parameters", "params", N), ("tokens", "tokens", D)):
        seen = group.column(of)
        if not 0.99 * seen.min() <= at <= 1.01 * seen.max():
            return {"reason": f"its {name} are beyond those of the finished runs"}
    surface = _surface(group)
    if surface.estimate is None or surface.status == "refused":
        return {"reason": f"no loss surface: {loss_surface.STATUSES[surface.status]}"}
    return {"median": float(surface.loss(N, D))}


@cache
def _surface(group: Group) -> LossSurface:
    return loss_surface.fit_group(group)


def seal(study: Path, grid: Grid, forecasts: list[Row]) -> tuple[Path, str]:
    """Write predictions where nobody changes them: the path, and the SHA-256 to publish."""
    return forecast.write(
        study,
        {
            "study": grid.study.study,
            "study_sha256": files.digest(dump(grid.study)),
            "version": __version__,
            "commit": commit.commit(),
            "sealed": datetime.now(UTC).isoformat(timespec="seconds"),  # as runs have it
            "forecasts": forecasts,
        },
    )


def table(forecasts: list[Row]) -> str:
    """A line for each run with medians, and the reasons of what is not predicted."""
    forms = {"update_seconds": "{:.3g}".format, "memory_bytes": bytes_of, "loss": "{:.3f}".format}
    cells: dict[str, list[str]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for one in forecasts:
        what, median = one["quantity"], one.get("median")
        cells[one["name"]].append("" if median is None else forms[what](median))
        if "reason" in one:
            reasons[f"no {QUANTITIES[what]} of {{}} cells: {one['reason']}"] += 1
    rows = [[name, *medians, ""] for name, medians in cells.items()]
    said = [f"{len(cells)} cells have not begun"]
    said += [sentence.replace("{}", str(n)) for sentence, n in reasons.items()]
    told = [line for text in said for line in folded(text)]
    return "\n".join([*noted([["cell", *QUANTITIES.values(), ""], *rows], left={0}), "", *told])


def verify(study: Path) -> str:
    """A line for each seal of a study.

    Raises:
        UserError: One was changed.
    """
    seals = forecast.read(study)
    told = "\n".join(
        f"{path}: sealed {values['sealed']}, {len(values['forecasts'])} predictions"
        if values
        else f"{path}: was changed, so it is not scored"
        for path, values in seals.items()
    )
    if None in seals.values():
        raise UserError(f"{told}; put the file back that was sealed")
    return told or f"{study} has no sealed forecast"
