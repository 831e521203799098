"""The minimum of the loss over sizes or contexts, if it is bracketed.

Near its minimum the loss is a parabola in the logarithm of the varied quantity. Farther away it is
not symmetric, and a parabola through all points would be biased. The fit therefore uses the lowest
point and two values on each side, and there is an estimate only if at least two tried values lie on
each side of the optimum.

Legend: ``R`` replicates, ``n`` points.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import Interval

STATUSES = {
    "bracketed": "bracketed by two values on each side",
    "edge": "not bracketed: lowest loss at the edge",
    "thin": "only one value on one side of the optimum",
    "flat": "no curvature: optimum not unique",
    "too_few": "fewer than four values tried",
}

AROUND = 2
"""Values on each side of the lowest loss, and of the optimum."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The vertex of the parabola; it has no numbers unless it is bracketed."""

    formula: ClassVar[str] = "L(x) = L_min + b (ln x - ln x_min)^2 through the points around"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556, approach 2"
    status: str
    """A key of ``STATUSES``."""
    at: float | None = None
    """The optimum, in the units of ``x``."""
    interval: Interval | None = None
    """Of ``at``; an end is open if too many replicates have no minimum on that side."""
    loss: float | None = None
    """The parabola at the optimum, nats per token."""
    bend: float | None = None
    """Curvature ``b`` of the formula, nats."""
    lowest: float | None = None
    """The tried value with the lowest loss."""


def fit(x_n: NDArray, loss_n: NDArray, replicates_Rn: NDArray) -> tuple[Optimum, NDArray]:
    """The optimum, and the logarithms ``[R]`` of the optima of replicates of the losses."""
    values, which = np.unique(x_n, return_inverse=True)
    mean = np.bincount(which, loss_n) / np.bincount(which)
    unknown = np.full(len(replicates_Rn), np.nan)
    if len(values) < 2 * AROUND:
        return Optimum(status="too_few"), unknown
    best = int(mean.argmin())
    lowest = float(values[best])
    if np.ptp(mean) == 0:
        return Optimum(status="flat"), unknown
    if best in (0, len(values) - 1):
        return Optimum(status="edge", lowest=lowest), unknown
    near = np.abs(which - best) <= AROUND
    u = np.log(x_n[near])
    at, height, bend = _vertices(u, np.concatenate([loss_n[None, near], replicates_Rn[:, near]]))
    if not np.isfinite(at[0]):
        return Optimum(status="flat", lowest=lowest), unknown
    x = np.exp(at[0])
    if min((values < x).sum(), (values > x).sum()) < AROUND:
        return Optimum(status="thin", lowest=lowest), unknown
    ends = uncertainty.interval(at[1:])
    interval = Interval(*(None if e is None else float(np.exp(e)) for e in (ends.low, ends.high)))
    optimum = Optimum(
        status="bracketed",
        at=float(x),
        interval=interval,
        loss=float(height[0]),
        bend=float(bend[0]),
        lowest=lowest,
    )
    return optimum, at[1:]


def _vertices(u: NDArray, loss_Rn: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Position and height of the vertex of each row, and the curvature. Without a minimum the
    position is infinite, in the direction of decreasing loss."""
    middle = u.mean()
    columns = np.stack([np.ones_like(u), u - middle, (u - middle) ** 2], axis=1)
    level, slope, bend = np.linalg.lstsq(columns, loss_Rn.T, rcond=None)[0]
    cup = bend > 1e-12 * np.abs(loss_Rn).max()
    bend = np.where(cup, bend, 1)
    at = np.where(cup, middle - slope / (2 * bend), -np.sign(slope) * np.inf)
    return at, level - slope**2 / (4 * bend), bend
