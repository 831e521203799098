"""Claims about losses as contrasts: weighted sums of the losses of several runs with one seed.

A gap is a contrast of two runs, a slope over contexts one of many. Runs with the same seed read
the same data in the same order, so a contrast is computed for each seed, and its scatter over seeds
is its noise (``fits/noise.py``). Where nothing was repeated the noise is unknown, and the largest
bound of it decides: the scatter of the runs around their curves over contexts, the noise of other
runs of the study, and that of studies with models of similar size. A verdict is then the same for
every smaller noise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike
from pandas import DataFrame
from scipy.stats import t

from lmscaling.claims._judgement import Judgement, inside, points, untested
from lmscaling.fits.noise import ELSEWHERE, Noise, Place, Spread, holm, seeds_needed
from lmscaling.fits.uncertainty import LEVEL, Interval

CURVES = """
    SELECT source, size, params, context, seed, updates, hours, loss,
        if(attention = $candidate, 'candidate', 'baseline') AS role
    FROM curves
    WHERE attention IN ($candidate, $baseline) AND status IN ('done', 'out_of_tokens')
        AND params > 0 AND hours > 0
    ORDER BY source, params, size, context, role, seed, updates
"""
"""Query of the curves of both roles."""

SMOOTH = 4
"""Coefficients of a smooth curve over contexts, a cubic in ln(context)."""

NEARBY = 1.0
"""Decades of size within which the noise of another study says something."""

UNKNOWN = Spread(np.inf, np.inf, 1, "assumed", "")
"""The noise of runs of which nothing bounds it."""

Cell = tuple[str, int, str]
"""Size, context and role."""
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A contrast of the losses of a study."""

    label: str
    value: float
    """Mean over seeds, nats times the unit of the weights."""
    of_run: Spread
    """Scatter of the contrast divided by ``length``: that of one run if runs are independent.
    Infinite where nothing is known."""
    length: float
    """Root of the sum of squared weights."""

    @property
    def spread(self) -> Spread:
        """Scatter of the contrast."""
        return replace(self.of_run, sd=self.of_run.sd * self.length)

    @property
    def interval(self) -> Interval | None:
        """95 % interval, or the range that a bound of the noise gives; None without one."""
        if np.isinf(self.of_run.sd):
            return None
        return replace(self.spread.interval(self.value), assumed=self.of_run.assumed)


def pair(size: str, context: int, weight: float = 1.0) -> dict[Cell, float]:
    """Weights of the gap of the candidate to the baseline."""
    return {(size, context, "candidate"): weight, (size, context, "baseline"): -weight}


def slope(of_n: Sequence[K], x_n: ArrayLike) -> dict[K, float]:
    """Weights with which the losses or gaps at ``x`` make the slope of their regression line."""
    x = np.asarray(x_n, dtype=float)
    centred = x - x.mean()
    return dict(zip(of_n, centred / (centred @ centred), strict=True))


def gap_slope(places: Sequence[tuple[str, int]], x_n: ArrayLike) -> dict[Cell, float]:
    """The same of the gaps at some sizes and contexts."""
    weights = slope(places, x_n).items()
    return {cell: w for place, weight in weights for cell, w in pair(*place, weight).items()}


def mean(contrasts: Collection[Mapping[Cell, float]]) -> dict[Cell, float]:
    """The mean of contrasts of different cells."""
    share = 1 / len(contrasts)
    return {cell: share * weight for one in contrasts for cell, weight in one.items()}


def estimate(
    rows: DataFrame, contrasts: Mapping[str, Mapping[Cell, float]], unit: float = 1.0
) -> dict[str, Estimate]:
    """Contrasts with their noise, without those for which no seed has all runs.

    ``rows`` have the columns ``size``, ``params``, ``context``, ``role``, ``seed`` and ``loss``, of
    which one is worth ``unit`` nats.
    """
    table = rows.pivot_table(index="seed", columns=["size", "context", "role"], values="loss")
    params = dict(zip(rows["size"], rows.params, strict=True))
    lengths = {label: float(np.linalg.norm(list(of.values()))) for label, of in contrasts.items()}
    samples, places = {}, {}
    for label, weights in contrasts.items():
        cells = list(weights)
        if all(cell in table.columns for cell in cells):
            complete = table[cells].dropna()
            if len(complete):
                # Of one length, so that the scatter of one contrast says something about another.
                total = complete.to_numpy(float) @ np.array(list(weights.values()))
                gaps = total / lengths[label] * unit
                samples[label] = dict(zip(complete.index, gaps.tolist(), strict=True))
                places[label] = _place(cells, params)
    noise = Noise.measure(samples, places)
    spreads = {label: noise.at(label) for label in samples}
    seeded = [one for one in spreads.values() if one.basis != "assumed"]
    for label, one in spreads.items():
        if one.basis == "assumed":
            bounds = [replace(other, said="the noise of runs with seeds") for other in seeded]
            bounds += _bounds(rows, unit, contrasts[label], places[label])
            widest = max(bounds, key=lambda one: one.sd * one.quantile(), default=UNKNOWN)
            spreads[label] = replace(widest, seeds=one.seeds, basis="assumed")
    return {
        label: Estimate(
            label=label,
            value=float(np.mean(list(sample.values()))) * lengths[label] / unit,
            of_run=spreads[label],
            length=lengths[label] / unit,
        )
        for label, sample in samples.items()
    }


def _bounds(
    rows: DataFrame, unit: float, weights: Mapping[Cell, float], place: Place
) -> list[Spread]:
    """Bounds of the noise of a contrast that was not repeated: what other studies measured with
    models of similar size, and the scatter of its runs around their curves over contexts, which
    contains what a cubic misses."""
    found = [
        Spread(one.sd, np.inf, one.seeds, "assumed", f"the noise of {one.source}")
        for one in ELSEWHERE
        if abs(np.log10(one.place.params / place.params)) <= NEARBY
    ]
    variances, degrees = {}, []
    for size, role in {(size, role) for size, _, role in weights}:
        own = rows.loc[(rows["size"] == size) & (rows.role == role)].groupby("context").loss.mean()
        degrees.append(len(own) - SMOOTH)
        if degrees[-1] < 1:
            return found
        x, loss = np.log(own.index.to_numpy(float)), unit * own.to_numpy(float)
        off = loss - Polynomial.fit(x, loss, SMOOTH - 1)(x)
        variances[size, role] = float(off @ off) / degrees[-1]
    of_cells = [variances[size, role] for size, _, role in weights]
    sd = float(np.sqrt(np.average(of_cells, weights=np.square([*weights.values()]))))
    said = "the scatter of runs around their curves over contexts"
    return [*found, Spread(sd, min(degrees), 1, "assumed", said)]


def _place(cells: list[Cell], params: Mapping[str, float]) -> Place:
    """The middle of the runs of a contrast on logarithmic scales."""
    logs = np.log([(params[size], context) for size, context, _ in cells]).mean(axis=0)
    return Place(*np.exp(logs))


def decide(estimates: Iterable[Estimate], low: float, high: float) -> str:
    """Whether all contrasts lie within bounds.

    They do if every 95 % interval lies within, and do not if one contrast lies outside
    significantly: the p-values are corrected for their number (Holm), so that this happens in at
    most 5 % of studies in which none does.
    """
    spreads = [(one.value, one.spread) for one in estimates]
    if all(inside(spread.interval(value), low, high) == "holds" for value, spread in spreads):
        return "holds"
    p = [
        2 * t.sf(max(value - high, low - value, 0.0) / spread.error, spread.degrees)
        for value, spread in spreads
    ]
    return "fails" if (holm(p) < 1 - LEVEL).any() else "not tested"


def over_noise(
    estimates: Iterable[Estimate],
    verdict: str,
    deciding: Iterable[Estimate],
    low: float = -np.inf,
    high: float = np.inf,
) -> tuple[str, str]:
    """A verdict, and how the noise of the study is known, as the end of a sentence.

    An open verdict comes with the seeds that would decide it: for the most certain of the
    ``deciding`` contrasts out of bounds, or else for the least certain one within.
    """
    spreads = [one.of_run for one in estimates]
    widest = max(spreads, key=lambda one: (one.basis == "assumed", one.sd))
    if np.isinf(widest.sd):
        return "not tested", "nothing bounds the noise of single runs, so train two seeds or more"
    if widest.assumed is None:
        counts = sorted({one.seeds for one in spreads})
        noise = f"noise of {' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} seeds"
    else:
        same = "open" if verdict == "not tested" else "the same"
        noise = f"{same} if seeds differ by up to {widest.sd:.2g} nats, {widest.said}"
    if verdict != "not tested":
        return verdict, noise
    within, outside = [], []
    for one in deciding:
        inner = min(one.value - low, high - one.value)
        seeds = seeds_needed(inner, one.spread.sd)
        (outside if inner < 0 else within).append(1001 if seeds is None else seeds)
    needed = min(outside) if outside else max(within)
    most = "more than 1,000" if needed > 1000 else f"about {needed:,}"
    return verdict, f"{noise}; {most} seeds would decide"


def within(
    estimates: Iterable[Estimate], low: float = -np.inf, high: float = np.inf
) -> tuple[str, str]:
    """``over_noise`` of whether all contrasts lie within bounds."""
    judged = list(estimates)
    return over_noise(judged, decide(judged, low, high), judged, low, high)


def judge_mean(
    rows: DataFrame,
    contrasts: Mapping[str, Mapping[Cell, float]],
    said: str,
    low: float = -np.inf,
    high: float = np.inf,
    also: str = "",
) -> Judgement:
    """Whether all contrasts of ``rows`` lie within bounds; the number is their mean.

    Its range contains all of them: it is never narrower than the scatter of what was averaged.
    The reason is what is ``said`` of the contrasts, how the verdict is known, and what is told
    beside it.
    """
    found = estimate(rows, contrasts)
    total = estimate(rows, {"": mean([contrasts[label] for label in found])}).get("")
    interval = total and total.interval
    if interval:
        ends = [interval.low, interval.high, *(one.value for one in found.values())]
        known = [end for end in ends if end is not None]
        interval = replace(interval, low=min(known), high=max(known))
    cells = [cell for label in found for cell in contrasts[label]]
    verdict, noise = within(found.values(), low, high)
    return Judgement(
        verdict=verdict, number=total and total.value, interval=interval,
        rests_on=points(DataFrame(cells, columns=["size", "context", "role"])),
        why=f"{said}; {noise}.{also}",
    )  # fmt: skip


def judge_gaps(
    rows: DataFrame, axis: str, context: int, low: float = -np.inf, high: float = np.inf
) -> Judgement:
    """Whether the gap of every size at a context lies within bounds, at equal values of an axis:
    where the run that has less of it ends."""
    losses = losses_at(rows, axis, ["size", "context"])
    sizes = losses.loc[losses.context == context, "size"].unique()
    gaps = {str(size): pair(size, context) for size in sizes}
    found = estimate(losses, gaps)
    if not found:
        return untested(f"No size has curves of both attentions at {context:,} tokens.")
    said = ", ".join(f"{size} {one.value:+.3f}" for size, one in found.items())
    return judge_mean(losses, gaps, f"Gaps: {said} nats", low, high)


def losses_at(rows: DataFrame, axis: str, together: list[str], share: float = 1.0) -> DataFrame:
    """The losses of the curves of runs at the same value of an axis, one row for each run.

    ``rows`` are points of curves with the columns ``size``, ``params``, ``context``, ``role``,
    ``seed``, ``loss`` and ``axis``, all positive. Runs that agree in the columns ``together`` are
    compared at ``share`` of where the shortest of them ends, between two points on a straight line
    in ln(axis): a mean of their losses, and never the lowest loss so far, which flatters runs with
    noisy losses. Runs without points on both sides are left out.
    """
    run = ["size", "params", "context", "role", "seed"]
    ends = rows.groupby(run, as_index=False).agg(end=(axis, "max"))
    ends["end"] = share * ends.groupby(together).end.transform("min")
    curves = dict(list(rows.sort_values(axis).groupby(run)[[axis, "loss"]]))
    found = []
    for one in ends.to_dict("records"):
        x, loss = curves[tuple(one[name] for name in run)].to_numpy(float).T
        if x[0] <= one["end"] <= x[-1]:
            loss = float(np.interp(np.log(one["end"]), np.log(x), loss))
            found.append({**one, "loss": loss})
    return DataFrame(found, columns=[*run, "end", "loss"])
