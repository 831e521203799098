"""Claims, their judgements, and the statistics that several claims share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.fits.uncertainty import Interval

VERDICTS = {
    "holds": "the numbers agree with the claim",
    "fails": "a number contradicts the claim significantly",
    "not tested": "there are no numbers, or they are too few or too uncertain",
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on one claim by the numbers of one source."""

    verdict: str
    """A key of ``VERDICTS``."""
    number: float | None = None
    """The deciding number; ``Claim.number`` defines it."""
    interval: Interval | None = None
    """95 % interval of the number, the range that it has if seeds differ by ``assumed``, or the
    range of its values; see ``Claim.number``. None where no interval is known to hold it."""
    scope: str = ""
    """How far the verdict goes, such as ``to 16,384`` tokens, where a claim goes farther."""
    rests_on: tuple[str, ...] = ()
    """Compared cells or points."""
    why: str
    """One sentence."""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the literature, and how a study tests it."""

    name: str
    title: str
    """The claim in our own words."""
    reference: str
    """Authors, title and section of the source."""
    judged: str
    """The criterion, one sentence or more."""
    query: str
    """Over the views of the store, with the roles as parameters."""
    number: str
    """The meaning of the number of a judgement."""
    threshold: float
    roles: dict[str, str]
    """What the claim speaks of, by role: attentions, or methods of the view ``speeds``."""
    judge: Callable[[DataFrame], Judgement]
    """The judgement of the rows of the query, of one source and setup."""
    because: str = ""
    """Unit of the threshold and the reason for it, which a module tells of ``THRESHOLD``."""
    axis: str | None = None
    """What is equal where losses are compared."""
    of_form: bool = False
    """Whether only another form of the candidate's own attention may play the candidate."""
    of_gpu: bool = False
    """Whether the claim is about times on a GPU, of which those on a CPU say nothing."""


def untested(why: str) -> Judgement:
    """A claim without sufficient numbers."""
    return Judgement(verdict="not tested", why=why)


def overall(verdicts: Iterable[str]) -> str:
    """One failing part refutes a claim, and one untested part leaves it untested."""
    parts = set(verdicts)
    return next((v for v in ("fails", "not tested") if v in parts), "holds")


def inside(interval: Interval, low: float, high: float) -> str:
    """Whether an interval lies entirely within bounds, entirely outside, or neither."""
    least = -np.inf if interval.low is None else interval.low
    most = np.inf if interval.high is None else interval.high
    if low <= least and most <= high:
        return "holds"
    return "fails" if most < low or high < least else "not tested"


def spread(values: Iterable[float]) -> Interval:
    """The range of the values."""
    known = [float(value) for value in values]
    return Interval(min(known), max(known))


def series(rows: DataFrame, by: list[str]) -> list[tuple[Any, DataFrame]]:
    """The rows of each combination of values in the columns ``by``, in the order of the rows."""
    return list(rows.groupby(by, sort=False))


def points(rows: DataFrame) -> tuple[str, ...]:
    """Distinct sizes and contexts, such as ``124M at 1,024``."""
    pairs = rows[["size", "context"]].drop_duplicates().itertuples(index=False, name=None)
    return tuple(f"{size} at {context:,}" for size, context in pairs)


def places(rows: DataFrame) -> str:
    """Sizes with their contexts for a sentence, such as ``124M at 1,024, 2,048``."""
    parts = [
        f"{size} at {', '.join(f'{c:,}' for c in sorted(part.context.unique()))}"
        for size, part in rows.groupby("size", sort=False)
    ]
    return "; ".join(parts)
