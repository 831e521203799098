"""How sure a fit is: replicates of what was measured, and intervals from them.

What varies from run to run is the seed: order of weights, of sums, of luck. So the unit is the run,
never the point of a curve, whose neighbours err together: a run's noise is one draw, shared by its
trunk and all branches, beside a small part of each point's own. Where a cell was trained with
several seeds, these deviations are drawn again within the cell; elsewhere they are drawn from a
normal distribution whose deviation is stated, or pooled from the cells that have seeds. Whole cells
are never resampled: each corner of a 4 x 5 grid is needed, and a third of such fits degenerate.

Legend: ``R`` replicates, ``n`` points.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, f

LEVEL = 0.95
REPLICATES = 1000
MISFIT = 0.01
BISECTIONS = 10
"""Of a factor 4: the deviation is then known to a thousandth."""
FEWEST_DEGREES = 3
"""With fewer degrees of freedom seeds say less of their deviation than the stated one does."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What a loss would differ by if it were measured again, nats."""

    seed_sd: float = 0.002
    """Shared by all points of a run. GPT-2 124M: 0.0019 over 80 seeds (modded-nanogpt)."""
    point_sd: float = 0.0005
    """Of each point alone: the text it was evaluated on, the place where a branch left."""
    degrees: int | None = None
    """Of freedom behind ``seed_sd``, where seeds told it; None if it is stated."""

    @property
    def sd(self) -> float:
        """Of one loss."""
        return float(np.hypot(self.seed_sd, self.point_sd))


STATED = Noise()


@dataclass(frozen=True)
class Interval:
    """Where a number lies with 95 % confidence; None where that end is open."""

    low: float | None
    high: float | None

    def __contains__(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    @property
    def width(self) -> float:
        """Infinite if an end is open."""
        return np.inf if self.low is None or self.high is None else self.high - self.low


@dataclass(frozen=True)
class Runs:
    """Which points belong together, as numbers from 0."""

    trunk_n: NDArray[np.intp]
    """The run of each point: a trunk with its branches is one."""
    cell_t: NDArray[np.intp]
    """The cell of each run: runs of one cell differ in seed alone."""

    @classmethod
    def of(cls, points: int, trunk: Iterable | None = None, cell: Iterable | None = None) -> "Runs":
        """From any labels; without them every point is a run, and every run a cell."""
        trunk_n = codes(range(points) if trunk is None else trunk)
        cell_n = trunk_n if cell is None else codes(cell)
        if not len(trunk_n) == len(cell_n) == points:
            raise ValueError(f"{points} points, {len(trunk_n)} trunks, {len(cell_n)} cells")
        first = np.unique(trunk_n, return_index=True)[1]
        return cls(trunk_n, codes(cell_n[first]))

    def whitener(self, noise: Noise) -> NDArray:
        """``[n, n]``: makes residuals independent with variance 1."""
        together = self.trunk_n[:, None] == self.trunk_n
        covariance = noise.seed_sd**2 * together + noise.point_sd**2 * np.eye(len(together))
        return np.linalg.inv(np.linalg.cholesky(covariance))

    def deviations(self, residual_n: NDArray) -> NDArray:
        """Mean residual of each run less that of its cell, widened by sqrt(k / (k - 1)) for k
        seeds, since the cell's mean is known from them; 0 where there is one seed."""
        mean = np.bincount(self.trunk_n, residual_n) / np.bincount(self.trunk_n)
        seeds = np.bincount(self.cell_t)
        deviation = mean - (np.bincount(self.cell_t, mean) / seeds)[self.cell_t]
        return deviation * np.sqrt(seeds / np.maximum(seeds - 1, 1))[self.cell_t]

    def noise(self, residual_n: NDArray, stated: Noise = STATED) -> Noise:
        """The noise that seeds show, pooled over cells; the stated one where they are too few."""
        seeds = np.bincount(self.cell_t)
        degrees = int((seeds - 1).sum())
        if degrees < FEWEST_DEGREES:
            return stated
        weight = ((seeds - 1) / seeds)[self.cell_t]
        variance = (weight * self.deviations(residual_n) ** 2).sum() / degrees
        return replace(stated, seed_sd=float(np.sqrt(variance)), degrees=degrees)


def codes(labels: Iterable) -> NDArray[np.intp]:
    """Numbers from 0 for labels, in order of appearance."""
    known: dict = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.intp)


def replicates(
    fitted_n: ArrayLike,
    residual_n: ArrayLike,
    runs: Runs,
    noise: Noise,
    count: int = REPLICATES,
    seed: int = 0,
) -> NDArray:
    """``[R, n]`` losses as another study might have measured them, if the fit were the truth."""
    fitted, residual = np.asarray(fitted_n, dtype=float), np.asarray(residual_n, dtype=float)
    rng = np.random.default_rng(seed)
    drawn_Rt = noise.seed_sd * rng.standard_normal((count, len(runs.cell_t)))
    deviation = runs.deviations(residual)
    for cell in np.flatnonzero(np.bincount(runs.cell_t) > 1):
        members = np.flatnonzero(runs.cell_t == cell)
        drawn_Rt[:, members] = deviation[rng.choice(members, (count, len(members)))]
    if noise.degrees is not None:  # deviations of few seeds are themselves uncertain
        drawn_Rt *= np.sqrt(noise.degrees / rng.chisquare(noise.degrees, (count, 1)))
    own_Rn = noise.point_sd * rng.standard_normal((count, len(fitted)))
    return fitted + drawn_Rt[:, runs.trunk_n] + own_Rn


def misfit(chi_squared: float, noise: Noise, degrees: int) -> bool:
    """Whether it is larger than in 99 of 100 studies whose form is right; where seeds told the
    noise, by the F distribution."""
    if noise.degrees is None:
        return bool(chi2.sf(chi_squared, degrees) < MISFIT)
    return bool(f.sf(chi_squared / degrees, degrees, noise.degrees) < MISFIT)


def widen(chi2_under: Callable[[Noise], float], noise: Noise, degrees: int) -> Noise:
    """Noise under which a law fits: the part of each point grows until chi-squared is what its
    degrees of freedom expect (Mandel and Paule 1970). What a form cannot follow differs from point
    to point; it is no seed, which would shift whole runs."""
    low = high = noise.point_sd
    while chi2_under(replace(noise, point_sd=high)) > degrees:
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        too_low = chi2_under(replace(noise, point_sd=middle)) > degrees
        low, high = (middle, high) if too_low else (low, middle)
    return replace(noise, point_sd=high)


def interval(drawn_R: ArrayLike, level: float = LEVEL) -> Interval:
    """The percentile interval of replicates, of which some may be infinite. One that is no number
    counts as infinite to both sides, since nobody knows where it belongs."""
    drawn = np.asarray(drawn_R, dtype=float)
    unknown = np.isnan(drawn)
    tail = (1 - level) / 2 * (len(drawn) - 1)
    low = np.sort(np.where(unknown, -np.inf, drawn))[int(np.floor(tail))]
    high = np.sort(np.where(unknown, np.inf, drawn))[int(np.ceil(len(drawn) - 1 - tail))]
    return Interval(*(float(end) if np.isfinite(end) else None for end in (low, high)))
