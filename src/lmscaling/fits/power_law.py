"""Loss over time or compute, ``L(x) = E + k x^-gamma``, for each attention.

All points of a run share one draw of noise. Least squares with an intercept for each run therefore
determine ``gamma`` from differences within runs, which a run that is high or low as a whole does
not change. Each attention has an ``E`` of its own, because at a fixed size it contains what the
size costs.

``E``, ``k`` and ``gamma`` are those of this form and have no intervals. A law that lost minutes at
the start, or a sum of two powers, follows the same points within their noise and has another ``E``
and another exponent; the intervals of this form never held them. What the points determine is the
loss between them: its band contains the values that neither the points (profile of the sum of
squares, Student's t) nor the scatter of the levels of runs reject (``noise``), and holds the loss
of those other laws, too. The variance of points is raised towards that of the other curves of the
study. If means over seeds deviate from the law by more than seeds scatter, or a single run by more
than the points of other curves scatter, the law is refused (F test, 5 %).

Source of the form: Kaplan et al. 2020, arXiv:2001.08361, with the irreducible loss of Henighan et
al. 2020, arXiv:2010.14701.

Legend: ``n`` points, ``g`` exponents tried, ``r`` runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, fminbound
from scipy.stats import t

from lmscaling.fits.noise import Noise, Place, Spread
from lmscaling.fits.optimum import REFUSE, lack_of_fit
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

STATUSES = {
    "fitted": "no lack of fit",
    "refused": "refused: losses deviate from the law by more than the noise",
    "bound": "refused: points do not determine E, or gamma is at a bound",
    "too_few": "fewer than four points, or fewer than three budgets",
    "unknown_schedule": "refused: schedule of the learning rate unknown",
}
OBJECTIVE = "least squares with an intercept for each run"
STARTS_SAID = "60 exponents between 0.02 and 3; E and k are linear"

EXPONENTS = (0.02, 3.0)
"""Bounds of the search. Published exponents of losses lie between 0.05 and 0.8; a power with
exponent 0.02 halves in 35 doublings, which no study can distinguish from a logarithm."""
GRID = np.geomspace(*EXPONENTS, 60)


@dataclass(frozen=True)
class Curve:
    """Losses of the runs of one attention, size and context."""

    x_n: NDArray
    """Hours, FLOPs or updates; positive."""
    loss_n: NDArray
    """Nats per token."""
    run_n: NDArray[np.intp]
    """Runs, numbered from 0."""
    budget_n: NDArray[np.intp]
    """Points of several runs at the same budget have the same number."""
    run_r: tuple[str, ...]
    """Labels of the runs."""

    @classmethod
    def from_points(
        cls,
        x: ArrayLike,
        loss: ArrayLike,
        run: Iterable | None = None,
        budget: Iterable | None = None,
    ) -> "Curve":
        """By default all points are of one run, and points at the same x share a budget."""
        x_n, loss_n = np.asarray(x, dtype=float), np.asarray(loss, dtype=float)
        runs = [""] * len(x_n) if run is None else [str(label) for label in run]
        labels = tuple(dict.fromkeys(runs))
        return cls(x_n, loss_n, codes(runs), codes(x_n if budget is None else budget), labels)

    @property
    def runs(self) -> int:
        return len(self.run_r)

    @property
    def degrees(self) -> int:
        """Points less the intercepts, ``k`` and ``gamma``."""
        return len(self.x_n) - self.runs - 2

    def without(self, run: int) -> "Curve":
        """The curve without a run."""
        kept = self.run_n != run
        labels = [self.run_r[i] for i in self.run_n[kept]]
        return Curve.from_points(self.x_n[kept], self.loss_n[kept], labels, self.budget_n[kept])

    def pure(self) -> tuple[float, int]:
        """Sum of squares that an additive model of runs and budgets leaves, and its degrees of
        freedom; 0 without several runs."""
        columns = np.hstack([
            (np.unique(labels) == labels[:, None]).astype(float)
            for labels in (self.run_n, self.budget_n)
        ])  # fmt: skip
        left = self.loss_n - columns @ (np.linalg.pinv(columns) @ self.loss_n)
        free = len(self.loss_n) - int(np.linalg.matrix_rank(columns))
        return float(left @ left) if free else 0.0, free


class Linear(NamedTuple):
    """Least squares for given exponents."""

    square_g: NDArray
    """Sum of squares."""
    k_g: NDArray
    """In centred units."""
    unit_g: NDArray
    """Variance of ``k`` for a variance of points of 1."""
    mean_g: NDArray
    """Mean of the power over runs."""


@dataclass(frozen=True)
class Fit:
    """Least squares of one curve over all exponents."""

    curve: Curve
    gamma: float = np.nan

    @classmethod
    def of(cls, curve: Curve) -> "Fit":
        """The fit with the smallest sum of squares. Cost: a millisecond."""
        fit = cls(curve)
        best = int(fit.linear(GRID).square_g.argmin())
        near = GRID[max(best - 1, 0)], GRID[min(best + 1, len(GRID) - 1)]
        gamma = fminbound(fit.square_at, *near, xtol=1e-8)
        return replace(fit, gamma=float(np.asarray(gamma)))

    @cached_property
    def centre(self) -> float:
        return float(np.exp(np.log(self.curve.x_n).mean()))

    @cached_property
    def size_r(self) -> NDArray:
        return np.bincount(self.curve.run_n).astype(float)

    @cached_property
    def mean_r(self) -> NDArray:
        return np.bincount(self.curve.run_n, self.curve.loss_n) / self.size_r

    def linear(self, gamma_g: ArrayLike) -> Linear:
        """Least squares of ``k`` and the intercepts for each exponent."""
        run_n = self.curve.run_n
        power = (self.curve.x_n / self.centre) ** -np.atleast_1d(gamma_g)[:, None]
        means = np.array([np.bincount(run_n, row) for row in power]) / self.size_r
        within = power - means[:, run_n]
        loss = self.curve.loss_n - self.mean_r[run_n]
        size = np.maximum((within**2).sum(axis=1), 1e-300)
        k = within @ loss / size
        left = loss - k[:, None] * within
        return Linear((left**2).sum(axis=1), k, 1 / size, means.mean(axis=1))

    def square_at(self, gamma: float) -> float:
        """Sum of squares at an exponent."""
        return float(self.linear(gamma).square_g[0])

    @cached_property
    def best(self) -> Linear:
        """At the fitted exponent."""
        return self.linear(self.gamma)

    @property
    def square(self) -> float:
        """Smallest sum of squares."""
        return float(self.best.square_g[0])

    @property
    def k(self) -> float:
        """In the units of ``x``."""
        return float(self.best.k_g[0] * self.centre**self.gamma)

    @property
    def E(self) -> float:
        return float(self.mean_r.mean() - self.best.k_g[0] * self.best.mean_g[0])

    @property
    def levels_r(self) -> NDArray:
        """Mean of each run above its power."""
        power = (self.curve.x_n / self.centre) ** -self.gamma
        power = np.bincount(self.curve.run_n, power) / self.size_r
        return self.mean_r - self.best.k_g[0] * power

    def exponents(self, rise: float) -> tuple[float, float]:
        """Smallest and largest exponent whose sum of squares is at most ``rise`` above the least;
        infinite beyond the bounds of the search."""
        limit = self.square + rise
        inside = np.append(GRID[self.linear(GRID).square_g <= limit], self.gamma)
        first, last = inside.min(), inside.max()

        def end(start: float, beyond: NDArray) -> float:
            # Rounding can place the minimum itself above the limit of an exact curve.
            if self.square_at(start) >= limit:
                return start
            root = brentq(lambda g: self.square_at(g) - limit, start, beyond[0], xtol=1e-10)
            return float(np.asarray(root))

        low = end(first, GRID[first > GRID][::-1]) if first > GRID[0] else -np.inf
        high = end(last, GRID[last < GRID]) if last < GRID[-1] else np.inf
        return low, high

    def loss_interval(self, x: float, point: Spread, run: Spread) -> Interval:
        """Losses at ``x`` that neither the points nor the levels of the runs reject."""
        away = (x / self.centre) ** -self.gamma - self.best.mean_g[0]
        of_points, of_runs = point.sd**2 * self.best.unit_g[0] * away**2, run.error**2
        parts = of_points**2 / point.degrees + of_runs**2 / run.degrees
        degrees = (of_points + of_runs) ** 2 / parts if parts > 0 else np.inf
        quantile = float(t.isf((1 - LEVEL) / 2, degrees))
        low, high = self.exponents((quantile * point.sd) ** 2)
        gamma = np.append(np.linspace(max(low, GRID[0]), min(high, GRID[-1]), 100), self.gamma)
        square, k, unit, mean = self.linear(gamma)
        away = (x / self.centre) ** -gamma - mean
        value = self.mean_r.mean() + k * away
        rise = (square - self.square) / max(point.sd**2, 1e-20)
        variance = point.sd**2 * unit * away**2 + of_runs
        half = np.sqrt(variance * np.maximum(quantile**2 - rise, 0))
        assumed = run.sd if self.curve.runs == 1 else run.assumed
        return Interval(float((value - half).min()), float((value + half).max()), assumed)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """The law of one attention; it has numbers only if it is fitted."""

    formula: ClassVar[str] = "L(x) = E + k x^-gamma"
    source: ClassVar[str] = "Henighan et al. 2020, arXiv:2010.14701"
    status: str
    """A key of ``STATUSES``."""
    E: float | None = None
    """Of this form, nats per token."""
    k: float | None = None
    gamma: float | None = None
    lack: float | None = None
    """p-value of the test of lack of fit; None if nothing is known about the noise."""
    moved: tuple[str, float] | None = None
    """The run without which ``gamma`` moves most, and ``gamma`` without it; None with one run."""
    fit: Fit | None = field(default=None, repr=False, compare=False)
    point: Spread | None = None
    """Scatter of the points of a run."""
    run: Spread | None = None
    """Scatter of runs."""

    def loss(self, x: ArrayLike) -> NDArray:
        """Predicted losses, nats per token."""
        if self.E is None or self.k is None or self.gamma is None:
            raise ValueError(f"a law of status {self.status!r} has no values")
        return self.E + self.k * np.asarray(x, dtype=float) ** -self.gamma

    def band(self, x: ArrayLike) -> list[Interval]:
        """Intervals of the losses at ``x`` between the first and the last point."""
        if self.E is None or self.fit is None or self.point is None or self.run is None:
            raise ValueError(f"a law of status {self.status!r} has no values")
        return [self.fit.loss_interval(float(at), self.point, self.run) for at in np.ravel(x)]


def fit_curves(curves: Mapping[Any, Curve], places: Mapping[Any, Place]) -> dict[Any, PowerLaw]:
    """Fit the laws of a study, whose curves share what they know about noise. Cost: 5 milliseconds
    a curve."""
    enough = {
        key: curve
        for key, curve in curves.items()
        if len(np.unique(curve.x_n)) > 2 and curve.degrees > 0
    }
    fits = {key: Fit.of(curve) for key, curve in enough.items()}
    anywhere = dict.fromkeys(enough, Place(1.0, 1.0))
    left = {
        key: (fit.square / fit.curve.degrees, fit.curve.degrees, fit.curve.runs)
        for key, fit in fits.items()
    }
    pure = {key: curve.pure() for key, curve in enough.items()}
    of_points = Noise.from_variances(left, anywhere)
    of_seeds = Noise.from_variances(
        {key: (square / max(free, 1), free, 1) for key, (square, free) in pure.items()}, anywhere
    )
    of_runs = Noise.measure(
        {key: dict(enumerate(fit.levels_r.tolist())) for key, fit in fits.items()},
        {key: places[key] for key in fits},
    )
    found: dict[Any, PowerLaw] = dict.fromkeys(curves, PowerLaw(status="too_few"))
    for key, fit in fits.items():
        square, free = pure[key]
        if free:
            known = of_seeds.at(key)
        else:
            known = Noise.from_variances(left | {key: (0.0, 0, 1)}, anywhere).at(key)
        lack = None
        if known.assumed is None:
            beyond = max(fit.square - square, 0.0)
            lack = lack_of_fit(beyond, fit.curve.degrees - free, known.sd**2, known)
        found[key] = _law(fit, of_points.at(key), of_runs.at(key), lack)
    return found


def _law(fit: Fit, point: Spread, run: Spread, lack: float | None) -> PowerLaw:
    low, high = EXPONENTS
    if lack is not None and lack < REFUSE:
        return PowerLaw(status="refused", lack=lack)
    if not (low * 1.001 < fit.gamma < high / 1.001) or fit.E < 0 or fit.k < 0:
        return PowerLaw(status="bound", lack=lack)
    return PowerLaw(
        status="fitted", E=fit.E, k=fit.k, gamma=fit.gamma, lack=lack, fit=fit, point=point, run=run
    )


def most_influential(law: PowerLaw) -> tuple[str, float] | None:
    """The run without which ``gamma`` moves most, and ``gamma`` without it; None with one run."""
    if law.fit is None or law.fit.curve.runs == 1:
        return None
    curve, gamma = law.fit.curve, law.fit.gamma
    others = {label: Fit.of(curve.without(i)).gamma for i, label in enumerate(curve.run_r)}
    label = max(others, key=lambda one: abs(others[one] - gamma))
    return label, others[label]


def fit_groups(groups: Mapping[Any, Group]) -> dict[Any, dict[str, PowerLaw]]:
    """The laws of all attentions in each group of points, which are of one size and context, over
    the unit of the budget. Groups of the same source and schedule share their noise."""
    studies: dict[tuple, dict[tuple, Group]] = defaultdict(dict)
    unknown = PowerLaw(status="unknown_schedule")
    found: dict[Any, dict[str, PowerLaw]] = {}
    for key, group in groups.items():
        parts = group.split("attention")
        found[key] = dict.fromkeys(parts, unknown)
        if group.schedule != "unknown":
            cells = {(key, attention): part for attention, part in parts.items()}
            studies[group.source, group.schedule] |= cells
    for cells in studies.values():
        curves = {cell: _curve(part) for cell, part in cells.items()}
        places = {
            (key, attention): Place(part.points[0].params, part.points[0].context, attention)
            for (key, attention), part in cells.items()
        }
        for (key, attention), law in fit_curves(curves, places).items():
            found[key][attention] = replace(law, moved=most_influential(law))
    return found


def _curve(points: Group) -> Curve:
    spent, loss, budget = (points.column(name) for name in ("spent", "loss", "budget"))
    return Curve.from_points(spent, loss, points.trunks, budget)
