"""The compute multiplier of an attention: how much more a reference spends for the same loss.

``m(L) = x_reference(L) / x_other(L)``, where ``x(L)`` is the number of updates, FLOPs or hours that
a run spends until its loss first reaches ``L``. Above 1 the other attention is the better one. The
multiplier depends on the loss and is therefore given at several losses. In hours it is a product:

    hours = updates x speed,    speed = (hours per update)_reference / (hours per update)_other

Curves are smoothed by a running median of 21 points, which is insensitive to spikes, and then by
the running minimum, so that every loss is reached once. Between points ln x is linear in the loss,
with the same weights for updates, FLOPs and hours, so the product is exact.

A seed shifts an entire curve: intervals come from replicates with one shift for each curve.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import crossing, uncertainty
from lmscaling.fits.crossing import Crossings
from lmscaling.fits.uncertainty import STATED, Interval, Noise

STATUSES = {
    "compared": "compared at losses that both curves reach",
    "apart": "no loss is reached by both curves",
    "too_few": "fewer than two points in a curve",
}

QUERY = """
    SELECT source, size, context, attention = baseline AS is_baseline, attention,
        seeds, updates, hours, flops, loss
    FROM law_means
    WINDOW pair AS (PARTITION BY source, size, context)
    QUALIFY min(attention) OVER pair <> max(attention) OVER pair
    ORDER BY source, min(params) OVER (PARTITION BY source, size), size, context, is_baseline DESC,
        attention DESC, updates
"""
"""Loss curves where there are several attentions, the baseline first; means over seeds."""

AXES = ("updates", "flops", "hours")
WINDOW = 21
LEVELS = 20
SURE = 2.5
"""Distance of the lowest level from the end of the higher curve, in standard deviations of seeds:
0.6 % of seeds end above it."""


@dataclass(frozen=True)
class Curve:
    """The losses of one run, in order."""

    updates: ArrayLike
    flops: ArrayLike
    hours: ArrayLike
    loss: ArrayLike
    """Nats per token; NaN if missing."""


@dataclass(frozen=True)
class AtLoss:
    """Multipliers at one loss."""

    loss: float
    updates: float
    flops: float
    hours: float
    speed: float
    """Multiplier in hours divided by that in updates."""
    intervals: dict[str, Interval]
    """By axis; an end is open if a curve, shifted by its seed, does not reach the loss."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The other attention against the reference."""

    formula: ClassVar[str] = "m(L) = x_reference(L) / x_other(L); hours = updates x speed"
    source: ClassVar[str] = "compute-equivalent gain, Davidson et al. 2023, arXiv:2312.07413"
    status: str
    """A key of ``STATUSES``."""
    levels: tuple[AtLoss, ...] = ()
    """In order of decreasing loss."""
    crossings: dict[str, Crossings] = field(default_factory=dict)
    """By axis: the crossings of the two curves."""


def fit(
    reference: Curve,
    other: Curve,
    losses: ArrayLike | None = None,
    noise: Noise = STATED,
    count: int = uncertainty.REPLICATES,
    seed: int = 0,
) -> Multipliers:
    """Multipliers at the given losses, if both curves reach them.

    By default at 20 losses, evenly spaced in ln(updates) of the other curve; the lowest is one that
    almost all seeds reach. For means over k seeds pass ``noise`` divided by sqrt(k).
    """
    one, two = _Envelope.from_curve(reference), _Envelope.from_curve(other)
    if min(len(one.loss), len(two.loss)) < 2:
        return Multipliers(status="too_few")
    crossings = {axis: _crossings(one, two, i, noise) for i, axis in enumerate(AXES)}
    low, high = max(one.loss[-1], two.loss[-1]), min(one.loss[0], two.loss[0])
    if low >= high:
        return Multipliers(status="apart", crossings=crossings)
    if losses is None:
        lowest = min(low + SURE * noise.seed_sd, high)
        first, last = two.log_x(np.array([high, lowest]))[0]
        losses = two.loss_at(np.linspace(first, last, LEVELS), 0)
    level = np.unique(np.asarray(losses, dtype=float))[::-1]
    level = level[(level >= low) & (level <= high)]
    log_m = one.log_x(level) - two.log_x(level)
    shift = noise.seed_sd * np.random.default_rng(seed).standard_normal((2, count, 1))
    with np.errstate(invalid="ignore"):  # NaN if neither reaches the loss: both ends are open
        replicates = one.log_x(level - shift[0]) - two.log_x(level - shift[1])
    levels = []
    for j, loss in enumerate(level):
        m = dict(zip(AXES, map(float, np.exp(log_m[:, j])), strict=True))
        ends = {a: _exp(uncertainty.interval(replicates[i, :, j])) for i, a in enumerate(AXES)}
        levels.append(AtLoss(float(loss), **m, speed=m["hours"] / m["updates"], intervals=ends))
    return Multipliers(status="compared", levels=tuple(levels), crossings=crossings)


@dataclass(frozen=True)
class Pair:
    """An attention compared with another one at one size and context of one source."""

    source: str
    size: str
    context: int
    reference: str
    attention: str
    with_baseline: bool
    """Whether the reference is the baseline of the study."""
    axes: tuple[str, ...]
    """Those of ``AXES`` that are known for both."""
    result: Multipliers


def compare(rows: Iterable[tuple], count: int = uncertainty.REPLICATES) -> list[Pair]:
    """Compare every two attentions in the rows of ``QUERY``, in the order of the rows.

    The baseline is the reference of every other one; of two others, the first one is.
    """
    curves: dict[tuple[str, str, int], dict[str, list[tuple]]] = defaultdict(
        lambda: defaultdict(list)
    )
    baselines = set()
    for source, size, context, is_baseline, attention, *numbers in rows:
        curves[source, size, context][attention].append(tuple(numbers))
        baselines |= {(source, attention)} if is_baseline else set()
    pairs = []
    for key, known in curves.items():
        table = {name: np.array(part, dtype=float).T for name, part in known.items()}
        for reference, attention in combinations(table, 2):
            axes, result = _compare(table[reference], table[attention], count)
            with_baseline = (key[0], reference) in baselines
            pairs.append(Pair(*key, reference, attention, with_baseline, axes, result))
    return pairs


def _compare(one: NDArray, two: NDArray, count: int) -> tuple[tuple[str, ...], Multipliers]:
    """Known axes and multipliers from the columns of ``QUERY`` after ``attention``."""
    has_flops = bool(np.isfinite(one[3]).all() and np.isfinite(two[3]).all())
    # Means over seeds have less noise; the two curves may have different numbers of seeds.
    factor = np.sqrt((1 / one[0, 0] + 1 / two[0, 0]) / 2)
    noise = replace(STATED, seed_sd=STATED.seed_sd * factor, point_sd=STATED.point_sd * factor)
    curves = [
        Curve(updates, flops if has_flops else updates, hours, loss)
        for _, updates, hours, flops, loss in (one, two)
    ]
    result = fit(curves[0], curves[1], noise=noise, count=count)
    return tuple(axis for axis in AXES if has_flops or axis != "flops"), result


@dataclass(frozen=True)
class _Envelope:
    """Running minimum of the loss and logarithms ``[axis, n]`` of what was spent."""

    loss: NDArray
    log_spent: NDArray
    log_end: NDArray
    """``[axis]``: end of the run, which may be later than its lowest loss."""

    @classmethod
    def from_curve(cls, curve: Curve) -> "_Envelope":
        loss = np.asarray(curve.loss, dtype=float)
        known = np.isfinite(loss)
        loss = _running_median(loss[known])
        spent = np.log([np.asarray(getattr(curve, axis), dtype=float)[known] for axis in AXES])
        if not len(loss):
            return cls(loss, spent, np.full(len(AXES), -np.inf))
        new = np.diff(np.minimum.accumulate(loss), prepend=np.inf) < 0
        return cls(loss[new], spent[:, new], spent[:, -1])

    def log_x(self, loss: NDArray) -> NDArray:
        """Logarithms ``[axis, ...]`` of what is spent to reach a loss; infinite if not reached."""
        falling = (-loss).ravel()
        rows = [np.interp(falling, -self.loss, row, right=np.inf) for row in self.log_spent]
        return np.array(rows).reshape(len(rows), *loss.shape)

    def loss_at(self, log_x: NDArray, axis: int) -> NDArray:
        return np.interp(log_x, self.log_spent[axis], self.loss)


def _running_median(loss: NDArray) -> NDArray:
    """Median of the 21 points around each point; near an end of the largest symmetric window."""
    half = WINDOW // 2
    smooth = loss.copy()
    for i in range(1, min(half, (len(loss) + 1) // 2)):
        smooth[i], smooth[-1 - i] = np.median(loss[: 2 * i + 1]), np.median(loss[-1 - 2 * i :])
    if len(loss) >= WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW)
        smooth[half:-half] = np.median(windows, axis=1)
    return smooth


def _crossings(one: _Envelope, two: _Envelope, axis: int, noise: Noise) -> Crossings:
    """Crossings on one axis, over the range of both curves."""
    first, second = one.log_spent[axis], two.log_spent[axis]
    start, end = max(first[0], second[0]), min(one.log_end[axis], two.log_end[axis])
    both = np.union1d(np.union1d(first, second), [start, end])
    both = both[(both >= start) & (both <= end)]
    return crossing.fit(np.exp(both), two.loss_at(both, axis) - one.loss_at(both, axis), noise)


def _exp(logs: Interval) -> Interval:
    ends = (None if end is None else float(np.exp(end)) for end in (logs.low, logs.high))
    return Interval(*ends)
