"""Linear attention has more loss spikes at longer contexts, softmax has none.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by Spearman's rank correlation of the context with the spikes per 10,000 updates of linear
attention, at every size with at least five contexts, and by the number of spikes of softmax. The
interval assumes Poisson counts and is too narrow, because spikes occur in clusters.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import (
    Judgement,
    inside,
    overall,
    points,
    rank_correlation,
    untested,
)
from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import REPLICATES

NUMBER = "smallest rank correlation over sizes, with its 95 % interval"

QUERY = """
    SELECT
        source, size, params, attention, context,
        sum(spikes) AS spikes, sum(updates) AS updates,
        10000 * sum(spikes) / sum(updates) AS rate
    FROM spike_rates
    WHERE attention IN ('linear', 'softmax')
    GROUP BY ALL
    ORDER BY source, params, size, attention, context
"""

THRESHOLD = 0.5
"""Half of a perfect correlation. It is lower than for the loss gap, because the order of small
counts is partly random, which reduces the correlation: at 0.7 the published 774M, with 0 to 3
spikes up to 4,096 tokens, would be undecided."""

FEWEST = 5
"""Contexts."""


def judge(rows: DataFrame) -> Judgement:
    linear, softmax = (rows.loc[rows.attention == name] for name in ("linear", "softmax"))
    counts = linear.groupby("size").context.transform("nunique")
    enough = linear.loc[counts >= FEWEST]
    if enough.empty or softmax.empty:
        return untested(
            f"No size has runs of linear attention at {FEWEST} contexts, or softmax has no runs."
        )
    results = {}
    for size, part in enough.groupby("size", sort=False):
        updates = part.updates.to_numpy(float)
        counts = part.spikes.to_numpy(float)
        rates = np.random.default_rng(0).poisson(counts, (REPLICATES, len(counts))) / updates
        rho = float(rank_correlation(part.context, counts / updates)[0])
        results[size] = rho, uncertainty.interval(rank_correlation(part.context, rates)), part
    verdicts = [inside(interval, THRESHOLD, 1.0) for _, interval, _ in results.values()]
    n_softmax = int(softmax.spikes.sum())
    verdicts.append("fails" if n_softmax else "holds")
    rho, interval, _ = min(results.values(), key=lambda item: item[0])
    parts = [
        f"{size} {rho:.2f} ({part.rate.iloc[0]:.2g} per 10,000 updates at "
        f"{part.context.iloc[0]:,}, {part.rate.iloc[-1]:.2g} at {part.context.iloc[-1]:,})"
        for size, (rho, _, part) in results.items()
    ]
    return Judgement(
        verdict=overall(verdicts), number=rho, interval=interval,
        rests_on=points(enough) + points(softmax),
        why=f"Rank correlations: {'; '.join(parts)}; softmax has {n_softmax or 'no'} spikes in "
        f"{len(softmax)} cells.",
    )  # fmt: skip
