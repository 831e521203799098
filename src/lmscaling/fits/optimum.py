"""The minimum of the loss over sizes or contexts, if it is bracketed and the form fits.

Near its minimum the loss is asymmetric in the logarithm of the varied quantity, and a parabola
through values that are factors of two apart misses by more than its interval. The fit is therefore
a polynomial of degree four through the value with the lowest mean loss and up to four values on
each side, by least squares. Each seed has an intercept, because runs with the same seed share data
and their order. There is an estimate only if at least two values lie on each side of it.

The interval contains the positions at which the slope of the polynomial does not differ from 0
(test inversion, as of Fieller 1954). That of a context or rate (``fit``) contains the tried value
with the lowest loss of each seed, too: where instability makes a kink, or a second minimum, the
polynomial misses the lowest one. An end is open if it lies beyond the fitted values. The variance
is what an additive model of seeds and values leaves, raised towards that of the other tables of a
study (``paired_losses``). If means over seeds deviate from the polynomial by more than seeds
scatter, the fit is refused (F test, 5 %).

With one seed nothing but the lack of fit shows a run that went wrong, and it overlooks a run at the
ends. The interval of one seed is therefore a range for an assumed scatter (``Interval.assumed``),
even if the other tables of the study know this scatter.

Legend: ``r`` runs, ``T`` budgets, ``K`` coefficients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f

from lmscaling.fits import paired_losses
from lmscaling.fits.noise import Spread
from lmscaling.fits.paired_losses import Scatter, Short, Table, indicators
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import Interval

STATUSES = {
    "bracketed": "bracketed by two values on each side",
    "edge": "not bracketed: lowest loss at the edge",
    "thin": "only one value on one side of the optimum",
    "flat": "no curvature: optimum not unique",
    "too_few": "fewer than five values tried",
    "refused": "refused: losses deviate from a smooth curve by more than seeds scatter",
    "refused_assumed": "refused: losses deviate from a smooth curve by more than the assumed "
    "scatter of seeds",
    "unknown_schedule": "refused: schedule of the learning rate unknown",
}
OBJECTIVE = "least squares of a polynomial of degree four in ln x, an intercept for each seed"
STARTS_SAID = "none: the problem is linear"

AROUND = 2
"""Values on each side of the optimum."""
REACH = 4
"""Values fitted on each side of the lowest loss."""
DEGREE = 4
"""Of the polynomial."""
POWERS = np.arange(1, DEGREE + 1)
REFUSE = 0.05
"""Significance level of the test of lack of fit."""
ASSUMED_DEGREES = 6.0
"""Degrees of freedom of an assumed standard deviation in a test of lack of fit."""
NEGLIGIBLE = 1e-4
"""Nats. Deviations of this size do not refuse a form, however little seeds scatter."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The minimum; it has no numbers unless it is bracketed."""

    formula: ClassVar[str] = "polynomial of degree four in ln x around the lowest loss"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556, approach 2"
    status: str
    """A key of ``STATUSES``."""
    at: float | None = None
    """The optimum, in the units of ``x``."""
    interval: Interval | None = None
    """Of ``at``; an end beyond the fitted values is open."""
    loss: float | None = None
    """The polynomial at the optimum, nats per token."""
    curve: tuple[tuple[float, float], ...] = ()
    """Points ``(x, loss)`` of the polynomial, for figures."""
    lowest: float | None = None
    """The tried value with the lowest loss."""
    lack: float | None = None
    """p-value of the test of lack of fit; None without degrees of freedom."""
    moved: tuple[str, float] | None = None
    """The run without which the optimum moves most, and the optimum without it."""
    left_out: tuple[str, ...] = ()
    """Runs that deviate from the others of their seed and value."""
    short: tuple[Short, ...] = ()
    noise: Spread | None = None
    """Scatter of paired runs."""


def fit(table: Table, scatter: Scatter, budget: int = 0) -> Optimum:
    """The optimum at one budget; its interval has the lowest tried values. Cost: a millisecond."""
    found = fit_moves(table, scatter, budget)[0]
    if found.interval is None:
        return found
    low, high = found.interval.low, found.interval.high
    tried = _lowest_of_seeds(table, budget)
    low = None if low is None else min(low, float(tried.min()))
    high = None if high is None else max(high, float(tried.max()))
    return replace(found, interval=replace(found.interval, low=low, high=high))


def fit_moves(table: Table, scatter: Scatter, budget: int) -> tuple[Optimum, NDArray]:
    """The optimum at one budget, and the change of its logarithm for each nat of each run,
    ``[r]``."""
    status, lowest, found = _polynomial(table, budget)
    moves, spread = np.zeros(len(table.log_x_r)), scatter.spread
    if found is None:
        return Optimum(status=status, lowest=lowest, noise=spread), moves
    variance = float(scatter.covariance_TT[budget, budget])
    p_value = lack_of_fit(found.lack, found.free, variance, spread)
    if p_value is not None and p_value < REFUSE:
        status = "refused" if spread.assumed is None else "refused_assumed"
        return Optimum(status=status, lowest=lowest, lack=p_value, noise=spread), moves
    one_seed = len(np.unique(table.seed_r[found.rows])) == 1
    low, high = found.interval(variance, spread.quantile())
    v = np.linspace(*found.inside, 40)
    moves[found.rows] = -found.slopes(found.at) @ found.operator_Kr / found.bends(found.at)
    optimum = Optimum(
        status="bracketed",
        at=float(np.exp(found.at + found.centre)),
        interval=Interval(
            None if low is None else float(np.exp(low + found.centre)),
            None if high is None else float(np.exp(high + found.centre)),
            spread.sd if one_seed else spread.assumed,
        ),
        loss=float(found.values(found.at)),
        curve=tuple(zip(np.exp(v + found.centre), found.values(v), strict=True)),
        lowest=lowest,
        lack=p_value,
        noise=spread,
    )
    return optimum, moves


def _lowest_of_seeds(table: Table, budget: int) -> NDArray:
    """The tried value with the lowest loss of each seed."""
    known = np.isfinite(table.loss_rT[:, budget])
    x, seed, loss = np.exp(table.log_x_r[known]), table.seed_r[known], table.loss_rT[known, budget]
    return np.array([x[seed == one][loss[seed == one].argmin()] for one in np.unique(seed)])


def most_influential(table: Table, budget: int = 0) -> tuple[str, float] | None:
    """The run without which the optimum moves most, and the optimum without it."""
    _, _, all_of_them = _polynomial(table, budget)
    if all_of_them is None:
        return None
    found = {}
    for row in all_of_them.rows:
        _, _, fewer = _polynomial(table.without([row]), budget)
        if fewer is not None:
            found[table.run_r[row]] = fewer.at + fewer.centre
    if not found:
        return None
    at = all_of_them.at + all_of_them.centre
    run = max(found, key=lambda one: abs(found[one] - at))
    return run, float(np.exp(found[run]))


def lack_of_fit(square: float, free: int, variance: float, spread: Spread) -> float | None:
    """p-value of the sum of squares (nats squared) that a form leaves beyond the scatter of seeds;
    None without degrees of freedom."""
    if free < 1:
        return None
    degrees = ASSUMED_DEGREES if np.isinf(spread.degrees) else spread.degrees
    return float(f.sf(square / free / max(variance, NEGLIGIBLE**2), free, degrees))


@dataclass(frozen=True)
class _Polynomial:
    """Least squares at one budget; positions are ln x minus ``centre``."""

    rows: NDArray[np.intp]
    """Rows of the table that were fitted."""
    centre: float
    inside: tuple[float, float]
    """Positions of the first and last fitted value."""
    operator_Kr: NDArray
    """Maps losses of the rows to coefficients."""
    coefficient_K: NDArray
    """Of the powers 1 to ``DEGREE``."""
    level: float
    lack: float
    """Sum of squares of the lack of fit, and its degrees of freedom."""
    free: int
    at: float = np.nan
    """Position of the minimum; NaN if there is none between the fitted values."""

    def slopes(self, v: float) -> NDArray:
        """Slope of each power at a position, ``[K]``."""
        return POWERS * v ** (POWERS - 1.0)

    def bends(self, v: float) -> float:
        """Second derivative at a position."""
        factors = POWERS[1:] * (POWERS[1:] - 1) * self.coefficient_K[1:]
        return float(factors @ v ** (POWERS[1:] - 2.0))

    def values(self, v: Any) -> NDArray:
        """Losses at positions."""
        return self.level + np.asarray(v)[..., None] ** POWERS @ self.coefficient_K

    def minimum(self) -> float:
        """Position of the lowest minimum between the fitted values."""
        roots = np.roots((POWERS * self.coefficient_K)[::-1])
        real = roots[np.abs(roots.imag) < 1e-9].real
        low, high = self.inside
        cups = [v for v in real if low < v < high and self.bends(v) > 0]
        return float(min(cups, key=self.values, default=np.nan))

    def interval(self, variance: float, quantile: float) -> tuple[float | None, float | None]:
        """Positions around the minimum whose slope does not differ from 0."""
        covariance = variance * self.operator_Kr @ self.operator_Kr.T
        joint = np.outer(self.coefficient_K, self.coefficient_K) - quantile**2 * covariance
        joint = joint * np.outer(POWERS, POWERS)
        # Slope squared minus its limit: a polynomial whose coefficients are sums of antidiagonals.
        rejects = [np.trace(joint[::-1], offset) for offset in range(DEGREE - 1, -DEGREE, -1)]
        roots = np.roots(rejects)
        ends = roots[np.abs(roots.imag) < 1e-9].real
        first, last = self.inside
        low = max(ends[(ends <= self.at) & (ends >= first)], default=None)
        high = min(ends[(ends >= self.at) & (ends <= last)], default=None)
        return low, high


def _polynomial(table: Table, budget: int) -> tuple[str, float | None, _Polynomial | None]:
    """Status, tried value with the lowest loss, and the fit if the optimum is bracketed."""
    known = np.flatnonzero(np.isfinite(table.loss_rT[:, budget]))
    u, loss = table.log_x_r[known], table.loss_rT[known, budget]
    values, which = np.unique(u, return_inverse=True)
    if len(values) < 2 * AROUND + 1:
        return "too_few", None, None
    mean = np.bincount(which, loss) / np.bincount(which)
    best = int(mean.argmin())
    lowest = float(np.exp(values[best]))
    if np.ptp(mean) == 0:
        return "flat", lowest, None
    if best in (0, len(values) - 1):
        return "edge", lowest, None
    near = np.abs(which - best) <= REACH
    rows, loss, which = known[near], loss[near], which[near]
    v = u[near] - u[near].mean()
    seeds = indicators(table.seed_r[rows])
    columns = np.hstack([seeds, v[:, None] ** POWERS])
    full = np.hstack([seeds, indicators(which)])
    operator = np.linalg.pinv(columns)
    coefficients = operator @ loss
    left = loss - columns @ coefficients
    pure = loss - full @ (np.linalg.pinv(full) @ loss)
    found = _Polynomial(
        rows=rows,
        centre=float(u[near].mean()),
        inside=(float(v.min()), float(v.max())),
        operator_Kr=operator[-DEGREE:],
        coefficient_K=coefficients[-DEGREE:],
        level=float(seeds.mean(axis=0) @ coefficients[:-DEGREE]),
        lack=max(float(left @ left - pure @ pure), 0.0),
        free=int(np.linalg.matrix_rank(full) - np.linalg.matrix_rank(columns)),
    )
    at = found.minimum()
    if np.isnan(at):
        return "flat", lowest, None
    if min((values < at + found.centre).sum(), (values > at + found.centre).sum()) < AROUND:
        return "thin", lowest, None
    return "bracketed", lowest, replace(found, at=at)


def fit_contexts(groups: Mapping[Any, Group]) -> dict[Any, Optimum]:
    """The best training context of each group of points, which are of one attention and size.

    A short context withholds text that the model could use, a long one leaves fewer updates in the
    same time, so the loss at the end of the budget has a minimum.
    """
    found: dict[Any, Optimum] = dict.fromkeys(groups, Optimum(status="unknown_schedule"))
    known = {key: group for key, group in groups.items() if group.schedule != "unknown"}
    for key, (table, budgets, scatter, left_out, short) in paired_losses.prepare(
        known, "context", shares=(1,)
    ).items():
        if not budgets:
            found[key] = Optimum(status="too_few", short=short)
            continue
        best = fit(table, scatter)
        moved = None if best.at is None else most_influential(table)
        found[key] = replace(best, moved=moved, left_out=left_out, short=short)
    return found
