"""Intervals of sums over cells.

Errors of predicted times are correlated, as they come from the same coefficients, so the interval
of a sum is not that of a sum of independent ones.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from lmscaling.plan.estimate import Forecast, Range
from lmscaling.plan.throughput.model import (
    NAMES,
    QUANTILES,
    SPREAD,
    Coefficients,
)

SUMMED = ("gpu_hours", "branch_gpu_hours", "tokens", "dollars", "kwh")


def ranges(
    forecasts: Sequence[Forecast], fitted: Iterable[Coefficients], level: float
) -> dict[str, Range]:
    """The interval of each sum.

    The variance of its logarithm is ``v C v`` for the covariance ``C`` of the coefficients, where
    ``v`` is the mean of the cells' slopes, weighted by their shares of the sum; and what training
    adds in all cells; and the noise of each cell. Cells with coefficients of their own count as
    completely correlated with the others.

    Args:
        forecasts: Those of the cells that can run.
        fitted: The coefficients behind each.
        level: 0.8 or 0.95.
    """
    pairs = list(zip(forecasts, fitted, strict=True))
    found = {}
    for name in SUMMED:
        known = [(f, c) for f, c in pairs if getattr(f, name)]
        total = sum(getattr(f, name) for f, _ in known)
        if total:
            sd = _sd(name, total, known)
            factor = math.exp(QUANTILES[level] * sd)
            found[name] = total / factor, total * factor
    return found


def _sd(name: str, total: float, known: Sequence[tuple[Forecast, Coefficients]]) -> float:
    """Standard deviation of the logarithm of a sum."""
    slopes: dict[int, np.ndarray] = {}
    fits = {id(c): c for _, c in known}
    common, noise = 0.0, 0.0
    for f, c in known:
        weight = getattr(f, name) / total * _elasticity(f, name)
        if not weight or not f.update_sd:
            continue
        slope_K = np.array([*(f.shares.get(n, 0.0) for n in NAMES), sum(f.shares.values())])
        slopes[id(c)] = slopes.get(id(c), 0.0) + weight * slope_K
        own = min(SPREAD, c.trained)
        common += weight * math.sqrt(c.trained**2 - own**2)
        noise += (weight * own) ** 2
    fitted = sum(math.sqrt(v_K @ fits[i].cov_KK @ v_K) for i, v_K in slopes.items())
    return math.sqrt(fitted**2 + common**2 + noise)


def _elasticity(f: Forecast, name: str) -> float:
    """Change of the logarithm of a number with that of the time of an update: 0 if it is fixed by
    the budget, 1 if not, less where a run may end with its data."""
    (slow, fast), (most, least) = f.range_80["update_seconds"], f.range_80[name]
    away = math.log(fast / slow)
    return math.log(least / most) / away if away and least > 0 and most > 0 else 0.0
