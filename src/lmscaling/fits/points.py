"""The points of all fits of the loss: losses at shares of the budget.

The final loss of a decayed branch is the loss that a budget can reach, so a fit uses branches if
there are any, and otherwise the losses of trunks at their constant learning rate. One fit never
mixes the two, nor different sources.
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
    """Learning rate up to this point: ``decayed`` or ``constant``."""
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
        kind = {"validation": "validation", "train": "training"}[self.points[0].split]
        if self.schedule == "decayed":
            return f"final {kind} loss of decayed branches"
        reason = "" if self.source == "published" else " (no finished branches)"
        return f"{kind} loss of trunks at a constant learning rate{reason}"

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
    """Points by source and the fields ``by``, in the order of appearance; keys have the same order.
    A group with decayed points keeps only those."""
    groups = {}
    for key, group in _split(points, ("source", *by)).items():
        decayed = tuple(point for point in group.points if point.schedule == "decayed")
        groups[key] = Group(decayed) if decayed else group
    return groups


def _split(points: Iterable[Point], by: tuple[str, ...]) -> dict[tuple, Group]:
    parts = defaultdict(list)
    for point in points:
        parts[tuple(getattr(point, name) for name in by)].append(point)
    return {key: Group(tuple(part)) for key, part in parts.items()}
