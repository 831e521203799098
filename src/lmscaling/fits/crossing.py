"""Where one curve begins to lie below another, or within which bounds it never did.

Two curves of single runs touch by chance wherever they run close. So a point counts for one side
only if the gap is larger than chance allows, and a crossing lies between two points that count for
different sides: they bound it, and the gap's own zero between them is its place.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from lmscaling.fits.uncertainty import LEVEL, STATED, Interval, Noise

STATUSES = {
    "crossed": "the side that is ahead changes",
    "none": "one side is ahead throughout; no crossing within the bounds",
    "within_noise": "the gap is nowhere larger than chance allows",
    "apart": "there is no x at which both are known",
}


@dataclass(frozen=True)
class Crossing:
    """One change of sides."""

    at: float
    """Where the gap is zero, between points in ln x."""
    interval: Interval
    """The nearest points at which either side is surely ahead."""
    ahead_after: str
    """``other`` or ``reference``: who has the lower loss beyond."""


@dataclass(frozen=True, kw_only=True)
class Crossings:
    """All changes of sides between two curves."""

    formula: ClassVar[str] = "gap(x) = loss of other - loss of reference = 0"
    source: ClassVar[str] = "gaps beyond 1.96 sqrt(2) seed deviations count"
    status: str
    """A key of ``STATUSES``."""
    seen: tuple[float, float] | None = None
    """Smallest and largest x at which both are known: a crossing elsewhere is not excluded."""
    ahead: str | None = None
    """Who has the lower loss at the largest x that counts; None if none does."""
    found: tuple[Crossing, ...] = ()


def fit(x: ArrayLike, gap: ArrayLike, noise: Noise = STATED) -> Crossings:
    """Crossings from gaps (nats, other less reference) at ascending positive ``x``."""
    x, gap = np.asarray(x, dtype=float), np.asarray(gap, dtype=float)
    if not len(x):
        return Crossings(status="apart")
    chance = norm.isf((1 - LEVEL) / 2) * np.sqrt(2) * noise.sd
    counts = np.flatnonzero(np.abs(gap) > chance).tolist()
    seen = (float(x[0]), float(x[-1]))
    if not len(counts):
        return Crossings(status="within_noise", seen=seen)
    lower = ["other" if gap[i] < 0 else "reference" for i in counts]
    found = tuple(
        Crossing(_zero(x, gap, i, j), Interval(float(x[i]), float(x[j])), after)
        for i, j, before, after in zip(counts, counts[1:], lower, lower[1:], strict=False)
        if before != after
    )
    return Crossings(status="crossed" if found else "none", seen=seen, ahead=lower[-1], found=found)


def _zero(x: NDArray, gap: NDArray, first: int, last: int) -> float:
    """The middle one of the zeros between two points of different sign."""
    signs = np.sign(gap[first : last + 1])
    signs[signs == 0] = signs[0]
    turns = first + np.flatnonzero(np.diff(signs))
    i = turns[len(turns) // 2]
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp(np.log(x[i]) + part * np.log(x[i + 1] / x[i])))
