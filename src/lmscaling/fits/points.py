"""The points that laws of loss are fitted to: losses at shares of the budget.

The ends of decayed branches are what a budget is worth and are preferred; points that trunks pass
at their constant rate stand in only where a fit would have no branch at all. The two are never
mixed in one fit, nor are the numbers of different people.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

QUERY = """
    SELECT source, schedule, split, attention, size, context, seed, trunk, params, params_total,
        params_positions, unit, share, budget, updates, tokens, hours, spent, flops, loss
    FROM law_points
    ORDER BY source, attention DESC, params, size, context, seed, share, schedule
"""


class Point(NamedTuple):
    """A row of ``QUERY``."""

    source: str
    schedule: str
    """``decayed`` or ``constant``: how the learning rate came to this point."""
    split: str
    """What the loss was measured on: ``validation`` or ``train``."""
    attention: str
    size: str
    context: int
    seed: int
    trunk: str
    params: int
    params_total: int
    params_positions: int
    """Learned positions, which ``params_total`` counts."""
    unit: str
    """What budgets count: ``hours``, else ``updates``."""
    share: float
    budget: float
    """The share of it, in its unit."""
    updates: float
    tokens: float
    hours: float
    spent: float
    """What the point took of ``unit``."""
    flops: float | None
    loss: float
    """Nats per token."""

    @property
    def cell(self) -> tuple[str, str, int]:
        """What runs have in common that differ in seed only."""
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
    def of(self) -> str:
        """What its points are, in words."""
        kind = {"validation": "validation", "train": "training"}[self.points[0].split]
        if self.schedule == "decayed":
            return f"ends of decayed runs, {kind} loss"
        less = "" if self.source == "published" else "no branch is done: "
        return f"{less}trunks at a constant rate, {kind} loss"

    def column(self, name: str) -> NDArray:
        """One number of every point."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)

    @property
    def trunks(self) -> list[str]:
        return [point.trunk for point in self.points]

    @property
    def cells(self) -> list[tuple[str, str, int]]:
        return [point.cell for point in self.points]

    def split(self, by: str) -> dict:
        """Its points by one of their columns, in the order of appearance."""
        return {key[0]: group for key, group in _split(self.points, (by,)).items()}


def read(rows: Iterable[tuple]) -> list[Point]:
    """Rows of ``QUERY`` or of a figure's data."""
    return [Point(*row) for row in rows]


def groups(points: Iterable[Point], *by: str) -> dict[tuple, Group]:
    """The points of each source that agree in some columns, in the order of appearance; keys are
    the source and the columns. Where any is decayed, only those are kept."""
    made = {}
    for key, group in _split(points, ("source", *by)).items():
        decayed = tuple(point for point in group.points if point.schedule == "decayed")
        made[key] = Group(decayed) if decayed else group
    return made


def _split(points: Iterable[Point], by: tuple[str, ...]) -> dict[tuple, Group]:
    parts = defaultdict(list)
    for point in points:
        parts[tuple(getattr(point, name) for name in by)].append(point)
    return {key: Group(tuple(part)) for key, part in parts.items()}
