"""Scores of predictions whose truth has become known.

The probability integral transform of a good forecast is uniform; its intervals hold the truth as
often as they say; its log score, the mean log density of what was measured, exceeds that of a
plain guess (Gneiting and Raftery 2007, doi:10.1198/016214506000001437). Densities are those of
logarithms, so that no unit matters. Predictions of one study share what they are made from: the
binomial interval of a coverage is too narrow if all of them err alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm, t

LEVELS = (0.8, 0.95)


@dataclass(frozen=True)
class Held:
    """How many intervals hold what was measured."""

    held: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share (Clopper and Pearson 1934)."""
        ends = binomtest(self.held, self.of).proportion_ci()
        return float(ends.low), float(ends.high)


@dataclass(frozen=True)
class Scores:
    """Of the predictions of one quantity in one seal."""

    scored: int
    held: dict[float, Held]
    """By the probability of the intervals."""
    factor: float
    """Median of measured over predicted or of the inverse, whichever is larger than 1."""
    log_score: float
    """Mean, nats."""
    baseline_log_score: float | None
    """That of the plain guesses; None if a prediction has none."""


Row = dict[str, Any]
"""``median``, ``sd``, ``degrees``, ``baseline_median``, ``baseline_sd`` and ``measured``."""


def transform(rows: Sequence[Row]) -> NDArray:
    """The probability integral transform of each row, 0 to 1."""
    return t.cdf(_away(rows), _degrees(rows))


def score(rows: Sequence[Row]) -> Scores:
    """The scores of predictions, at least one, whose truth is known."""
    p_n, away = transform(rows), _away(rows)
    tails = {level: (1 - level) / 2 for level in LEVELS}
    held = {
        level: Held(int(((p_n >= tail) & (p_n <= 1 - tail)).sum()), len(rows))
        for level, tail in tails.items()
    }
    sd = _column(rows, "sd")
    own = t.logpdf(away, _degrees(rows)) - np.log(sd)
    plain = None
    if all(row["baseline_median"] for row in rows):
        of_plain = np.log(_column(rows, "baseline_median")), _column(rows, "baseline_sd")
        plain = float(norm.logpdf(np.log(_column(rows, "measured")), *of_plain).mean())
    return Scores(
        scored=len(rows),
        held=held,
        factor=float(np.exp(np.median(np.abs(away * sd)))),
        log_score=float(own.mean()),
        baseline_log_score=plain,
    )


def _column(rows: Sequence[Row], name: str) -> NDArray:
    return np.array([row[name] for row in rows], dtype=float)


def _degrees(rows: Sequence[Row]) -> NDArray:
    """Infinite of a normal distribution."""
    return np.array([row["degrees"] or np.inf for row in rows], dtype=float)


def _away(rows: Sequence[Row]) -> NDArray:
    """Scales from the median to what was measured."""
    return np.log(_column(rows, "measured") / _column(rows, "median")) / _column(rows, "sd")
