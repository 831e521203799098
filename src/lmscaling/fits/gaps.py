"""Gaps between the final losses of two attentions, tested with paired seeds.

``gap = loss of the attention - loss of the reference``, in nats, at the end of the budget; below 0
the attention is better. Runs with the same seed see the same data in the same order, so the gap is
taken seed by seed, and its noise is that of these differences (``noise``). p-values are corrected
for the number of gaps of a source (Holm 1979): of studies in which all attentions are equal, no
more than 5 % call any of them different.

The mean gap over all cells comes first. Cells with the same seed share data, so their noise is not
independent; the interval of the mean is that of the means of the seeds that all cells have, and
without two such seeds there is none.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import numpy as np

from lmscaling.fits.noise import Noise, Place, Spread, holm, seeds_needed
from lmscaling.fits.uncertainty import LEVEL, Interval

STATUSES = {
    "lower": "the attention has the lower loss",
    "higher": "the reference has the lower loss",
    "not_different": "not different",
    "untested": "not tested: too few seeds",
    "unequal": "not compared: the runs ended after unequal hours",
    "unpaired": "not compared: no seed has finished runs of both",
}

QUERY = """
    SELECT source, f.size, f.params, f.context, f.attention = k.baseline AS is_baseline,
        f.attention, f.seed, f.loss, f.hours / k.budget_hours AS share
    FROM final f JOIN known k USING (source, run)
    WHERE f.status = 'done' AND isfinite(f.loss)
    WINDOW pair AS (PARTITION BY source, f.size, f.context)
    QUALIFY min(f.attention) OVER pair <> max(f.attention) OVER pair
    ORDER BY source, min(f.params) OVER (PARTITION BY source, f.size), f.size, f.context,
        is_baseline DESC, f.attention DESC, f.seed
"""
"""Final losses where there are several attentions, the baseline first. ``share`` is the part of a
budget in hours that was spent, otherwise NULL."""

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
    status: str
    """A key of ``STATUSES``."""
    gap: float | None = None
    """Nats."""
    interval: Interval | None = None
    spread: Spread | None = None
    """Scatter of the differences of pairs."""
    p: float = float("nan")
    """p-value, corrected for the number of gaps of the source; NaN if not tested."""
    tests: int = 1
    """Gaps of the source, for which p-values are corrected."""

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
    for source, size, n, context, _, attention, seed, loss, share in rows:
        params.setdefault((source, size, context), n)
        losses[source][size, context][attention][seed] = loss, share
    return [gap for source, cells in losses.items() for gap in _of_source(source, cells, params)]


def _of_source(
    source: str, cells: dict[tuple, dict[str, dict[int, tuple]]], params: dict[tuple, float]
) -> list[Gap]:
    places, samples, single = {}, {}, []
    for (size, context), known in cells.items():
        for reference, attention in combinations(known, 2):
            one, two = known[reference], known[attention]
            paired = {
                seed: two[seed][0] - loss
                for seed, (loss, share) in one.items()
                if seed in two and abs((share or 0) - (two[seed][1] or 0)) <= EQUAL
            }
            status = "untested" if paired else "unequal" if one.keys() & two else "unpaired"
            gap = Gap(
                source=source, reference=reference, attention=attention, size=size,
                context=context, cells=1, seeds=len(paired), status=status,
            )  # fmt: skip
            single.append(gap)
            if paired:
                n = params[source, size, context]
                samples[gap], places[gap] = paired, Place(n, context, attention)
    noise = Noise.measure({gap: list(d.values()) for gap, d in samples.items()}, places, True)
    known_pairs = dict.fromkeys((gap.reference, gap.attention) for gap in single)
    means = [
        _mean(gaps, [samples[gap] for gap in gaps])
        for pair in known_pairs
        if len(gaps := [g for g in samples if (g.reference, g.attention) == pair]) > 1
    ]
    measured = [_with_noise(gap, samples.get(gap), noise) for gap in single]
    return _tested([*means, *measured])


def _with_noise(gap: Gap, paired: dict[int, float] | None, noise: Noise) -> Gap:
    if paired is None:
        return gap
    spread = noise.at(gap)
    mean = float(np.mean(list(paired.values())))
    return replace(
        gap, gap=mean, spread=spread, interval=spread.interval(mean), p=spread.p_value(mean)
    )


def _mean(gaps: list[Gap], samples: list[dict[int, float]]) -> Gap:
    """The mean gap over cells. Seeds that all cells have are one sample of it."""
    seeds = set.intersection(*(set(sample) for sample in samples))
    mean = float(np.mean([np.mean(list(sample.values())) for sample in samples]))
    found = replace(
        gaps[0], size=None, context=None, cells=len(gaps), seeds=len(seeds), status="untested",
        gap=mean,
    )  # fmt: skip
    of_seeds = np.array([np.mean([sample[seed] for sample in samples]) for seed in seeds])
    if len(seeds) < 2 or not np.ptp(of_seeds):
        return found
    mean, sd = float(of_seeds.mean()), float(of_seeds.std(ddof=1))
    spread = Spread(sd, len(seeds) - 1.0, len(seeds), "measured", "sd of the means of its seeds")
    return replace(
        found, gap=mean, spread=spread, interval=spread.interval(mean), p=spread.p_value(mean)
    )


def _tested(gaps: list[Gap]) -> list[Gap]:
    """Correct the p-values for their number."""
    result = []
    for gap, p in zip(gaps, holm([gap.p for gap in gaps]).tolist(), strict=True):
        lower = "lower" if (gap.gap or 0) < 0 else "higher"
        seen = lower if p < 1 - LEVEL else "not_different"
        status = gap.status if np.isnan(p) else seen
        result.append(replace(gap, p=p, status=status, tests=len(gaps)))
    return result
