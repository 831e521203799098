"""What finished runs of a study say of the final losses of the others.

Only runs that differ in attention, size, context and seed are compared: those of one learning rate
and one budget. Without finished runs nothing is computed and nothing is imported.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.records import finished
from lmscaling.records.forecast import Baseline, Predicted

LEVEL = 0.8
"""Probability of the intervals that are printed."""
FEWEST = 3
"""Finished runs from which a plain guess has a standard deviation."""


def _loss(record: dict[str, Any]) -> float | None:
    return record.get("last_val_loss")


@dataclass(frozen=True)
class Known:
    """The trunks of a study, and the records of those that are done, by run."""

    grid: Grid
    done: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, study: Path, grid: Grid) -> Self:
        """From ``results/<study>/``."""
        paths = {run: study / "runs" / run / "run.json" for run in grid.cells}
        records = {run: finished.look(path) for run, path in paths.items() if path.is_file()}
        return cls(grid, {run: r for run, r in records.items() if r["status"] == "done"})

    def predict(self, wanted: set[str]) -> dict[str, Predicted]:
        """The predicted loss of each wanted run, or the reason why there is none."""
        if not self.done:
            return {run: Predicted(reason="no run has finished") for run in wanted}
        from lmscaling.fits import unfinished

        cells = self.grid.cells
        left = [run for run in cells if run in wanted]
        known = [_run(cells[run], self._loss(run)) for run in self.done if run not in wanted]
        found = unfinished.predict(known, [_run(cells[run]) for run in left])
        return dict(zip(left, found, strict=True))

    def baseline(self, run: str) -> Baseline:
        """The loss of the nearest finished run."""
        cell = self.grid.cells[run]
        known = {
            other: value
            for other in self.done
            if other != run and _group(self.grid.cells[other]) == _group(cell)
            and math.isfinite(value := self._loss(other)) and value > 0
        }  # fmt: skip
        if len(known) < FEWEST:
            return Baseline()
        logs = {other: math.log(value) for other, value in known.items()}
        errors = [logs[o] - logs[self._nearest(o, set(known) - {o})] for o in known]
        return Baseline(
            baseline="the nearest finished run",
            baseline_median=math.exp(logs[self._nearest(run, set(known))]),
            baseline_sd=max(math.sqrt(sum(e * e for e in errors) / len(errors)), 1e-6),
        )

    def _nearest(self, run: str, others: set[str]) -> str:
        cell = self.grid.cells[run]

        def distance(other: str) -> tuple[float, bool, str]:
            at = self.grid.cells[other]
            apart = math.log(_size(at) / _size(cell)), math.log(at.context / cell.context)
            return round(math.hypot(*apart), 9), at.attention != cell.attention, other

        return min(others, key=distance)

    def _loss(self, run: str) -> float:
        """NaN if the record has none."""
        value = _loss(self.done[run])
        return math.nan if value is None else value


def _group(cell: Cell) -> tuple[float, str, int]:
    return cell.lr_scale, cell.budget, cell.update_tokens


def _size(cell: Cell) -> float:
    """In proportion to the parameters of the blocks; no model has to be built for it."""
    return float(cell.model.n_layer * cell.model.d_model**2)


def _run(cell: Cell, value: float = math.nan) -> Any:
    from lmscaling.fits.unfinished import Run

    place = cell.attention, cell.size, _size(cell), cell.context, cell.seed
    return Run(*place, value, _group(cell))


def of_unfinished(study: Path, grid: Grid) -> tuple[dict[str, str], list[str]]:
    """The predicted final loss of each unfinished run, as text, and sentences about all of them."""
    known = Known.read(study, grid)
    wanted = set(grid.cells) - set(known.done)
    if not wanted or not any(map(_loss, known.done.values())):
        return {}, []
    from lmscaling.fits.unfinished import interval

    found = known.predict(wanted)
    ends = {run: at for run, one in found.items() if (at := interval(one, LEVEL))}
    texts = {
        run: f"predicted {found[run].median:.3f} ({at.low:.3f} to {at.high:.3f})"
        for run, at in ends.items()
    }
    reasons = Counter(one.reason for one in found.values() if one.reason)
    told = [f"{n} cells have no predicted loss: {reason}" for reason, n in reasons.items()]
    if texts:
        runs = f"{len(known.done)} finished runs"
        told.insert(
            0, f"predicted final losses are from {runs}, with their {100 * LEVEL:.0f} % intervals"
        )
    return texts, told


def lines(study: Path, grid: Grid) -> list[str]:
    """A sentence on the losses that finished runs predict for the others, for a plan."""
    known = Known.read(study, grid)
    if not known.done:
        return []
    found = known.predict(set(grid.cells) - set(known.done))
    told = [one.median for one in found.values() if one.median is not None]
    if not told:
        return []
    return [
        f"{len(known.done)} finished runs predict the final loss of {len(told)} of the other "
        f"{len(found)} cells: {min(told):.3f} to {max(told):.3f} nats; lmscaling status {study} "
        "lists them"
    ]
