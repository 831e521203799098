"""With linear attention the loss has more spikes at longer contexts, and with softmax none.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

By Spearman's rank correlation of context and spikes per 10,000 updates of linear attention, at
every size with five contexts or more, and by the spikes of softmax. The interval is that of counts
by Poisson's law; spikes come in groups, so it is too narrow.
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

NUMBER = "least rank correlation over sizes, with its interval"

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
"""Half of what a perfect order has. It is less than for the loss gap, because counts of a few
spikes change places by chance and draw the correlation towards 0: at 0.7 the published 774M, which
has 0 to 3 spikes up to 4,096 tokens, would be left open."""

FEWEST = 5
"""Contexts."""


def judge(rows: DataFrame) -> Judgement:
    linear, softmax = (rows.loc[rows.attention == name] for name in ("linear", "softmax"))
    counts = linear.groupby("size").context.transform("nunique")
    enough = linear.loc[counts >= FEWEST]
    if enough.empty or softmax.empty:
        return untested(
            f"No size has runs of linear attention at {FEWEST} contexts, or softmax has none."
        )
    found = {}
    for size, part in enough.groupby("size", sort=False):
        updates = part.updates.to_numpy(float)
        counts = part.spikes.to_numpy(float)
        drawn = np.random.default_rng(0).poisson(counts, (REPLICATES, len(counts))) / updates
        rho = float(rank_correlation(part.context, counts / updates)[0])
        found[size] = rho, uncertainty.interval(rank_correlation(part.context, drawn)), part
    verdicts = [inside(interval, THRESHOLD, 1.0) for _, interval, _ in found.values()]
    spiked = int(softmax.spikes.sum())
    verdicts.append("fails" if spiked else "holds")
    rho, interval, _ = min(found.values(), key=lambda item: item[0])
    parts = [
        f"{size} {rho:.2f} ({part.rate.iloc[0]:.2g} per 10,000 updates at "
        f"{part.context.iloc[0]:,}, {part.rate.iloc[-1]:.2g} at {part.context.iloc[-1]:,})"
        for size, (rho, _, part) in found.items()
    ]
    return Judgement(
        verdict=overall(verdicts), number=rho, interval=interval,
        rests_on=points(enough) + points(softmax),
        why=f"Rank correlations: {'; '.join(parts)}; softmax has {spiked or 'no'} spikes in "
        f"{len(softmax)} cells.",
    )  # fmt: skip
