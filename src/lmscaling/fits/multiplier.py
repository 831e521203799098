"""The compute multiplier of an attention: how much more a reference spends for the same loss.

``m(L) = x_reference(L) / x_other(L)``, where ``x(L)`` is the number of updates, FLOPs or hours that
a run spends until its loss reaches ``L``. Above 1 the other attention is the better one. The
multiplier depends on the loss and is therefore given at several losses, those of the other curve at
fixed fractions of its updates. In hours it is a product:

    hours = steps x speed,    speed = (hours per update)_reference / (hours per update)_other

Runs with the same seed are paired: they see the same data in the same order, so most of their
noise is common. It cancels where curves are subtracted at equal updates before they are smoothed.

Intervals invert a t test: they contain every m for which the paired gap
``L_reference(m x) - L_other(x)`` does not differ from 0. Its standard deviation is measured between
seeds at the same fraction of training and raised towards that of all pairs of the study
(``noise``). An end is open if the reference does not reach the loss. Crossings are tested in the
same way.

Legend: ``s`` seeds that both attentions have, ``n`` points of a curve.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmscaling.fits import crossing
from lmscaling.fits.crossing import Crossings
from lmscaling.fits.noise import Noise, Place, Spread
from lmscaling.fits.smooth_curves import AXES, Curve, Smooth, decreasing, inverse, smooth
from lmscaling.fits.uncertainty import Interval

STATUSES = {
    "compared": "compared at losses that both curves reach",
    "apart": "no loss is reached by both curves",
    "too_few": "fewer than two points in a curve",
    "unpaired": "no seed has runs of both attentions",
}

QUERY_OF = """
    SELECT source, size, params, context, attention = baseline AS is_baseline, attention, seed,
        updates, hours, flops, loss
    FROM {view}
    WHERE schedule IN ('constant', 'unknown')
    WINDOW pair AS (PARTITION BY source, size, context)
    QUALIFY min(attention) OVER pair <> max(attention) OVER pair
    ORDER BY source, min(params) OVER (PARTITION BY source, size), size, context, is_baseline DESC,
        attention DESC, seed, updates
"""
"""Loss curves where there are several attentions, the baseline first. Before the end of the budget
only losses at a constant rate are comparable. For a view with the columns of ``law_curves``."""
QUERY = QUERY_OF.format(view="law_curves")

K = TypeVar("K", bound=Hashable)

FRACTIONS = 2.0 ** (-np.arange(21) / 4)
"""Of the updates of the other curve, from the end to 1/32, where losses are compared."""
DOUBLINGS = FRACTIONS[::4]
"""Of what both have spent, where the noise of crossings is measured."""


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
    """By axis; an end is open if the reference does not reach a loss that noise allows."""
    spread: Spread
    """Scatter of the paired gap."""


@dataclass(frozen=True)
class AtEnd:
    """The gap of two losses after as much of one axis as both have spent."""

    spent: float
    """Updates, FLOPs or hours."""
    gap: float
    """Loss of the other attention minus that of the reference, nats; mean over pairs."""
    spread: Spread
    """Scatter of the gaps of pairs."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The other attention against the reference."""

    formula: ClassVar[str] = "m(L) = x_reference(L) / x_other(L); hours = steps x speed"
    source: ClassVar[str] = "compute-equivalent gain, Davidson et al. 2023, arXiv:2312.07413"
    status: str
    """A key of ``STATUSES``."""
    levels: tuple[AtLoss, ...] = ()
    """In order of decreasing loss."""
    crossings: dict[str, Crossings] = field(default_factory=dict)
    """By axis: the crossings of the two curves."""
    ends: dict[str, AtEnd] = field(default_factory=dict)
    """By axis: the gap at the end of the shorter curve."""


def fit_all(
    pairs: Mapping[K, tuple[Curve, Curve]], places: Mapping[K, Place]
) -> dict[K, Multipliers]:
    """Multipliers of all pairs of one study, the reference first, which share their noise.

    The seeds of a pair have the same order in both curves.
    """
    found = {key: _Paired.from_curves(*curves) for key, curves in pairs.items()}
    paired = {key: one for key, one in found.items() if isinstance(one, _Paired)}
    spreads = _spreads(paired, places)
    results = {key: Multipliers(status=one) for key, one in found.items() if isinstance(one, str)}
    return results | {key: one.multipliers(spreads[key]) for key, one in paired.items()}


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
    seeds: int
    """Seeds that both attentions have."""
    result: Multipliers


def compare(rows: Iterable[tuple]) -> list[Pair]:
    """Compare every two attentions in the rows of ``QUERY``, in the order of the rows.

    The baseline is the reference of every other one; of two others, the first one is.
    """
    runs: dict[tuple, dict[str, dict[int, list]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    params, baselines = {}, set()
    for source, size, n, context, is_baseline, attention, seed, *numbers in rows:
        runs[source, size, context][attention][seed].append(numbers)
        params[source, size, context] = float(n)
        baselines |= {(source, attention)} if is_baseline else set()
    heads: list[tuple[str, str, int, str, str]] = []
    axes, seeds = {}, {}
    curves: dict[tuple, tuple[Curve, Curve]] = {}
    places: dict[tuple, Place] = {}
    for cell, known in runs.items():
        for reference, attention in combinations(known, 2):
            key = (*cell, reference, attention)
            both = [seed for seed in known[reference] if seed in known[attention]]
            tables = [[np.array(known[name][s], dtype=float) for s in both]
                      for name in (reference, attention)]  # fmt: skip
            has_flops = all(np.isfinite(run[:, 2]).all() for part in tables for run in part)
            heads.append(key)
            curves[key] = _mean_curve(tables[0], has_flops), _mean_curve(tables[1], has_flops)
            places[key] = Place(params[cell], cell[2], attention)
            axes[key] = tuple(axis for axis in AXES if has_flops or axis != "flops")
            seeds[key] = len(both)
    results = {}
    for source in dict.fromkeys(key[0] for key in heads):  # each has noise of its own
        results |= fit_all({key: curves[key] for key in heads if key[0] == source}, places)
    return [
        Pair(*key, (key[0], key[3]) in baselines, axes[key], seeds[key], results[key])
        for key in heads
    ]


def _mean_curve(runs: list[NDArray], has_flops: bool) -> Curve:
    """Losses of all runs at updates that all know; columns updates, hours, FLOPs, loss."""
    if not runs:
        return Curve([], [], [], np.empty((0, 0)))
    common = runs[0][:, 0]
    for run in runs[1:]:
        common = np.intersect1d(common, run[:, 0])
    kept = np.stack([run[np.isin(run[:, 0], common)] for run in runs])
    updates, hours, flops = np.moveaxis(kept[:, :, :3].mean(axis=0), -1, 0)
    return Curve(updates, flops if has_flops else updates, hours, kept[:, :, 3])


def _spreads(
    paired: Mapping[K, "_Paired"], places: Mapping[K, Place]
) -> dict[K, dict[str, list[Spread | None]]]:
    """By pair, and by ``loss`` or axis: the scatter of gaps at each place; None where a curve is
    missing."""
    spreads: dict[K, dict[str, list[Spread | None]]] = {key: {} for key in paired}
    for what, places_of in (("loss", FRACTIONS), *((axis, DOUBLINGS) for axis in AXES)):
        for j in range(len(places_of)):
            gaps = {key: one.gaps[what][:, j] for key, one in paired.items()}
            known = {
                key: dict(enumerate(gap.tolist()))
                for key, gap in gaps.items()
                if np.isfinite(gap).all()
            }
            noise = Noise.measure(known, places, paired=True)
            for key in paired:
                found = noise.at(key) if key in known else None
                spreads[key].setdefault(what, []).append(found)
    return spreads


@dataclass(frozen=True)
class _Paired:
    """Two smoothed curves and their gaps by seed."""

    reference: Smooth
    other: Smooth
    falling: NDArray
    """``[n]``: decreasing mean loss of the reference."""
    log_x: NDArray
    """``[F]``: logarithms of the updates of the other curve at ``FRACTIONS``."""
    loss: NDArray
    """``[F]``: decreasing mean loss of the other curve; NaN before its first point."""
    log_reference: NDArray
    """``[F]``: logarithms of the updates with which the reference reaches it; NaN if it does
    not."""
    gaps: dict[str, NDArray]
    """Nats: ``loss``, ``[s, F]``, where both curves have the loss of the other one; by axis,
    ``[s, DOUBLINGS]``, at equal spending. NaN where a curve is missing."""

    @classmethod
    def from_curves(cls, reference: Curve, other: Curve) -> "_Paired | str":
        """The pair, or the status that says why it cannot be compared."""
        if not len(np.atleast_2d(reference.loss)):
            return "unpaired"
        one, two = smooth(reference, other)
        if min(one.loss.shape[1], two.loss.shape[1]) < 2:
            return "too_few"
        falling, mean = (decreasing(curve.loss.mean(axis=0)) for curve in (one, two))
        log_x = two.log_spent[0, -1] + np.log(FRACTIONS)
        loss = np.interp(log_x, two.log_spent[0], mean, np.nan)
        first = inverse(one.log_spent[0], falling, loss, "left")
        last = inverse(one.log_spent[0], falling, loss, "right")
        with np.errstate(invalid="ignore"):
            there = np.where(np.isfinite(first) & np.isfinite(last), (first + last) / 2, np.nan)
        gaps = {"loss": one.at(there) - two.at(log_x)}
        for i, axis in enumerate(AXES):
            at = min(one.log_spent[i, -1], two.log_spent[i, -1]) + np.log(DOUBLINGS)
            gaps[axis] = one.at(at, i) - two.at(at, i)
        return cls(one, two, falling, log_x, loss, there, gaps)

    def multipliers(self, spreads: Mapping[str, list[Spread | None]]) -> Multipliers:
        levels = [
            self._level(j, spread)
            for j, spread in reversed(list(enumerate(spreads["loss"])))
            if spread is not None
        ]
        crossings = {axis: self._crossings(i, spreads[axis]) for i, axis in enumerate(AXES)}
        ends = {
            axis: AtEnd(self._last(i), -float(self.gaps[axis][:, 0].mean()), spread)
            for i, axis in enumerate(AXES)
            if (spread := spreads[axis][0]) is not None
        }
        return Multipliers(
            status="compared" if levels else "apart", levels=tuple(levels), crossings=crossings,
            ends=ends,
        )  # fmt: skip

    def _last(self, axis: int) -> float:
        """What the curve that spent less has spent."""
        return float(
            np.exp(min(self.reference.log_spent[axis, -1], self.other.log_spent[axis, -1]))
        )

    def _level(self, j: int, spread: Spread) -> AtLoss:
        half = spread.quantile() * spread.error
        low = inverse(self.reference.log_spent[0], self.falling, self.loss[j] + half, "left")
        high = inverse(self.reference.log_spent[0], self.falling, self.loss[j] - half, "right")
        ends = {
            axis: Interval(self._m(i, j, low), self._m(i, j, high), spread.assumed)
            for i, axis in enumerate(AXES)
        }
        there = self.log_reference[j]
        m = {axis: float(np.exp(self._log_m(i, j, there))) for i, axis in enumerate(AXES)}
        return AtLoss(
            float(self.loss[j]), **m, speed=m["hours"] / m["updates"], intervals=ends, spread=spread
        )

    def _m(self, axis: int, j: int, log_updates: NDArray) -> float | None:
        """An end of an interval; open where the reference does not come."""
        return (
            float(np.exp(self._log_m(axis, j, log_updates))) if np.isfinite(log_updates) else None
        )

    def _log_m(self, axis: int, j: int, log_updates: NDArray) -> float:
        """ln of what the reference spends in so many updates over what the other one has spent."""
        one, two = self.reference.log_spent, self.other.log_spent
        spent = np.interp(log_updates, one[0], one[axis])
        return float(spent - np.interp(self.log_x[j], two[0], two[axis]))

    def _crossings(self, axis: int, spreads: list[Spread | None]) -> Crossings:
        """Crossings on one axis, over the range of both curves."""
        first, second = self.reference.log_spent[axis], self.other.log_spent[axis]
        start, end = max(first[0], second[0]), min(first[-1], second[-1])
        both = np.union1d(np.union1d(first, second), [start, end])
        both = both[(both >= start) & (both <= end)]
        known = [(end + np.log(f), s) for f, s in zip(DOUBLINGS, spreads, strict=True) if s][::-1]
        if not len(both) or not known:
            return crossing.fit([], [], [])
        gap = (self.other.at(both, axis) - self.reference.at(both, axis)).mean(axis=0)
        places = [at for at, _ in known]
        error = np.interp(both, places, [spread.error for _, spread in known])
        degrees = np.interp(both, places, [min(spread.degrees, 1e6) for _, spread in known])
        return crossing.fit(np.exp(both), gap, error, degrees, known[-1][1].assumed)
