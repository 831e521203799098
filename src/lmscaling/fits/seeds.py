"""Means over the seeds of one cell, and paired comparisons of two cells over the same seeds.

Both are Student's t of the seeds themselves, so they need two seeds and are exact for normal
values. Accuracies near 1 are not normal: their intervals are cut at 0 and 1 by who prints them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import sem, t

from lmscaling.fits.uncertainty import LEVEL, Interval


def mean(values: Sequence[float], level: float = LEVEL) -> tuple[float, Interval | None]:
    """The mean of some seeds with its interval; None for one seed."""
    centre = float(np.mean(values))
    if len(values) < 2:
        return centre, None
    half = t.ppf((1 + level) / 2, len(values) - 1) * sem(values)
    return centre, Interval(float(centre - half), float(centre + half))


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Values of one cell minus those of another, for the seeds that both have, in their order."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def p_value(sample: Sequence[float]) -> float | None:
    """Two-sided p-value that the mean of some differences is 0; None for fewer than two."""
    if len(sample) < 2:
        return None
    if np.ptp(sample) == 0:  # of which the t test makes 0 / 0
        return 1.0 if sample[0] == 0 else 0.0
    return float(2 * t.sf(abs(np.mean(sample)) / sem(sample), len(sample) - 1))
