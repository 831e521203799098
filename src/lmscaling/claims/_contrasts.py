"""Claims about losses as contrasts: weighted sums of the losses of several runs with one seed.

A gap is a contrast of two runs, a slope over contexts one of many. Runs with the same seed read
the same data in the same order, so a contrast is computed for each seed, and its scatter over seeds
is its noise (``fits/noise.py``). Where nothing was repeated the noise is unknown: a verdict then
counts only if it is the same for all standard deviations that other studies have measured.

Legend: ``s`` standard deviation of one run, nats.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame
from scipy.stats import t

from lmscaling.claims._judgement import Judgement, inside, points
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

Cell = tuple[str, int, str]
"""Size, context and role."""
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A contrast of the losses of a study."""

    label: str
    value: float
    """Mean over seeds, nats times the unit of the weights."""
    spread: Spread
    """Scatter of the contrast divided by ``length``: that of one run if runs are independent."""
    length: float
    """Root of the sum of squared weights."""

    def at(self, s: float | None = None) -> Spread:
        """The scatter of the contrast: as measured, or if that is assumed with runs that scatter by
        ``s``."""
        if s is None or self.spread.basis != "assumed":
            s = self.spread.sd
        return replace(self.spread, sd=s * self.length)

    @property
    def interval(self) -> Interval:
        """95 % interval, or the range if seeds differ as in the nearest measured study."""
        found = self.at().interval(self.value)
        return found if found.assumed is None else replace(found, assumed=self.spread.sd)


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
    return {
        label: Estimate(
            label=label,
            value=float(np.mean(list(sample.values()))) * lengths[label] / unit,
            spread=noise.at(label),
            length=lengths[label] / unit,
        )
        for label, sample in samples.items()
    }


def _place(cells: list[Cell], params: Mapping[str, float]) -> Place:
    """The middle of the runs of a contrast on logarithmic scales."""
    logs = np.log([(params[size], context) for size, context, _ in cells]).mean(axis=0)
    return Place(*np.exp(logs))


def decide(estimates: Iterable[Estimate], low: float, high: float, s: float | None = None) -> str:
    """Whether all contrasts lie within bounds.

    They do if every 95 % interval lies within, and do not if one contrast lies outside
    significantly: the p-values are corrected for their number (Holm), so that this happens in at
    most 5 % of studies in which none does.
    """
    spreads = [(one.value, one.at(s)) for one in estimates]
    if all(inside(spread.interval(value), low, high) == "holds" for value, spread in spreads):
        return "holds"
    p = [
        2 * t.sf(max(value - high, low - value, 0.0) / spread.error, spread.degrees)
        for value, spread in spreads
    ]
    return "fails" if (holm(p) < 1 - LEVEL).any() else "not tested"


def over_noise(
    estimates: Iterable[Estimate],
    verdict: Callable[[float | None], str],
    deciding: Iterable[Estimate],
    low: float = -np.inf,
    high: float = np.inf,
) -> tuple[str, str]:
    """The verdict by the noise of the study, and how it is known, as the end of a sentence.

    Without seeds it is the verdict at every ``s`` that other studies have measured, if it is the
    same at all of them. An open verdict comes with the seeds that would decide it: for the most
    certain of the ``deciding`` contrasts out of bounds, or else for the least certain one within.
    """
    estimates = list(estimates)
    known = all(one.spread.basis != "assumed" for one in estimates)
    deviations = [None] if known else sorted({one.sd for one in ELSEWHERE})
    verdicts = [verdict(s) for s in deviations]
    same = sum(each == verdicts[0] for each in verdicts)
    if known:
        counts = sorted({one.spread.seeds for one in estimates})
        noise = f"noise of {' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} seeds"
    else:
        noise = f"{deviations[0]:g} to {deviations[-1]:g} nats, as other studies measured"
        noise = (
            f"the same if seeds differ by {noise}"
            if same == len(verdicts)
            else f"it {verdicts[0].replace('not tested', 'is open')} if seeds differ by at most "
            f"{deviations[same - 1]:g} nats, but it may be {noise}"
        )
    if same == len(verdicts) and verdicts[0] != "not tested":
        return verdicts[0], noise
    within, outside = [], []
    for one in deciding:
        inner = min(one.value - low, high - one.value)
        seeds = seeds_needed(inner, one.at(deviations[-1]).sd)
        (outside if inner < 0 else within).append(1001 if seeds is None else seeds)
    needed = min(outside) if outside else max(within)
    most = "more than 1,000" if needed > 1000 else f"about {needed:,}"
    return "not tested", f"{noise}; {most} seeds would decide"


def within(
    estimates: Iterable[Estimate], low: float = -np.inf, high: float = np.inf
) -> tuple[str, str]:
    """``over_noise`` of whether all contrasts lie within bounds."""
    judged = list(estimates)
    return over_noise(judged, lambda s: decide(judged, low, high, s), judged, low, high)


def judge_mean(
    rows: DataFrame,
    contrasts: Mapping[str, Mapping[Cell, float]],
    said: str,
    low: float = -np.inf,
    high: float = np.inf,
    also: str = "",
) -> Judgement:
    """Whether all contrasts of ``rows`` lie within bounds; the number is their mean.

    The reason is what is ``said`` of the contrasts, how the verdict is known, and what is told
    beside it.
    """
    found = estimate(rows, contrasts)
    total = estimate(rows, {"": mean([contrasts[label] for label in found])}).get("")
    verdict, noise = within(found.values(), low, high)
    return Judgement(
        verdict=verdict, number=total and total.value, interval=total and total.interval,
        rests_on=points(rows), why=f"{said}; {noise}.{also}",
    )  # fmt: skip


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
