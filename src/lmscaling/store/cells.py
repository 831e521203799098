"""Rows of the table ``cells``: every cell and branch of a study, planned or skipped."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.types import dump


def rows(grid: Grid) -> Iterator[dict[str, Any]]:
    """The cells of a study in its order: trunks, branches, skipped ones, those of tasks.

    Each has its own values and those that follow from them, which ``grid.sql`` makes columns of.
    """
    cells = [(cell, None) for cell in [*grid.cells.values(), *grid.branches.values()]]
    tasks = [(cell, None) for cell in grid.tasks.values()]
    everything = [*cells, *grid.skipped, *tasks]
    most: dict[tuple, float] = defaultdict(float)
    for cell, _ in everything:
        most[_point(cell)] = max(most[_point(cell)], _spends(cell))
    for place, (cell, skipped) in enumerate(everything):
        budget, rung = parse_budget(cell.budget), cell.rung and parse_budget(cell.rung)
        share = _spends(cell) / most[_point(cell)]
        yield dump(cell) | {
            "run": cell.run,
            "name": cell.name,
            "trunk": cell.trunk,
            "branch": cell.branch or (share if share < 1 else None),
            "rung_amount": rung and rung.amount,
            "rung_unit": rung and rung.unit,
            "masked": cell.is_masked,
            "baseline": grid.study.compared_with,
            "budget_amount": budget.amount,
            "budget_unit": budget.unit,
            "skipped": skipped,
            "present_code": code.present(cell),
            "present_program": code.program(cell),
            "place": place,
        }


def _point(cell: Cell) -> tuple:
    """What the cells of an axis of budgets share."""
    return cell.task, cell.attention, cell.size, cell.context, cell.seed, cell.lr_scale


def _spends(cell: Cell) -> float:
    """The budget in the unit that cells of a point share."""
    budget = parse_budget(cell.budget)
    return budget.seconds or budget.updates(cell.update_tokens)
