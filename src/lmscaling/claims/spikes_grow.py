"""Linear attention has more loss spikes at longer contexts, softmax has none.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by Spearman's rank correlation of the context with the spikes per 10,000 steps of linear
attention, at every size with at least five contexts, and by the number of spikes of softmax. A
correlation counts if a permutation test finds one at all; spikes occur in clusters, so no interval
is computed from their counts.
"""

import numpy as np
from pandas import DataFrame
from scipy.stats import rankdata

from lmscaling.claims._judgement import Judgement, overall, points, untested
from lmscaling.fits.noise import holm
from lmscaling.fits.uncertainty import LEVEL

NUMBER = "smallest rank correlation over sizes, without an interval"

QUERY = """
    SELECT
        source, size, params, context, if(attention = $candidate, 'candidate', 'baseline') AS role,
        sum(spikes) AS spikes, sum(updates) AS updates,
        10000 * sum(spikes) / sum(updates) AS rate
    FROM spike_rates
    WHERE attention IN ($candidate, $baseline)
    GROUP BY ALL
    ORDER BY source, params, size, role, context
"""

THRESHOLD = 0.5
"""Half of a perfect correlation. It is lower than for the loss gap, because the order of small
counts is partly random, which reduces the correlation: at 0.7 the published 774M, with 0 to 3
spikes up to 4,096 tokens, would be undecided."""

FEWEST = 5
"""Contexts."""

ORDERS = 9999
"""Orders of the rates that a permutation test draws."""


def judge(rows: DataFrame) -> Judgement:
    linear, softmax = (rows.loc[rows.role == role] for role in ("candidate", "baseline"))
    counts = linear.groupby("size").context.transform("nunique")
    enough = linear.loc[counts >= FEWEST]
    if enough.empty or softmax.empty:
        return untested(
            f"No size has runs of {{candidate}} at {FEWEST} contexts, or {{baseline}} has no runs."
        )
    results = {
        str(size): (_correlation(part), part)
        for size, part in enough.groupby("size", sort=False)
    }  # fmt: skip
    significant = holm([p for (_, p), _ in results.values()]) < 1 - LEVEL
    verdicts = [
        ("holds" if rho >= THRESHOLD else "fails") if found else "not tested"
        for ((rho, _), _), found in zip(results.values(), significant, strict=True)
    ]
    n_softmax = int(softmax.spikes.sum())
    verdicts.append("fails" if n_softmax else "holds")
    parts = [
        f"{size} {rho:.2f} ({part.rate.iloc[0]:.2g} per 10,000 steps at "
        f"{part.context.iloc[0]:,}, {part.rate.iloc[-1]:.2g} at {part.context.iloc[-1]:,})"
        for size, ((rho, _), part) in results.items()
    ]
    return Judgement(
        verdict=overall(verdicts), number=min(rho for (rho, _), _ in results.values()),
        rests_on=points(enough) + points(softmax),
        why=f"Rank correlations: {'; '.join(parts)}; {{baseline}} has {n_softmax or 'no'} spikes "
        f"in {len(softmax)} cells.",
    )  # fmt: skip


def _correlation(part: DataFrame) -> tuple[float, float]:
    """Rank correlation of context and rate, 0 if one is constant, and its two-sided p-value over
    orders of the rates."""
    x, y = rankdata(part.context), rankdata(part.rate)
    if not np.ptp(y):
        return 0.0, 1.0
    orders = np.random.default_rng(0).permuted(np.tile(y, (ORDERS, 1)), axis=1)
    as_large = np.abs(orders @ (x - x.mean())) >= abs(y @ (x - x.mean())) - 1e-9
    return float(np.corrcoef(x, y)[0, 1]), float((1 + as_large.sum()) / (1 + ORDERS))
