"""Slopes of lines, and the exponent of a time or a memory in the length of a sequence.

What does not grow with the length, and what grows more slowly, flattens the slope at short lengths,
so only the longest ones count for an exponent: those within three octaves of the longest. Intervals
are Student's t of the residuals.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t

from lmscaling.fits.uncertainty import LEVEL, Interval

SPAN = 8.0
"""Longest length over the shortest that counts."""

FEWEST = 3
"""Lengths without which the residuals say nothing."""


def line(x: ArrayLike, y: ArrayLike, level: float = LEVEL) -> tuple[float, Interval]:
    """Slope of the regression line through at least three points, with its interval."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    centred = x - x.mean()
    value = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - value * centred
    error = np.sqrt(residual @ residual / (len(x) - 2) / (centred @ centred))
    half = float(t.isf((1 - level) / 2, len(x) - 2) * error)
    return value, Interval(value - half, value + half)


def exponent(lengths: ArrayLike, values: ArrayLike) -> tuple[float, Interval] | None:
    """Slope of ln(value) against ln(length) with its 95 % interval; None for too few lengths."""
    x, y = (np.asarray(each, dtype=float) for each in (lengths, values))
    counts = x >= x.max(initial=0.0) / SPAN
    if counts.sum() < FEWEST:
        return None
    return line(np.log(x[counts]), np.log(y[counts]))
