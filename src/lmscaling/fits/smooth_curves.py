"""Loss curves that are smoothed and can be inverted.

A running median of 21 points is insensitive to spikes. A decreasing function is then fitted to the
mean curve by least squares (isotonic regression). Between points ln x is linear in the loss.

Legend: ``s`` seeds, ``n`` points of a curve.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

AXES = ("updates", "flops", "hours")
WINDOW = 21


@dataclass(frozen=True)
class Curve:
    """The losses of one attention, in order of updates."""

    updates: ArrayLike
    flops: ArrayLike
    hours: ArrayLike
    loss: ArrayLike
    """``[n]`` of one run or ``[s, n]``, nats per token; NaN if missing."""


@dataclass(frozen=True)
class Smooth:
    """A smoothed curve: logarithms ``[axis, n]`` of what was spent, and losses ``[s, n]``."""

    log_spent: NDArray
    loss: NDArray

    def at(self, log_x: NDArray, axis: int = 0) -> NDArray:
        """``[s, x]``: the loss of each seed; NaN outside the curve."""
        row = self.log_spent[axis]
        return np.array([np.interp(log_x, row, one, np.nan, np.nan) for one in self.loss])


def smooth(reference: Curve, other: Curve) -> tuple[Smooth, Smooth]:
    """Both curves without missing losses, smoothed; at equal updates their difference is."""
    parts = []
    for curve in (reference, other):
        loss = np.atleast_2d(np.asarray(curve.loss, dtype=float))
        known = np.isfinite(loss).all(axis=0)
        spent = [np.asarray(getattr(curve, axis), dtype=float)[known] for axis in AXES]
        parts.append((np.array(spent), loss[:, known]))
    (spent_1, loss_1), (spent_2, loss_2) = parts
    smooth_1, smooth_2 = _running_median(loss_1), _running_median(loss_2)
    _, i, j = np.intersect1d(spent_1[0], spent_2[0], return_indices=True)
    smooth_2[:, j] = smooth_1[:, i] - _running_median(loss_1[:, i] - loss_2[:, j])
    return Smooth(np.log(spent_1), smooth_1), Smooth(np.log(spent_2), smooth_2)


def _running_median(loss_sn: NDArray) -> NDArray:
    """Median of the 21 points around each point; near an end of the largest symmetric window."""
    half, n = WINDOW // 2, loss_sn.shape[1]
    smooth = loss_sn.copy()
    for i in range(1, min(half, (n + 1) // 2)):
        smooth[:, i] = np.median(loss_sn[:, : 2 * i + 1], axis=1)
        smooth[:, -1 - i] = np.median(loss_sn[:, -1 - 2 * i :], axis=1)
    if n >= WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(loss_sn, WINDOW, axis=1)
        smooth[:, half:-half] = np.median(windows, axis=2)
    return smooth


def decreasing(loss: NDArray) -> NDArray:
    """The decreasing curve that is nearest by least squares."""
    return isotonic_regression(loss, increasing=False).x


def inverse(
    log_x: NDArray, falling: NDArray, loss: ArrayLike, side: Literal["left", "right"]
) -> NDArray:
    """Where a decreasing curve has a loss: the first place (``left``) at which it is as low, or the
    last one (``right``) at which it is as high; infinite beyond its ends."""
    wanted = np.asarray(loss, dtype=float)
    i = np.searchsorted(-falling, -wanted, side)
    a, b = np.clip(i - 1, 0, None), np.clip(i, None, len(falling) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(a == b, 0.0, (falling[a] - wanted) / (falling[a] - falling[b]))
    found = log_x[a] + part * (log_x[b] - log_x[a])
    outside = np.where(i == 0, -np.inf, np.where(i == len(falling), np.inf, found))
    found = np.where((a == b) & (falling[a] != wanted), outside, found)
    return np.where(np.isnan(wanted), np.nan, found)
