"""At equal training time the loss gap of linear attention to softmax grows with the context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by Spearman's rank correlation of the context with the loss gap, linear minus softmax, at
every size with at least five contexts; both losses are the lowest until the end of the shorter run.
The interval covers the noise of seeds. The published curves are thinned, which limits the precision
of a gap to about 0.01 nats.
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
    replicate_seeds,
    untested,
)
from lmscaling.fits import uncertainty

NUMBER = "smallest rank correlation over sizes, with its 95 % interval"

QUERY = """
    SELECT source, size, params, context, seed, attention, hours, loss
    FROM curves
    WHERE attention IN ('linear', 'softmax') AND hours > 0
    ORDER BY source, params, size, context, seed, attention, hours
"""

THRESHOLD = 0.7
"""With seven contexts, the number of the largest published size, chance alone exceeds 0.71 in 5 %
of cases."""

FEWEST = 5
"""Contexts. With four, only a perfect order would be significant."""


def judge(rows: DataFrame) -> Judgement:
    gaps = _gaps(rows)
    counts = gaps.groupby("size", sort=False).context.nunique()
    enough = counts[counts >= FEWEST].index.tolist()
    if not enough:
        return untested(f"No size has curves of both attentions at {FEWEST} contexts.")
    results = {}
    for size in enough:
        mean = gaps[gaps["size"] == size].groupby("context").gap.mean()
        # Each gap has the noise of two runs.
        replicates = mean.to_numpy() + np.sqrt(2) * (replicate_seeds(mean) - mean.to_numpy())
        rho = float(rank_correlation(mean.index, mean)[0])
        results[size] = rho, uncertainty.interval(rank_correlation(mean.index, replicates)), mean
    verdicts = [inside(interval, THRESHOLD, 1.0) for _, interval, _ in results.values()]
    rho, interval, _ = min(results.values(), key=lambda item: item[0])
    parts = [
        f"{size} {rho:.2f} (gap {mean.iloc[0]:.3f} at {mean.index[0]:,}, largest {mean.max():.3f} "
        f"at {mean.idxmax():,}, {mean.iloc[-1]:.3f} at {mean.index[-1]:,} tokens)"
        for size, (rho, _, mean) in results.items()
    ]
    return Judgement(
        verdict=overall(verdicts), number=rho, interval=interval, rests_on=points(gaps),
        why=f"Rank correlations: {'; '.join(parts)}.",
    )  # fmt: skip


def _gaps(rows: DataFrame) -> DataFrame:
    """Loss of linear minus softmax at the end of the shorter run, one row for each pair of runs."""
    gaps = []
    pairs: list[tuple[Any, DataFrame]] = list(rows.groupby(["size", "context", "seed"], sort=False))
    for (size, context, _), pair in pairs:
        runs = dict(list(pair.groupby("attention")))
        end = min(run.hours.max() for run in runs.values())
        # Skip curves without a common range of hours.
        if len(runs) == 2 and end >= max(run.hours.min() for run in runs.values()):
            linear, softmax = (_best(runs[name], end) for name in ("linear", "softmax"))
            gaps.append({"size": size, "context": context, "gap": linear - softmax})
    return DataFrame(gaps, columns=["size", "context", "gap"])


def _best(run: DataFrame, hours: float) -> float:
    """The lowest loss up to ``hours``, which is insensitive to spikes."""
    best = np.minimum.accumulate(run.loss.to_numpy())
    return float(np.interp(np.log(hours), np.log(run.hours), best))
