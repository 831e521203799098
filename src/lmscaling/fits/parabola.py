"""The lowest point of a curve over sizes or contexts, if it is bracketed.

Near its minimum a loss is a parabola in the logarithm of what is varied; away from it one side is
steeper, and a parabola through all points puts the optimum where no point supports it. So only the
points around the lowest count, two on either side, and there is an optimum only if two values
that were tried lie on each side of it.

Legend: ``R`` replicates, ``n`` points.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import Interval

STATUSES = {
    "bracketed": "two higher values on each side",
    "edge": "edge: the lowest is the smallest or the largest tried",
    "thin": "only one value lies on one side of the optimum",
    "flat": "no curvature: the optimum is not unique",
    "too_few": "fewer than four values were tried",
}

AROUND = 2
"""Values on each side of the lowest, and of the optimum."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The vertex; no number for it unless it is bracketed."""

    formula: ClassVar[str] = "L(x) = L_min + b (ln x - ln x_min)^2 through the points around"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556, approach 2"
    status: str
    """A key of ``STATUSES``."""
    at: float | None = None
    """The optimum, in the units of ``x``."""
    interval: Interval | None = None
    """Of ``at``; an open end where replicates have no optimum on that side."""
    loss: float | None = None
    """What the parabola says there, nats per token."""
    bend: float | None = None
    """``b`` of the formula, nats."""
    lowest: float | None = None
    """The tried value with the lowest loss."""


def fit(x_n: NDArray, loss_n: NDArray, drawn_Rn: NDArray) -> tuple[Optimum, NDArray]:
    """The optimum and the logarithms ``[R]`` of those of replicates of the losses."""
    values, which = np.unique(x_n, return_inverse=True)
    mean = np.bincount(which, loss_n) / np.bincount(which)
    nowhere = np.full(len(drawn_Rn), np.nan)
    if len(values) < 2 * AROUND:
        return Optimum(status="too_few"), nowhere
    best = int(mean.argmin())
    lowest = float(values[best])
    if np.ptp(mean) == 0:
        return Optimum(status="flat"), nowhere
    if best in (0, len(values) - 1):
        return Optimum(status="edge", lowest=lowest), nowhere
    near = np.abs(which - best) <= AROUND
    u = np.log(x_n[near])
    at, height, bend = _vertices(u, np.concatenate([loss_n[None, near], drawn_Rn[:, near]]))
    if not np.isfinite(at[0]):
        return Optimum(status="flat", lowest=lowest), nowhere
    optimum = np.exp(at[0])
    if min((values < optimum).sum(), (values > optimum).sum()) < AROUND:
        return Optimum(status="thin", lowest=lowest), nowhere
    ends = uncertainty.interval(at[1:])
    interval = Interval(*(None if e is None else float(np.exp(e)) for e in (ends.low, ends.high)))
    found = Optimum(
        status="bracketed",
        at=float(optimum),
        interval=interval,
        loss=float(height[0]),
        bend=float(bend[0]),
        lowest=lowest,
    )
    return found, at[1:]


def _vertices(u: NDArray, loss_Rn: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Place and height of the vertex of each row, and the bend. Without a minimum the vertex lies
    infinitely far down the slope."""
    middle = u.mean()
    columns = np.stack([np.ones_like(u), u - middle, (u - middle) ** 2], axis=1)
    level, slope, bend = np.linalg.lstsq(columns, loss_Rn.T, rcond=None)[0]
    cup = bend > 1e-12 * np.abs(loss_Rn).max()
    bend = np.where(cup, bend, 1)
    at = np.where(cup, middle - slope / (2 * bend), -np.sign(slope) * np.inf)
    return at, level - slope**2 / (4 * bend), bend
