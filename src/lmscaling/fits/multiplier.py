"""How much more the reference must spend for the same loss: the compute multiplier of an attention.

``m(L) = x_reference(L) / x_other(L)``, where ``x(L)`` is what a run spends until its loss first is
``L``: updates, FLOPs or hours. Above 1 the other attention is the better one. It depends on the
loss, so it is given at several, and it splits into what an update teaches and how long that takes:

    hours = updates x speed,    speed = (hours per update)_reference / (hours per update)_other

A curve is smoothed by a running median of 21 points, which spikes do not move, and then by the best
loss so far, so that every loss is reached once. Between points ln x is linear in the loss; updates,
FLOPs and hours take the same place between the same points, so the product is exact.

The seed shifts a whole curve: intervals come from draws of one shift for each.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import crossing, uncertainty
from lmscaling.fits.crossing import Crossings
from lmscaling.fits.uncertainty import STATED, Interval, Noise

STATUSES = {
    "compared": "both curves reach the losses of the list",
    "apart": "no loss is reached by both: nothing to compare",
    "too_few": "fewer than two points in some curve",
}

QUERY = """
    SELECT source, size, params, context, attention, seeds, updates, hours, flops, loss
    FROM law_means
    WINDOW pair AS (PARTITION BY source, size, context)
    QUALIFY bool_or(attention = 'softmax') OVER pair AND bool_or(attention <> 'softmax') OVER pair
    ORDER BY source, params, size, context, attention DESC, updates
"""
"""Curves of what is compared with softmax, means over seeds."""

REFERENCE = "softmax"
AXES = ("updates", "flops", "hours")
WINDOW = 21
LEVELS = 20
SURE = 2.5
"""Seed deviations above the end of the higher curve: 0.6 % of seeds are worse than that."""


@dataclass(frozen=True)
class Curve:
    """The loss of one run as it went, in order."""

    updates: ArrayLike
    flops: ArrayLike
    hours: ArrayLike
    loss: ArrayLike
    """Nats per token; NaN where the run logged none."""


@dataclass(frozen=True)
class AtLoss:
    """Multipliers at one loss."""

    loss: float
    updates: float
    flops: float
    hours: float
    speed: float
    """Of the updates until then: hours over updates."""
    intervals: dict[str, Interval]
    """By axis; an end is open where a curve, shifted by its seed, never comes so low."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The other attention against the reference."""

    formula: ClassVar[str] = "m(L) = x_reference(L) / x_other(L); hours = updates x speed"
    source: ClassVar[str] = "compute-equivalent gain, Davidson et al. 2023, arXiv:2312.07413"
    status: str
    """A key of ``STATUSES``."""
    levels: tuple[AtLoss, ...] = ()
    """From the highest loss to the lowest that both reach."""
    crossings: dict[str, Crossings] = field(default_factory=dict)
    """By axis: where the other overtakes or falls behind, or within which bounds it does not."""


def fit(
    reference: Curve,
    other: Curve,
    losses: ArrayLike | None = None,
    noise: Noise = STATED,
    count: int = uncertainty.REPLICATES,
    seed: int = 0,
) -> Multipliers:
    """Multipliers at those of some losses that both reach; by default at 20 that the other passes,
    evenly in ln updates, down to one that both reach with hardly any seed missing it.

    For curves that are means over k seeds, ``noise`` is that of one over sqrt(k).
    """
    one, two = _Envelope.of(reference), _Envelope.of(other)
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
    with np.errstate(invalid="ignore"):  # neither comes so low: no number, both ends open
        drawn = one.log_x(level - shift[0]) - two.log_x(level - shift[1])
    made = []
    for j, loss in enumerate(level):
        m = dict(zip(AXES, map(float, np.exp(log_m[:, j])), strict=True))
        ends = {a: _exp(uncertainty.interval(drawn[i, :, j])) for i, a in enumerate(AXES)}
        made.append(AtLoss(float(loss), **m, speed=m["hours"] / m["updates"], intervals=ends))
    return Multipliers(status="compared", levels=tuple(made), crossings=crossings)


@dataclass(frozen=True)
class Pair:
    """An attention beside softmax, at one size and context of one source."""

    source: str
    size: str
    context: int
    attention: str
    axes: tuple[str, ...]
    """Of ``AXES``, those on which both are known."""
    found: Multipliers


def pairs(rows: Iterable[tuple], count: int = uncertainty.REPLICATES) -> list[Pair]:
    """Every comparison that the rows of ``QUERY`` allow, in their order."""
    curves: dict[tuple[str, str, int], dict[str, list[tuple]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for source, size, _, context, attention, *numbers in rows:
        curves[source, size, context][attention].append(tuple(numbers))
    made = []
    for key, known in curves.items():
        table = {name: np.array(part, dtype=float).T for name, part in known.items()}
        reference = table.pop(REFERENCE)
        for attention, other in table.items():
            axes, found = _compared(reference, other, count)
            made.append(Pair(*key, attention, axes, found))
    return made


def _compared(one: NDArray, two: NDArray, count: int) -> tuple[tuple[str, ...], Multipliers]:
    """The axes that are known, and the multipliers, of columns of ``QUERY`` from ``seeds`` on."""
    costed = bool(np.isfinite(one[3]).all() and np.isfinite(two[3]).all())
    # Means over seeds differ less; the two may have unlike many.
    shrunk = np.sqrt((1 / one[0, 0] + 1 / two[0, 0]) / 2)
    noise = replace(STATED, seed_sd=STATED.seed_sd * shrunk, point_sd=STATED.point_sd * shrunk)
    curves = [
        Curve(updates, flops if costed else updates, hours, loss)
        for _, updates, hours, flops, loss in (one, two)
    ]
    found = fit(curves[0], curves[1], noise=noise, count=count)
    return tuple(axis for axis in AXES if costed or axis != "flops"), found


@dataclass(frozen=True)
class _Envelope:
    """Best losses so far, falling, and the logarithms ``[axis, n]`` of what was spent."""

    loss: NDArray
    log_spent: NDArray
    log_end: NDArray
    """``[axis]``: the run may go on after its best loss."""

    @classmethod
    def of(cls, curve: Curve) -> "_Envelope":
        loss = np.asarray(curve.loss, dtype=float)
        known = np.isfinite(loss)
        loss = _running_median(loss[known])
        spent = np.log([np.asarray(getattr(curve, axis), dtype=float)[known] for axis in AXES])
        if not len(loss):
            return cls(loss, spent, np.full(len(AXES), -np.inf))
        new = np.diff(np.minimum.accumulate(loss), prepend=np.inf) < 0
        return cls(loss[new], spent[:, new], spent[:, -1])

    def log_x(self, loss: NDArray) -> NDArray:
        """Logarithms ``[axis, ...]`` of what is spent until a loss; infinite if never reached."""
        falling = (-loss).ravel()
        rows = [np.interp(falling, -self.loss, row, right=np.inf) for row in self.log_spent]
        return np.array(rows).reshape(len(rows), *loss.shape)

    def loss_at(self, log_x: NDArray, axis: int) -> NDArray:
        return np.interp(log_x, self.log_spent[axis], self.loss)


def _running_median(loss: NDArray) -> NDArray:
    """Median of the 21 points around each; near an end of as many as fit on both sides."""
    half = WINDOW // 2
    smooth = loss.copy()
    for i in range(1, min(half, (len(loss) + 1) // 2)):
        smooth[i], smooth[-1 - i] = np.median(loss[: 2 * i + 1]), np.median(loss[-1 - 2 * i :])
    if len(loss) >= WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW)
        smooth[half:-half] = np.median(windows, axis=1)
    return smooth


def _crossings(one: _Envelope, two: _Envelope, axis: int, noise: Noise) -> Crossings:
    """On one axis, over what both curves have spent."""
    first, second = one.log_spent[axis], two.log_spent[axis]
    start, end = max(first[0], second[0]), min(one.log_end[axis], two.log_end[axis])
    both = np.union1d(np.union1d(first, second), [start, end])
    both = both[(both >= start) & (both <= end)]
    return crossing.fit(np.exp(both), two.loss_at(both, axis) - one.loss_at(both, axis), noise)


def _exp(logs: Interval) -> Interval:
    ends = (None if end is None else float(np.exp(end)) for end in (logs.low, logs.high))
    return Interval(*ends)
