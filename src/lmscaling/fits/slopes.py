"""The exponent of a time or a memory in the length of a sequence.

What does not grow with the length, and what grows more slowly, flattens the slope at short lengths,
so only the longest ones count for an exponent: those within three octaves of the longest. Intervals
are Student's t of the residuals.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import linregress, t

from lmscaling.fits.uncertainty import LEVEL, Interval

SPAN = 8.0
"""Longest length over the shortest that counts."""

FEWEST = 3
"""Lengths without which the residuals say nothing."""


def exponent(lengths: ArrayLike, values: ArrayLike) -> tuple[float, Interval] | None:
    """Slope of ln(value) against ln(length) with its 95 % interval; None for too few lengths."""
    x, y = (np.asarray(each, dtype=float) for each in (lengths, values))
    counts = x >= x.max(initial=0.0) / SPAN
    if (n := int(counts.sum())) < FEWEST:
        return None
    found: Any = linregress(np.log(x[counts]), np.log(y[counts]))
    slope, half = float(found.slope), float(t.isf((1 - LEVEL) / 2, n - 2) * found.stderr)
    return slope, Interval(slope - half, slope + half)
