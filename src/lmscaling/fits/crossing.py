"""Crossings of two loss curves, and the range in which none was found.

Noise makes two close curves of single runs cross many times. Only points whose gap exceeds its
95 % noise band are therefore assigned to a side. A crossing lies between two adjacent such points
of different sides, which bound it; the zero of the gap between them is its estimate.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from lmscaling.fits.uncertainty import LEVEL, STATED, Interval, Noise

STATUSES = {
    "crossed": "the curves cross",
    "none": "one curve is lower throughout; no crossing in the observed range",
    "within_noise": "the gap nowhere exceeds the noise",
    "apart": "the curves share no range of x",
}


@dataclass(frozen=True)
class Crossing:
    """One crossing."""

    at: float
    """Zero of the gap, interpolated in ln x."""
    interval: Interval
    """The nearest points on both sides whose gap exceeds the noise."""
    ahead_after: str
    """The curve with the lower loss after the crossing: ``other`` or ``reference``."""


@dataclass(frozen=True, kw_only=True)
class Crossings:
    """All crossings of two curves."""

    formula: ClassVar[str] = "gap(x) = loss of other - loss of reference = 0"
    source: ClassVar[str] = "gaps beyond 1.96 sqrt(2) standard deviations of a loss"
    status: str
    """A key of ``STATUSES``."""
    observed: tuple[float, float] | None = None
    """Smallest and largest x of both curves; the curves may cross outside of this range."""
    ahead: str | None = None
    """The curve with the lower loss at the largest x with a significant gap, if there is one."""
    points: tuple[Crossing, ...] = ()


def fit(x: ArrayLike, gap: ArrayLike, noise: Noise = STATED) -> Crossings:
    """Crossings from gaps (nats, other minus reference) at ascending positive ``x``."""
    x, gap = np.asarray(x, dtype=float), np.asarray(gap, dtype=float)
    if not len(x):
        return Crossings(status="apart")
    largest_by_chance = norm.isf((1 - LEVEL) / 2) * np.sqrt(2) * noise.sd
    significant = np.flatnonzero(np.abs(gap) > largest_by_chance).tolist()
    observed = (float(x[0]), float(x[-1]))
    if not len(significant):
        return Crossings(status="within_noise", observed=observed)
    lower = ["other" if gap[i] < 0 else "reference" for i in significant]
    pairs = zip(significant, significant[1:], lower, lower[1:], strict=False)
    points = tuple(
        Crossing(_zero(x, gap, i, j), Interval(float(x[i]), float(x[j])), after)
        for i, j, before, after in pairs
        if before != after
    )
    status = "crossed" if points else "none"
    return Crossings(status=status, observed=observed, ahead=lower[-1], points=points)


def _zero(x: NDArray, gap: NDArray, first: int, last: int) -> float:
    """The middle zero of the gap between two points of different sign."""
    signs = np.sign(gap[first : last + 1])
    signs[signs == 0] = signs[0]
    turns = first + np.flatnonzero(np.diff(signs))
    i = turns[len(turns) // 2]
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp(np.log(x[i]) + part * np.log(x[i + 1] / x[i])))
