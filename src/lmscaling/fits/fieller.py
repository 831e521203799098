"""Interval of a ratio of two estimated numbers (Fieller 1954).

It has every ratio ``r`` for which ``numerator - r * denominator`` could be 0. An interval from the
standard error of the ratio is too short where the denominator is uncertain; this one is open then.
"""

from typing import NamedTuple

import numpy as np

from lmscaling.fits.uncertainty import Interval


class Moments(NamedTuple):
    """Two estimates, and the variances and the covariance of their errors."""

    numerator: float
    denominator: float
    numerator_variance: float
    denominator_variance: float
    covariance: float


def interval(m: Moments, quantile: float) -> Interval:
    """The interval of ``numerator / denominator``.

    Args:
        m: The estimates.
        quantile: Half-width of an interval in standard errors, by Student's or a normal law.

    Returns:
        Without ends if the denominator could be 0, for the ratio could then be any large number of
        either sign.
    """
    a = m.denominator**2 - quantile**2 * m.denominator_variance
    low, high = _roots(m, quantile, a)
    return Interval(low, high) if a > 0 else Interval(None, None)


def of_positive(m: Moments, quantile: float) -> Interval:
    """The same of a ratio that is known to be positive: it may have a lower end alone."""
    a = m.denominator**2 - quantile**2 * m.denominator_variance
    c = m.numerator**2 - quantile**2 * m.numerator_variance
    low, high = _roots(m, quantile, a)
    if a > 0:
        return Interval(max(low, 0.0), high if high > 0 else None)
    return Interval(max(low, high), None) if c > 0 else Interval(None, None)


def _roots(m: Moments, quantile: float, a: float) -> tuple[float, float]:
    """Zeros of ``(numerator - r denominator)^2 - quantile^2 variance``, the lower one first."""
    b = m.numerator * m.denominator - quantile**2 * m.covariance
    c = m.numerator**2 - quantile**2 * m.numerator_variance
    root = np.sqrt(max(b * b - a * c, 0.0))
    low, high = sorted(((b - root) / a, (b + root) / a)) if a else (-np.inf, np.inf)
    return float(low), float(high)
