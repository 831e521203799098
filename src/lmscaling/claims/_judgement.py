"""What can be said of a claim, and the arithmetic that several claims share.

Legend: ``R`` replicates, ``n`` points.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import DataFrame
from scipy.stats import rankdata, t

from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import LEVEL, REPLICATES, STATED, Interval

VERDICTS = {
    "holds": "the numbers agree with the claim",
    "fails": "some number disagrees with it by more than chance",
    "not tested": "there are no numbers for it, or they are too few or too uncertain to tell",
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the numbers of one source say of one claim."""

    verdict: str
    """A key of ``VERDICTS``."""
    number: float | None = None
    """What decides; what it is stands in the claim's ``NUMBER``."""
    interval: Interval | None = None
    """Of the number, or what it ranges over; the claim's ``NUMBER`` says which."""
    rests_on: tuple[str, ...] = ()
    """Cells or points that were compared."""
    why: str
    """One sentence."""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


def untested(why: str) -> Judgement:
    """Nothing to judge by."""
    return Judgement(verdict="not tested", why=why)


def overall(verdicts: Iterable[str]) -> str:
    """One counterexample is enough against a claim, and one open question to leave it open."""
    found = set(verdicts)
    return next((v for v in ("fails", "not tested") if v in found), "holds")


def inside(interval: Interval, low: float, high: float) -> str:
    """Whether a number is surely within bounds, surely not, or neither."""
    least = -np.inf if interval.low is None else interval.low
    most = np.inf if interval.high is None else interval.high
    if low <= least and most <= high:
        return "holds"
    return "fails" if most < low or high < least else "not tested"


def spread(values: Iterable[float]) -> Interval:
    """From the least to the most."""
    known = [float(value) for value in values]
    return Interval(min(known), max(known))


def points(rows: DataFrame) -> tuple[str, ...]:
    """Sizes and contexts as they are cited, each once."""
    pairs = rows[["size", "context"]].drop_duplicates().itertuples(index=False, name=None)
    return tuple(f"{size} at {context:,}" for size, context in pairs)


def places(rows: DataFrame) -> str:
    """Sizes and contexts as part of a sentence."""
    parts = [
        f"{size} at {', '.join(f'{c:,}' for c in sorted(part.context.unique()))}"
        for size, part in rows.groupby("size", sort=False)
    ]
    return "; ".join(parts)


def slope(x: ArrayLike, y: ArrayLike) -> tuple[float, Interval]:
    """Of the straight line through three points or more; its interval from their scatter."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    away = x - x.mean()
    rising = float(away @ y / (away @ away))
    residual = y - y.mean() - rising * away
    error = np.sqrt(residual @ residual / (len(x) - 2) / (away @ away))
    half = float(t.isf((1 - LEVEL) / 2, len(x) - 2) * error)
    return rising, Interval(rising - half, rising + half)


def redrawn(loss_n: ArrayLike) -> NDArray:
    """``[R, n]`` losses as other seeds might have given them, by the stated noise of a run."""
    loss = np.asarray(loss_n, dtype=float)
    runs = uncertainty.Runs.of(len(loss))
    return uncertainty.replicates(loss, np.zeros(len(loss)), runs, STATED, REPLICATES)


def rank_correlation(x_n: ArrayLike, y_Rn: ArrayLike) -> NDArray:
    """Spearman's, ``[R]``: 1 where every row of ``y`` only rises with ``x``; 0 where it is flat."""
    x, y = rankdata(x_n), rankdata(np.atleast_2d(y_Rn), axis=1)
    x, y = x - x.mean(), y - y.mean(axis=1, keepdims=True)
    length = np.sqrt((x @ x) * (y * y).sum(axis=1))
    return np.divide(y @ x, length, out=np.zeros(len(y)), where=length > 0)
