"""Counts of the models of a study whose budget is in FLOPs or tokens per parameter."""

from typing import Any

from lmscaling.config import grid
from lmscaling.config.budget import parse_budget
from lmscaling.model import sizing


def count(values: dict[str, Any]) -> None:
    """Write ``counts`` into a study, by which ``grid.expand`` knows the updates of its budgets.

    Raises:
        UserError: The study is invalid, or the FLOPs of an attention cannot be counted.
    """
    values.pop("counts", None)
    study = grid.expand(values)
    cells = [*study.cells.values(), *study.tasks.values(), *(cell for cell, _ in study.skipped)]
    models = {c.computation: c for c in cells if parse_budget(c.budget).is_of_model}
    values["counts"] = {
        name: {
            "flops_per_token": float(shape.flops_per_token),
            "params_total": shape.params_total,
            "params": shape.params,
        }
        for name, shape in ((name, sizing.shape(cell)) for name, cell in models.items())
    }
