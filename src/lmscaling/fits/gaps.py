"""Gaps between the final losses of two attentions, tested with paired seeds.

``gap = loss of the attention - loss of the reference``, in nats, at the end of the budget; below 0
the attention is better. Runs with the same seed see the same data in the same order, so the gap is
taken seed by seed, and its noise is that of these differences (``noise``). What is estimated is the
gap of two runs that do not fail; how many do is a number of its own, ``failed`` of ``ended``. A run
fails if it diverges or explodes. Intervals hold the gap, too, where some of the runs that have not
failed end far above the others.

p-values are corrected for the number of gaps of a source with the baseline, and for that of other
pairs (Holm 1979): of studies in which all attentions are equal, no more than 5 % call any of them
different from the baseline.

The mean gap over all cells comes first. Cells with the same seed share data, so their noise is not
independent; the interval of the mean is that of the means of the seeds that all cells have, and
without two such seeds there is none. Where the gaps of some cells scatter far more than those of
others, runs that went wrong may move the mean by more than the means of seeds scatter: the error is
then the mean of those of the cells, as if all were wrong alike.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
from scipy.stats import chi2
from scipy.stats import f as variance_ratio

from lmscaling.fits.noise import Noise, Place, Spread, holm, seeds_needed
from lmscaling.fits.uncertainty import LEVEL, Interval

STATUSES = {
    "lower": "the attention has the lower loss",
    "higher": "the reference has the lower loss",
    "not_different": "not significant",
    "untested": "not tested: too few seeds",
    "unequal": "not compared: the runs ended after unequal hours",
    "failed": "not compared: all runs of one of both failed",
    "unpaired": "not compared: no seed has finished runs of both",
}

QUERY = """
    SELECT source, size, coalesce(f.params, k.params) AS params, context,
        attention = baseline AS is_baseline, attention, seed,
        CASE WHEN k.status = 'done' THEN f.loss END AS loss, f.hours / budget_hours AS share
    FROM known k
    LEFT JOIN (SELECT source, run, params, hours, loss FROM final) f USING (source, run)
    WHERE k.status = 'done' AND isfinite(f.loss)
        OR run IN (SELECT run FROM chosen WHERE has_failed)
    WINDOW pair AS (PARTITION BY source, size, context)
    QUALIFY min(attention) OVER pair <> max(attention) OVER pair
    ORDER BY source, min(k.params) OVER (PARTITION BY source, size), size, context,
        is_baseline DESC, attention DESC, seed
"""
"""Final losses where there are several attentions, the baseline first; a run that has failed has
none. ``share`` is the part of a budget in hours that was spent, otherwise NULL."""

UNEVEN = 0.05
"""Significance, for all cells of a mean together, at which the scatter of one exceeds the others'.
"""
CALM = 0.25
"""Quantile of the variances of cells that runs which went wrong are assumed to leave alone."""

EQUAL = 0.05
"""Largest difference of the hours of two runs that are compared, as a share of the budget. The loss
falls by 0.06 to 0.25 nats per e-fold of the time, so this is 0.003 to 0.013 nats."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """An attention against a reference in one cell, or on average over all cells."""

    formula: ClassVar[str] = "gap = loss of the attention - loss of the reference, seed by seed"
    source: str
    reference: str
    attention: str
    size: str | None
    """None of a mean over cells."""
    context: int | None
    cells: int
    """Number of cells that were averaged."""
    seeds: int
    """Seeds that both attentions have finished, in every one of the cells."""
    failed: int
    """Runs of the attention that failed,"""
    ended: int
    """of those that failed or are done."""
    status: str
    """A key of ``STATUSES``."""
    gap: float | None = None
    """Nats."""
    interval: Interval | None = None
    spread: Spread | None = None
    """Scatter of the differences of pairs."""
    p: float = float("nan")
    """p-value, corrected for ``tests`` gaps; NaN if not tested."""
    tests: int = 1
    """Gaps of the source with the baseline, or of other pairs."""

    @property
    def needed(self) -> int | None:
        """Seeds with which a gap of this size would be found with a probability of 80 %, if none
        was found with those that there are."""
        if self.status not in ("untested", "not_different") or not (self.gap and self.spread):
            return None
        return seeds_needed(self.gap, self.spread.sd, 1 - (1 - LEVEL) / self.tests)


def compare(rows: Iterable[tuple]) -> list[Gap]:
    """All gaps of every two attentions in the rows of ``QUERY``, mean gaps first.

    The baseline is the reference of every other one; of two others, the first one is.
    """
    losses: dict[str, dict[tuple, dict[str, dict[int, tuple]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    params = {}  # of the first attention in a cell; the others may have more or fewer
    baselines = set()
    for source, size, n, context, is_baseline, attention, seed, loss, share in rows:
        params.setdefault((source, size, context), n)
        losses[source][size, context][attention][seed] = loss, share
        baselines |= {(source, attention)} if is_baseline else set()
    return [
        gap
        for source, cells in losses.items()
        for gap in _tested(_of_source(source, cells, params), baselines)
    ]


def _of_source(
    source: str, cells: dict[tuple, dict[str, dict[int, tuple]]], params: dict[tuple, float]
) -> list[Gap]:
    places, samples, single = {}, {}, []
    for (size, context), known in cells.items():
        for reference, attention in combinations(known, 2):
            one, two = (
                {seed: run for seed, run in known[name].items() if run[0] is not None}
                for name in (reference, attention)
            )
            paired = {
                seed: two[seed][0] - loss
                for seed, (loss, share) in one.items()
                if seed in two and abs((share or 0) - (two[seed][1] or 0)) <= EQUAL
            }
            missing = "unequal" if one.keys() & two.keys() else "unpaired"
            missing = missing if one and two else "failed"
            ended = len(known[attention])
            gap = Gap(
                source=source, reference=reference, attention=attention, size=size,
                context=context, cells=1, seeds=len(paired), failed=ended - len(two), ended=ended,
                status="untested" if paired else missing,
            )  # fmt: skip
            single.append(gap)
            if paired:
                n = params[source, size, context]
                samples[gap], places[gap] = paired, Place(n, context, attention)
    noise = Noise.measure(samples, places, paired=True)
    pairs: dict[tuple[str, str], list[Gap]] = defaultdict(list)
    for gap in single:
        if gap in samples or gap.status == "failed":
            pairs[gap.reference, gap.attention].append(gap)
    means = [
        _mean(gaps, known)
        for gaps in pairs.values()
        if len(known := [samples[gap] for gap in gaps if gap in samples]) > 1
    ]
    measured = [_with_noise(gap, samples.get(gap), noise) for gap in single]
    return [*means, *measured]


def _with_noise(gap: Gap, paired: dict[int, float] | None, noise: Noise) -> Gap:
    if paired is None:
        return gap
    spread = noise.at(gap)
    mean = float(np.mean(list(paired.values())))
    return replace(
        gap, gap=mean, spread=spread, interval=spread.interval(mean), p=spread.p_value(mean)
    )


def _mean(gaps: list[Gap], samples: list[dict[int, float]]) -> Gap:
    """The mean gap over the cells that have a sample. Seeds that all of them have are one sample of
    the mean; failed runs are also those of cells where all failed."""
    seeds = set.intersection(*(set(sample) for sample in samples))
    mean = float(np.mean([np.mean(list(sample.values())) for sample in samples]))
    found = replace(
        gaps[0], size=None, context=None, cells=len(samples), seeds=len(seeds),
        status="untested", gap=mean, failed=sum(gap.failed for gap in gaps),
        ended=sum(gap.ended for gap in gaps),
    )  # fmt: skip
    of_seeds = np.array([np.mean([sample[seed] for sample in samples]) for seed in seeds])
    if len(seeds) < 2 or not np.ptp(of_seeds):
        return found
    mean, sd = float(of_seeds.mean()), float(of_seeds.std(ddof=1))
    said = "sd of the means of its seeds"
    own = [float(np.std(list(sample.values()), ddof=1)) for sample in samples]
    if _is_uneven(own, samples) and np.mean(own) > sd:
        sd, said = float(np.mean(own)), "mean of the sds of its cells, which differ"
    spread = Spread(sd, len(seeds) - 1.0, len(seeds), "measured", said)
    return replace(
        found, gap=mean, spread=spread, interval=spread.interval(mean), p=spread.p_value(mean)
    )


def _is_uneven(sd_c: list[float], samples: list[dict[int, float]]) -> bool:
    """Whether the largest scatter of a cell is out of proportion to that of the calm ones."""
    degrees = min(map(len, samples)) - 1
    calm = np.quantile(np.square(sd_c), CALM) * degrees / chi2.ppf(CALM, degrees)
    others = max(CALM * degrees * len(sd_c), 1)
    return max(sd_c) ** 2 > calm * variance_ratio.isf(UNEVEN / len(sd_c), degrees, others)


def _tested(gaps: list[Gap], baselines: set[tuple[str, str]]) -> list[Gap]:
    """Correct the p-values for their number, of pairs with the baseline and of others."""
    result = list(gaps)
    for with_baseline in (True, False):
        family = [
            i
            for i, gap in enumerate(gaps)
            if with_baseline
            == bool({(gap.source, gap.reference), (gap.source, gap.attention)} & baselines)
        ]
        for i, p in zip(family, holm([gaps[i].p for i in family]).tolist(), strict=True):
            lower = "lower" if (gaps[i].gap or 0) < 0 else "higher"
            seen = lower if p < 1 - LEVEL else "not_different"
            status = gaps[i].status if np.isnan(p) else seen
            result[i] = replace(gaps[i], p=p, status=status, tests=len(family))
    return result
