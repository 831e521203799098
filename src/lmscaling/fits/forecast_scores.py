"""Scores of predictions whose truth has become known.

Intervals of a good forecast hold the truth as often as they say; its log score, the mean log
density of what was measured, exceeds that of a plain guess (Gneiting and Raftery 2007,
doi:10.1198/016214506000001437). Densities are those of logarithms, so that no unit matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy.stats import norm, t

LEVELS = (0.8, 0.95)


@dataclass(frozen=True)
class Scores:
    """Of the predictions of one quantity in one seal."""

    held: dict[float, int]
    """How many intervals hold what was measured, by their probability."""
    of: int
    """How many predictions have an interval."""
    factor: float
    """Median of measured over predicted or of the inverse, whichever is larger than 1."""
    log_score: float | None
    """Mean, nats; None without intervals."""
    baseline_log_score: float | None
    """That of the plain guesses; None if a prediction has none."""


Row = dict[str, Any]
"""``median``, ``sd``, ``degrees``, ``baseline_median``, ``baseline_sd`` and ``measured``."""


def transform(rows: Sequence[Row]) -> NDArray:
    """The probability integral transform of each row, 0 to 1; NaN without an interval."""
    values = _table(rows)
    return t.cdf(values["away"] / values["sd"], values["degrees"])


def score(rows: Sequence[Row]) -> Scores:
    """The scores of predictions, at least one, whose truth is known."""
    values, p_n = _table(rows), transform(rows)
    sure = values[values["sd"].notna()]
    own = t.logpdf(sure["away"] / sure["sd"], sure["degrees"]) - np.log(sure["sd"])
    guess, guess_sd = np.log(values["baseline_median"]), values["baseline_sd"]
    plain = norm.logpdf(np.log(values["measured"]), guess, guess_sd)
    return Scores(
        held={level: int((abs(p_n - 0.5) <= level / 2).sum()) for level in LEVELS},
        of=len(sure),
        factor=float(np.exp(values["away"].abs().median())),
        log_score=float(own.mean()) if len(sure) else None,
        baseline_log_score=float(plain.mean()) if values["baseline_median"].notna().all() else None,
    )


def _table(rows: Sequence[Row]) -> DataFrame:
    """The rows with ``away``, the logarithm of measured over predicted."""
    names = ["median", "sd", "degrees", "baseline_median", "baseline_sd", "measured"]
    values = DataFrame(rows, columns=names).astype(float).fillna({"degrees": np.inf})  # normal
    return values.assign(away=np.log(values["measured"] / values["median"]))
