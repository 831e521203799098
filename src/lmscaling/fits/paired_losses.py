"""Losses by seed and by the value of one varied quantity, such as the context, and their scatter.

Runs with the same seed share data and their order, so what counts is how runs scatter about an
additive model of seeds and values. A run that deviates from this model by itself is left out and
named, and so is a run whose loss would differ at its budget, because it spent too little or too
much.

Legend: ``r`` runs, ``T`` budgets.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from lmscaling.fits.noise import Noise, Place, Spread
from lmscaling.fits.points import Group, Point
from lmscaling.fits.uncertainty import codes

DEVIATES = 0.005
"""Significance level, for all runs of a table together, at which a run is left out."""
FEWEST_SEEDS = 3
"""Two seeds that disagree do not show which of them deviates."""
EXACT = 0.01
"""Relative difference between what a run spent and its budget that is never corrected."""
SLOPE = 0.25
"""Nats per e-fold of the budget, for a run without other points: the steepest published run."""


class Short(NamedTuple):
    """A run that was not fitted because it spent too little or too much."""

    run: str
    share: float
    spent: float
    budget: float


@dataclass(frozen=True)
class Table:
    """Losses of runs by value and seed, at one or several budgets."""

    log_x_r: NDArray
    seed_r: NDArray[np.intp]
    loss_rT: NDArray
    """NaN where a run has no loss at a budget."""
    run_r: tuple[str, ...]

    @classmethod
    def from_losses(
        cls, x: Iterable[float], loss: Any, seed: Iterable | None = None, run: Iterable = ()
    ) -> "Table":
        """From losses ``[r]`` or ``[r, T]``; by default all runs have the same seed."""
        log_x = np.log(np.asarray(x, dtype=float))
        loss = np.asarray(loss, dtype=float)
        loss = loss[:, None] if loss.ndim == 1 else loss
        seed_r = np.zeros(len(log_x), dtype=np.intp) if seed is None else codes(seed)
        return cls(log_x, seed_r, loss, tuple(map(str, run)) or ("",) * len(log_x))

    @property
    def value_r(self) -> NDArray[np.intp]:
        return np.unique(self.log_x_r, return_inverse=True)[1]

    def without(self, rows: Iterable[int]) -> "Table":
        """The table without some of its rows."""
        kept = np.setdiff1d(np.arange(len(self.log_x_r)), np.array(list(rows), dtype=np.intp))
        runs = tuple(self.run_r[row] for row in kept)
        return Table(self.log_x_r[kept], self.seed_r[kept], self.loss_rT[kept], runs)

    def deviating(self) -> list[int]:
        """Rows that deviate from an additive model of seeds and values, the farthest first."""
        known = np.flatnonzero(np.isfinite(self.loss_rT).any(axis=1))
        if not len(known):
            return []
        mean = np.zeros(len(self.log_x_r))
        mean[known] = np.nanmean(self.loss_rT[known], axis=1)
        rows, out = known, []
        while True:
            left = self._additive(rows)
            share, free = left.diagonal(), round(float(np.trace(left)))
            seeds = np.bincount(self.value_r[rows])[self.value_r[rows]]
            usable = (seeds >= FEWEST_SEEDS) & (share > 1e-9)
            if free < 2 or not usable.any():
                return out
            residual = left @ mean[rows]
            scaled = np.where(usable, residual**2 / np.where(usable, share, 1), 0)
            worst = int(scaled.argmax())
            others = max(float(residual @ residual - scaled[worst]) / (free - 1), 1e-30)
            p_value = 2 * t.sf(np.sqrt(scaled[worst] / others), free - 1)
            if p_value * len(known) >= DEVIATES:
                return out
            out.append(int(rows[worst]))
            rows = np.delete(rows, worst)

    def scatter(self) -> tuple[NDArray, int]:
        """Sums of products ``[T, T]`` of what the additive model leaves of runs with losses at all
        budgets, and its degrees of freedom."""
        rows = np.flatnonzero(np.isfinite(self.loss_rT).all(axis=1))
        if not len(rows):
            return np.zeros((self.loss_rT.shape[1],) * 2), 0
        left = self._additive(rows)
        residual = left @ self.loss_rT[rows]
        return residual.T @ residual, round(float(np.trace(left)))

    def _additive(self, rows: NDArray) -> NDArray:
        """``[r, r]``: projects losses onto what an additive model of seeds and values leaves."""
        columns = np.hstack([indicators(self.seed_r[rows]), indicators(self.value_r[rows])])
        return np.eye(len(rows)) - columns @ np.linalg.pinv(columns)


@dataclass(frozen=True)
class Scatter:
    """Noise of a run relative to others of the same seed."""

    covariance_TT: NDArray
    """Over budgets, nats squared."""
    spread: Spread
    known: bool = True
    """Whether the correlation over budgets was measured."""

    def variance(self, weight_rT: NDArray) -> float:
        """Variance of a weighted sum of losses."""
        if self.known:
            return float(np.einsum("rt,tu,ru->", weight_rT, self.covariance_TT, weight_rT))
        # With any correlation between 0 and 1 the variance lies between these two.
        weight = weight_rT * np.sqrt(self.covariance_TT.diagonal())
        return float(max((weight**2).sum(), (weight.sum(axis=1) ** 2).sum()))

    def joint(self, weight_rT: NDArray) -> NDArray:
        """Covariance ``[T, T]`` of sums of weighted losses of each budget."""
        return np.einsum("rt,tu,ru->tu", weight_rT, self.covariance_TT, weight_rT)


def measure(tables: Mapping[Any, Table], places: Mapping[Any, Place]) -> dict[Any, Scatter]:
    """The scatter in each table of a study."""
    sums = {key: table.scatter() for key, table in tables.items()}
    variances = {
        key: (float(products.trace()) / max(free * len(products), 1), free, _seeds(tables[key]))
        for key, (products, free) in sums.items()
    }
    noise = Noise.from_variances(variances, places)
    found = {}
    for key, (own, _) in sums.items():
        size, spread = len(own), noise.at(key)
        shape = np.zeros_like(own)
        for products, _ in sums.values():
            if products.shape == own.shape and products.trace() > 0:
                shape += products / products.trace()
        known = bool(shape.any())
        shape = shape * size / shape.trace() if known else np.eye(size)
        found[key] = Scatter(spread.sd**2 * shape, spread, known or size == 1)
    return found


class Prepared(NamedTuple):
    """The table of a group of points, and what its fit needs."""

    table: Table
    budgets: tuple[float, ...]
    scatter: Scatter
    left_out: tuple[str, ...]
    short: tuple[Short, ...]


def prepare(
    groups: Mapping[Any, Group], by: str, shares: Iterable[float] | None = None
) -> dict[Any, Prepared]:
    """Tables over one field of the points, ``params`` or ``context``, at some shares of the budget
    or at all. Groups of the same source and schedule share their noise."""
    alike = defaultdict(dict)
    for key, group in groups.items():
        alike[group.source, group.schedule][key] = group
    chosen = None if shares is None else set(shares)
    return {key: one for part in alike.values() for key, one in _prepare(part, by, chosen).items()}


def _prepare(groups: dict[Any, Group], by: str, shares: set[float] | None) -> dict[Any, Prepared]:
    def at_shares(points: Iterable[Point]) -> list[Point]:
        return [point for point in points if shares is None or point.share in shares]

    exact = {
        key: _table(at_shares(p for p in group.points if _away(p) <= EXACT), by)[0]
        for key, group in groups.items()
    }
    places = {
        key: Place(
            *(float(np.exp(np.log(group.column(name)).mean())) for name in ("params", "context")),
            attention=group.points[0].attention,
        )
        for key, group in groups.items()
    }
    clean = {key: table.without(table.deviating()) for key, table in exact.items()}
    noise = measure(clean, places)
    found = {}
    for key, group in groups.items():
        kept, short = comparable(group, noise[key].spread.sd)
        table, budgets = _table(at_shares(kept), by)
        scatter = noise[key]
        if len(scatter.covariance_TT) != len(budgets):  # budgets that only inexact points reach
            level = scatter.spread.sd**2 * np.eye(len(budgets))
            scatter = Scatter(level, scatter.spread, len(budgets) == 1)
        out = table.deviating()
        left_out = tuple(table.run_r[row] for row in out)
        short = tuple(one for one in short if shares is None or one.share in shares)
        found[key] = Prepared(table.without(out), budgets, scatter, left_out, short)
    return found


def comparable(group: Group, sd: float) -> tuple[list[Point], tuple[Short, ...]]:
    """The points whose loss differs by less than half of ``sd`` from that at their budget, by the
    slope of their run, and those that do not."""
    runs = defaultdict(list)
    for point in group.points:
        runs[point.trunk].append(point)
    kept, short = [], []
    for point in group.points:
        away = _away(point)
        if away <= EXACT or away * _slope(point, runs[point.trunk]) <= sd / 2:
            kept.append(point)
        else:
            short.append(Short(point.trunk, point.share, point.spent, point.budget))
    return kept, tuple(short)


def _away(point: Point) -> float:
    """Relative difference between what a point spent and its budget."""
    return abs(float(np.log(point.spent / point.budget)))


def _slope(point: Point, run: list[Point]) -> float:
    """Nats per e-fold of the budget, between a point and the nearest other of its run."""
    others = {abs(np.log(p.spent / point.spent)): p for p in run if p.spent != point.spent}
    if not others:
        return SLOPE
    return abs(others[min(others)].loss - point.loss) / min(others)


def _table(points: Iterable[Point], by: str) -> tuple[Table, tuple[float, ...]]:
    """Losses by cell, seed and budget, and the budgets. A row is a run with its branches, or the
    runs of an axis of budgets, which share seed and text, too."""
    points = list(points)
    budgets = tuple(sorted({p.budget for p in points}))
    rows: dict[tuple, list[Point]] = defaultdict(list)
    for point in points:
        rows[point.cell, point.seed].append(point)
    loss = np.full((len(rows), len(budgets)), np.nan)
    for i, row in enumerate(rows.values()):
        for point in row:
            loss[i, budgets.index(point.budget)] = point.loss
    x, seeds = ([getattr(row[0], name) for row in rows.values()] for name in (by, "seed"))
    return Table.from_losses(x, loss, seeds, map(_label, rows.values())), budgets


def _label(row: list[Point]) -> str:
    """The run, or what the runs of several budgets have in common."""
    first = row[0]
    runs = {point.trunk for point in row}
    return first.trunk if len(runs) == 1 else f"{first.size}, seed {first.seed}"


def _seeds(table: Table) -> int:
    return len(np.unique(table.seed_r))


def indicators(labels: NDArray) -> NDArray:
    """``[n, labels]``: 1 where a point has a label."""
    return (np.unique(labels) == labels[:, None]).astype(float)
