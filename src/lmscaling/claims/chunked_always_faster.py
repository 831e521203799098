"""A training step with chunked linear attention is faster than with FlashAttention at every size
and context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, introduction.

Judged by the time of a step with FlashAttention divided by that with chunks, at every size and
context at which both were timed. A single slower point refutes the claim. It is least likely to be
true at short contexts, so it can hold only if every size was timed at 1,024 tokens or fewer.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, places, points, spread, untested
from lmscaling.claims._ratios import ratios

NUMBER = "smallest time ratio, FlashAttention over chunked; range over all points"

ROLES = {"candidate": "linear chunked", "baseline": "softmax fused"}

QUERY = ratios("$candidate", "$baseline")

THRESHOLD = 1.0
"""Faster means any ratio above 1. Published times have no errors, so the verdict on a point within
one or two percent is uncertain; the explanation lists all slower points."""

SHORT = 1024
"""Tokens. The shortest context that the post timed."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step was timed with both {candidate} and {baseline}.")
    slower = rows.loc[rows.ratio <= THRESHOLD]
    shortest = rows.groupby("size", sort=False).context.min()
    open_sizes = shortest[shortest > SHORT].index.tolist()
    if len(slower):
        verdict = "fails"
        why = f"Not faster at {len(slower)} of {len(rows)} points: {places(slower)}."
    elif open_sizes:
        verdict = "not tested"
        why = (
            f"Faster at all {len(rows)} points, but {', '.join(open_sizes)} was not timed at "
            f"{SHORT:,} tokens or fewer."
        )
    else:
        verdict = "holds"
        why = f"Faster at all {len(rows)} points: {places(rows)}."
    return Judgement(
        verdict=verdict, number=float(rows.ratio.min()), interval=spread(rows.ratio),
        rests_on=points(rows), why=why,
    )  # fmt: skip
