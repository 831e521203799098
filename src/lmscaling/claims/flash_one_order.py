"""At long contexts linear attention in a FlashAttention kernel settles at one order of magnitude
faster than parallel attention without it.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the ratio of the times of a step at the longest context of each size at which both were
timed: its logarithm to base 10 must be within the threshold of 1. The claim is about a limit, so it
is not tested where the last doubling of the context still changes the ratio by more than a quarter.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, untested
from lmscaling.claims._ratios import last_slopes, orders, ratios

NUMBER = "time ratio farthest from 10 in orders of magnitude; range over sizes"

ROLES: dict[str, str] = {}

QUERY = ratios("'linear attention_parallel'", "'linear attention_parallel_no_flash'")

THRESHOLD = 0.5
"""Orders of magnitude: half of one is where rounding gives another number of them."""

SETTLED = 0.32
"""Slope of ln(ratio) against ln(context): a quarter more with every doubling."""

MODERATE = 8192
"""Tokens that the longest context must reach."""


def judge(rows: DataFrame) -> Judgement:
    names = "linear attention_parallel", "linear attention_parallel_no_flash"
    if rows.empty:
        return orders(rows, 1, THRESHOLD, *names)
    slopes = last_slopes(rows, ["sweep", "size"], "ratio", MODERATE)
    last = rows.merge(slopes, on=["sweep", "size", "context"])
    if last.empty:
        return untested(f"Both were timed only up to {rows.context.max():,} tokens.")
    moving = last.loc[last.slope.abs() > SETTLED]
    if len(moving):
        growth = 2**moving.slope
        return untested(
            f"The ratio has not settled: {last.ratio.min():.1f} to {last.ratio.max():.1f} at the "
            f"longest common contexts, {growth.min():.1f} to {growth.max():.1f} times that of half "
            f"the context at {', '.join(points(moving))}."
        )
    return orders(last, 1, THRESHOLD, *names)
