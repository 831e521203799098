"""The points of all fits of the loss: losses at shares of the budget.

The final loss of a decayed branch is the loss that a budget can reach; the loss of a trunk at its
constant learning rate is higher. Both are points, each of its own schedule: a law is fitted to each
schedule apart and never mixes two of them, nor different sources.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

QUERY_OF = """
    SELECT source, schedule, split, attention, size, context, seed, trunk, params, params_total,
        params_positions, unit, share, budget, updates, tokens, hours, spent, flops, loss
    FROM {view}
    ORDER BY source, attention DESC, params, size, context, seed, share, schedule
"""
"""For a view with the columns of ``law_points``."""
QUERY = QUERY_OF.format(view="law_points")

LOSSES = {
    "decayed": "final {} loss at a decayed learning rate",
    "constant": "{} loss of trunks at a constant learning rate",
    "unknown": "{} loss of runs of unknown schedule",
}
"""Which losses the points of each schedule are, by the kind of text."""


def describe(schedule: str, split: str) -> str:
    """Which losses the points of a schedule and of a kind of text are."""
    return LOSSES[schedule].format({"train": "training"}.get(split, split))


class Point(NamedTuple):
    """A row of ``QUERY``."""

    source: str
    schedule: str
    """Learning rate up to here: ``decayed``, ``constant``, or ``unknown`` of published runs."""
    split: str
    """Text of the loss: ``validation`` or ``train``."""
    attention: str
    size: str
    context: int
    seed: int
    trunk: str
    params: int
    params_total: int
    params_positions: int
    """Parameters of learned positions, part of ``params_total``."""
    unit: str
    """Unit of budgets: ``hours`` or ``updates``."""
    share: float
    """Fraction of the run's budget."""
    budget: float
    """This fraction in ``unit``."""
    updates: float
    tokens: float
    hours: float
    spent: float
    """Actual cost up to this point, in ``unit``."""
    flops: float | None
    loss: float
    """Nats per token."""

    @property
    def cell(self) -> tuple[str, str, int]:
        """Label that runs share if they differ in their seed only."""
        return self.attention, self.size, self.context


@dataclass(frozen=True)
class Group:
    """Points of one fit: of one source, one schedule and one kind of loss."""

    points: tuple[Point, ...]

    @property
    def source(self) -> str:
        return self.points[0].source

    @property
    def schedule(self) -> str:
        return self.points[0].schedule

    @property
    def unit(self) -> str:
        return self.points[0].unit

    @property
    def description(self) -> str:
        """Which losses were fitted, for tables and figures."""
        return describe(self.schedule, self.points[0].split)

    def column(self, name: str) -> NDArray:
        """One field of every point."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)

    @property
    def trunks(self) -> list[str]:
        return [point.trunk for point in self.points]

    @property
    def cells(self) -> list[tuple[str, str, int]]:
        return [point.cell for point in self.points]

    def split(self, by: str) -> dict:
        """The points by one of their fields, in the order of appearance."""
        return {key[0]: group for key, group in _split(self.points, (by,)).items()}


def read(rows: Iterable[tuple]) -> list[Point]:
    """Points from rows of ``QUERY`` or of the data of a figure."""
    return [Point(*row) for row in rows]


def groups(points: Iterable[Point], *by: str) -> dict[tuple, Group]:
    """Points by source, schedule and the fields ``by``, in the order of appearance; keys have the
    same order."""
    return _split(points, ("source", "schedule", *by))


def _split(points: Iterable[Point], by: tuple[str, ...]) -> dict[tuple, Group]:
    parts = defaultdict(list)
    for point in points:
        parts[tuple(getattr(point, name) for name in by)].append(point)
    return {key: Group(tuple(part)) for key, part in parts.items()}
