"""Rows of the table ``cells``: every cell and branch of a study, planned or skipped."""

from collections.abc import Iterator
from typing import Any

from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.config.grid import Grid
from lmscaling.types import dump


def rows(grid: Grid) -> Iterator[dict[str, Any]]:
    """The cells of a study in its order: trunks, branches, skipped ones, those of tasks.

    Each has its own values and those that follow from them, which ``grid.sql`` makes columns of.
    """
    cells = [(cell, None) for cell in [*grid.cells.values(), *grid.branches.values()]]
    tasks = [(cell, None) for cell in grid.tasks.values()]
    for place, (cell, skipped) in enumerate([*cells, *grid.skipped, *tasks]):
        budget = parse_budget(cell.budget)
        yield dump(cell) | {
            "run": cell.run,
            "name": cell.name,
            "trunk": cell.trunk,
            "masked": cell.is_masked,
            "baseline": grid.study.compared_with,
            "budget_amount": budget.amount,
            "budget_unit": budget.unit,
            "skipped": skipped,
            "present_code": code.present(cell),
            "place": place,
        }
