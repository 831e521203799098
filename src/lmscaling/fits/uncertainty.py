"""Bootstrap of runs: replicates of measured losses, and intervals from them.

Losses vary from run to run with the seed, and the points of one run are correlated. The noise of a
run is therefore one draw, shared by its trunk and all branches, plus a small independent part for
each point. In a cell with several seeds the draws are resampled from the deviations of these seeds;
in other cells they are normal with a stated standard deviation, or one pooled from the cells with
several seeds. Cells are not resampled: without a corner of a 4 x 5 grid a third of the fits would
be degenerate.

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
"""Halvings of a factor of 4: the standard deviation is then known to 0.1 %."""
FEWEST_DEGREES = 3
"""With fewer degrees of freedom the stated standard deviation is more reliable than that of the
seeds."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of repeated measurements of a loss, nats."""

    seed_sd: float = 0.002
    """Shared by all points of a run. GPT-2 124M: 0.0019 over 80 seeds (modded-nanogpt)."""
    point_sd: float = 0.0005
    """Independent for each point, such as the effect of the validation text."""
    degrees: int | None = None
    """Degrees of freedom of an estimated ``seed_sd``; None for the stated one."""

    @property
    def sd(self) -> float:
        """Standard deviation of a single loss."""
        return float(np.hypot(self.seed_sd, self.point_sd))


STATED = Noise()


@dataclass(frozen=True)
class Interval:
    """A confidence interval, 95 % unless stated otherwise; an open end is None."""

    low: float | None
    high: float | None
    assumed: float | None = None
    """Standard deviation between seeds, nats, that the range assumes because none was measured.
    Such a range is no confidence interval."""

    def __contains__(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    @property
    def width(self) -> float:
        """Infinite if an end is open."""
        return np.inf if self.low is None or self.high is None else self.high - self.low


@dataclass(frozen=True)
class Runs:
    """The run of each point and the cell of each run, numbered from 0."""

    trunk_n: NDArray[np.intp]
    """The run of each point; a trunk and its branches are one run."""
    cell_t: NDArray[np.intp]
    """The cell of each run; runs of a cell differ in their seed only."""

    @classmethod
    def from_labels(
        cls, points: int, trunk: Iterable | None = None, cell: Iterable | None = None
    ) -> "Runs":
        """From labels of any type; by default every point is a run and every run a cell."""
        trunk_n = codes(range(points) if trunk is None else trunk)
        cell_n = trunk_n if cell is None else codes(cell)
        if not len(trunk_n) == len(cell_n) == points:
            raise ValueError(f"{points} points, {len(trunk_n)} trunks, {len(cell_n)} cells")
        first = np.unique(trunk_n, return_index=True)[1]
        return cls(trunk_n, codes(cell_n[first]))

    def whitener(self, noise: Noise) -> NDArray:
        """``[n, n]``: transforms residuals into independent ones of variance 1."""
        together = self.trunk_n[:, None] == self.trunk_n
        covariance = noise.seed_sd**2 * together + noise.point_sd**2 * np.eye(len(together))
        return np.linalg.inv(np.linalg.cholesky(covariance))

    def deviations(self, residual_n: NDArray) -> NDArray:
        """Mean residual of each run minus that of its cell, times sqrt(k / (k - 1)) for k seeds,
        because the mean of the cell is estimated from them; 0 for a single seed."""
        mean = np.bincount(self.trunk_n, residual_n) / np.bincount(self.trunk_n)
        seeds = np.bincount(self.cell_t)
        deviation = mean - (np.bincount(self.cell_t, mean) / seeds)[self.cell_t]
        return deviation * np.sqrt(seeds / np.maximum(seeds - 1, 1))[self.cell_t]

    def noise(self, residual_n: NDArray, stated: Noise = STATED) -> Noise:
        """The noise estimated from seeds, pooled over cells; the stated one with too few seeds."""
        seeds = np.bincount(self.cell_t)
        degrees = int((seeds - 1).sum())
        if degrees < FEWEST_DEGREES:
            return stated
        weight = ((seeds - 1) / seeds)[self.cell_t]
        variance = (weight * self.deviations(residual_n) ** 2).sum() / degrees
        return replace(stated, seed_sd=float(np.sqrt(variance)), degrees=degrees)


def codes(labels: Iterable) -> NDArray[np.intp]:
    """Number the labels from 0 in order of appearance."""
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
    """``[R, n]`` simulated losses of ``count`` repeated studies, if the fit is the truth."""
    fitted, residual = np.asarray(fitted_n, dtype=float), np.asarray(residual_n, dtype=float)
    rng = np.random.default_rng(seed)
    drawn_Rt = noise.seed_sd * rng.standard_normal((count, len(runs.cell_t)))
    deviation = runs.deviations(residual)
    for cell in np.flatnonzero(np.bincount(runs.cell_t) > 1):
        members = np.flatnonzero(runs.cell_t == cell)
        drawn_Rt[:, members] = deviation[rng.choice(members, (count, len(members)))]
    if noise.degrees is not None:  # a standard deviation from few seeds is itself uncertain
        drawn_Rt *= np.sqrt(noise.degrees / rng.chisquare(noise.degrees, (count, 1)))
    own_Rn = noise.point_sd * rng.standard_normal((count, len(fitted)))
    return fitted + drawn_Rt[:, runs.trunk_n] + own_Rn


def misfit(chi_squared: float, noise: Noise, degrees: int) -> bool:
    """Whether chi-squared is larger than in 99 % of studies for which the form is correct; by the F
    distribution if the noise is estimated."""
    if noise.degrees is None:
        return bool(chi2.sf(chi_squared, degrees) < MISFIT)
    return bool(f.sf(chi_squared / degrees, degrees, noise.degrees) < MISFIT)


def widen(chi2_under: Callable[[Noise], float], noise: Noise, degrees: int) -> Noise:
    """Increase the independent noise of points until chi-squared equals its degrees of freedom
    (Mandel and Paule 1970). An incorrect form causes residuals that differ from point to point,
    unlike a seed, which shifts all points of a run."""
    low = high = noise.point_sd
    while chi2_under(replace(noise, point_sd=high)) > degrees:
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        too_low = chi2_under(replace(noise, point_sd=middle)) > degrees
        low, high = (middle, high) if too_low else (low, middle)
    return replace(noise, point_sd=high)


def interval(values_R: ArrayLike, level: float = LEVEL) -> Interval:
    """The percentile interval of replicates, which may be infinite. NaN counts as minus infinity
    for the lower end and as infinity for the upper end."""
    values = np.asarray(values_R, dtype=float)
    unknown = np.isnan(values)
    tail = (1 - level) / 2 * (len(values) - 1)
    low = np.sort(np.where(unknown, -np.inf, values))[int(np.floor(tail))]
    high = np.sort(np.where(unknown, np.inf, values))[int(np.ceil(len(values) - 1 - tail))]
    return Interval(*(float(end) if np.isfinite(end) else None for end in (low, high)))
