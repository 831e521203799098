"""Crossings of two loss curves, and the range in which none was found.

Noise makes two close curves of single runs cross many times. A place at which the gap of paired
runs does not differ from 0 by a t test belongs to the confidence set of a crossing (a test
inversion); the other places are assigned to a side. A crossing lies between two adjacent places of
different sides; the zero of the gap between them is its estimate, and its ends are where the gap,
interpolated in ln x, reaches the limit of the test. The upper end is open if the gap has changed
its sign by the end, but does not differ from 0 there.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from lmscaling.fits.uncertainty import LEVEL, Interval

STATUSES = {
    "crossed": "the curves cross",
    "open": "the curves seem to cross, but afterwards the gap does not exceed the noise",
    "none": "one curve is lower wherever the gap exceeds the noise",
    "within_noise": "the gap nowhere exceeds the noise",
    "apart": "the curves share no range of x",
}


@dataclass(frozen=True)
class Crossing:
    """One crossing."""

    at: float
    """Zero of the gap, interpolated in ln x."""
    interval: Interval
    """Between the nearest places on both sides where the gap differs from 0; open without a later
    one."""
    ahead_after: str
    """The curve with the lower loss after the crossing: ``other`` or ``reference``."""


@dataclass(frozen=True, kw_only=True)
class Crossings:
    """All crossings of two curves."""

    formula: ClassVar[str] = "gap(x) = loss of other - loss of reference = 0"
    source: ClassVar[str] = "places where a t test of the paired gap does not reject 0"
    status: str
    """A key of ``STATUSES``."""
    observed: tuple[float, float] | None = None
    """Smallest and largest x of both curves; the curves may cross outside of this range."""
    ahead: str | None = None
    """The curve with the lower loss at the largest x with a significant gap, if there is one."""
    points: tuple[Crossing, ...] = ()
    p: float | None = None
    """p-value of the hypothesis that the curves do not cross: the gap would have one sign. None if
    the noise was not measured."""


def fit(
    x: ArrayLike,
    gap: ArrayLike,
    error: ArrayLike,
    degrees: ArrayLike = np.inf,
    assumed: float | None = None,
) -> Crossings:
    """Crossings from gaps.

    Args:
        x: ``[n]``, positive and ascending.
        gap: ``[n]``, nats, other minus reference, means over pairs.
        error: ``[n]`` or one number: standard error of the gap, nats.
        degrees: ``[n]`` or one number: degrees of freedom of the error.
        assumed: Standard deviation between seeds that the error assumes, if it was not measured.
    """
    x, gap = np.asarray(x, dtype=float), np.asarray(gap, dtype=float)
    if not len(x):
        return Crossings(status="apart")
    score = gap / np.asarray(error, dtype=float)
    excess = score / t.isf((1 - LEVEL) / 2, degrees)
    significant = np.flatnonzero(np.abs(excess) > 1).tolist()
    observed = (float(x[0]), float(x[-1]))
    sides = [2 * t.sf(side * score, degrees).min() for side in (1, -1)]
    p = None if assumed is not None else float(min(max(sides), 1))  # of the more doubtful side
    if not len(significant):
        return Crossings(status="within_noise", observed=observed, p=p)
    lower = ["other" if gap[i] < 0 else "reference" for i in significant]
    pairs = zip(significant, significant[1:], lower, lower[1:], strict=False)
    points = [
        Crossing(
            _zero(x, gap, i, j),
            Interval(_limit(x, excess, i, i + 1), _limit(x, excess, j, j - 1), assumed),
            after,
        )
        for i, j, before, after in pairs
        if before != after
    ]
    status = "crossed" if points else "none"
    last, end = significant[-1], len(x) - 1
    if gap[last] * gap[end] < 0:
        status = "crossed" if points else "open"
        after = "other" if gap[end] < 0 else "reference"
        interval = Interval(_limit(x, excess, last, last + 1), None, assumed)
        points.append(Crossing(_zero(x, gap, last, end), interval, after))
    return Crossings(status=status, observed=observed, ahead=lower[-1], points=tuple(points), p=p)


def _limit(x: NDArray, excess: NDArray, inside: int, outside: int) -> float:
    """Where the excess over the limit of the test, beyond 1 or -1 at ``inside``, comes to it."""
    one, two = np.sign(excess[inside]) * excess[[inside, outside]]
    part = (one - 1) / (one - two)
    return float(np.exp(np.log(x[inside]) + part * np.log(x[outside] / x[inside])))


def _zero(x: NDArray, gap: NDArray, first: int, last: int) -> float:
    """The middle zero of the gap between two points of different sign."""
    signs = np.sign(gap[first : last + 1])
    signs[signs == 0] = signs[0]
    turns = first + np.flatnonzero(np.diff(signs))
    i = turns[len(turns) // 2]
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp(np.log(x[i]) + part * np.log(x[i + 1] / x[i])))
