"""The longer the context, the more linear attention loses against softmax in the same time.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

By Spearman's rank correlation of context and loss gap, linear less softmax, at every size with five
contexts or more; both losses are the best so far at the end of the shorter of both runs. The
interval is that of other seeds. Thinned curves place a gap within about 0.01 nats.
"""

from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import (
    Judgement,
    inside,
    overall,
    points,
    rank_correlation,
    redrawn,
    untested,
)
from lmscaling.fits import uncertainty

NUMBER = "least rank correlation over sizes, with its interval"

QUERY = """
    SELECT source, size, params, context, seed, attention, hours, loss
    FROM curves
    WHERE attention IN ('linear', 'softmax') AND hours > 0
    ORDER BY source, params, size, context, seed, attention, hours
"""

THRESHOLD = 0.7
"""With seven contexts, as many as the largest published size has, chance alone comes to 0.71 in one
of twenty."""

FEWEST = 5
"""Contexts. With four, every order that is not perfect could be chance."""


def judge(rows: DataFrame) -> Judgement:
    gaps = _gaps(rows)
    counts = gaps.groupby("size", sort=False).context.nunique()
    enough = counts[counts >= FEWEST].index.tolist()
    if not enough:
        return untested(f"No size has curves of both attentions at {FEWEST} contexts.")
    found = {}
    for size in enough:
        mean = gaps[gaps["size"] == size].groupby("context").gap.mean()
        # Each gap has the noise of two runs.
        drawn = mean.to_numpy() + np.sqrt(2) * (redrawn(mean) - mean.to_numpy())
        rho = float(rank_correlation(mean.index, mean)[0])
        found[size] = rho, uncertainty.interval(rank_correlation(mean.index, drawn)), mean
    verdicts = [inside(interval, THRESHOLD, 1.0) for _, interval, _ in found.values()]
    rho, interval, _ = min(found.values(), key=lambda item: item[0])
    parts = [
        f"{size} {rho:.2f} (gap {mean.iloc[0]:.3f} at {mean.index[0]:,}, most {mean.max():.3f} at "
        f"{mean.idxmax():,}, {mean.iloc[-1]:.3f} at {mean.index[-1]:,})"
        for size, (rho, _, mean) in found.items()
    ]
    return Judgement(
        verdict=overall(verdicts), number=rho, interval=interval, rests_on=points(gaps),
        why=f"Rank correlations: {'; '.join(parts)}.",
    )  # fmt: skip


def _gaps(rows: DataFrame) -> DataFrame:
    """Linear less softmax at the end of the shorter run, one row a pair of runs."""
    made = []
    pairs: list[tuple[Any, DataFrame]] = list(rows.groupby(["size", "context", "seed"], sort=False))
    for (size, context, _), pair in pairs:
        runs = dict(list(pair.groupby("attention")))
        end = min(run.hours.max() for run in runs.values())
        # What began after the other's end shares no time with it.
        if len(runs) == 2 and end >= max(run.hours.min() for run in runs.values()):
            linear, softmax = (_best(runs[name], end) for name in ("linear", "softmax"))
            made.append({"size": size, "context": context, "gap": linear - softmax})
    return DataFrame(made, columns=["size", "context", "gap"])


def _best(run: DataFrame, hours: float) -> float:
    """The best loss until then: spikes do not move it."""
    best = np.minimum.accumulate(run.loss.to_numpy())
    return float(np.interp(np.log(hours), np.log(run.hours), best))
