"""From moderately long contexts on, chunks speed up a step more over FlashAttention than
FlashAttention does over softmax without it.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 3 (Chunked
Formulation).

By the ratio of the two speed-ups, at the longest context of each size at which all three were
timed; softmax without FlashAttention soon runs out of memory, and beyond that nothing is
extrapolated. A size whose common contexts end below 8,192 tokens says nothing.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, points, spread, untested

NUMBER = "ratio of the speed-ups at the longest common context, least over sizes; range over sizes"

QUERY = """
    SELECT
        source, setup, size, a.params, batch, context,
        b.seconds / a.seconds AS chunked_gain, c.seconds / b.seconds AS flash_gain,
        chunked_gain / flash_gain AS ratio
    FROM speeds a
    JOIN speeds b USING (kind, sweep, size, batch, source, setup, context)
    JOIN speeds c USING (kind, sweep, size, batch, source, setup, context)
    WHERE kind = 'time_step' AND a.method = 'linear chunked' AND b.method = 'softmax flash'
        AND c.method = 'softmax no_flash'
        AND a.seconds IS NOT NULL AND b.seconds IS NOT NULL AND c.seconds IS NOT NULL
    ORDER BY source, setup, a.params, batch, context
"""

THRESHOLD = 1.0
"""To exceed is to be larger at all."""

MODERATE = 8192
"""Tokens. The middle, on a logarithmic scale, of the contexts from 1,024 to 65,536 that the post
trained at."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No step was timed with linear/chunked, softmax/flash and softmax/no_flash."
        )
    longest = rows.loc[rows.groupby(["size", "batch"], sort=False).context.idxmax()]
    judged = longest[longest.context >= MODERATE]
    if judged.empty:
        return untested(f"All three fit at once up to {longest.context.max():,} tokens only.")
    verdicts = ["holds" if ratio > THRESHOLD else "fails" for ratio in judged.ratio]
    parts = [
        f"{row['size']} at {row['context']:,}: {row['chunked_gain']:.2f} against "
        f"{row['flash_gain']:.2f} times, {_from(rows.loc[rows['size'] == row['size']])}"
        for row in judged.to_dict("records")
    ]
    return Judgement(
        verdict=overall(verdicts), number=float(judged.ratio.min()), interval=spread(judged.ratio),
        rests_on=points(rows),
        why=f"{'; '.join(parts)}; beyond, softmax without FlashAttention was not timed.",
    )  # fmt: skip


def _from(rows: DataFrame) -> str:
    """From which context on the claim is true, as far as it was timed."""
    below = rows.context[rows.ratio <= THRESHOLD]
    after = rows.context[rows.context > below.max()] if len(below) else rows.context
    return f"larger from {after.min():,} on" if len(after) else "not larger from any context on"
