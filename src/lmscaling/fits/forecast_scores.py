"""Scores of predictions whose truth has become known.

Intervals of a good forecast hold the truth as often as they say; its log score, the mean log
density of what was measured, exceeds that of a plain guess (Gneiting and Raftery 2007,
doi:10.1198/016214506000001437). Densities are those of logarithms, so that no unit matters.

Predictions are rows of the view ``forecast_scores``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, Series
from scipy import stats

LEVELS = (0.8, 0.95)


def interval(rows: DataFrame, level: float) -> tuple[NDArray, NDArray]:
    """Lower and upper ends of the central intervals; NaN without one."""
    low, high = _distribution(rows).interval(level)
    return np.exp(low), np.exp(high)


def places(rows: DataFrame) -> NDArray:
    """The probability of less than was measured, 0 to 1; NaN without an interval."""
    return _distribution(rows).cdf(np.log(rows["measured"]))


def log_scores(rows: DataFrame) -> tuple[float, float]:
    """Mean log densities of what was measured, nats: of the predictions that have an interval, and
    of all plain guesses; NaN without."""
    own = _distribution(rows).logpdf(np.log(rows["measured"]))
    guess = np.log(rows["baseline_median"])
    plain = stats.norm.logpdf(np.log(rows["measured"]), guess, rows["baseline_sd"])
    return float(Series(own).mean()), float(np.mean(plain))


def _distribution(rows: DataFrame) -> Any:
    """Of the logarithm: t, or normal without degrees of freedom."""
    degrees = rows["degrees"].astype(float).fillna(np.inf)
    return stats.t(degrees, loc=np.log(rows["median"]), scale=rows["sd"])
