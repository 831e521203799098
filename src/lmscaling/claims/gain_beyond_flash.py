"""From moderately long contexts on, the speed-up of chunked linear attention over FlashAttention
exceeds that of FlashAttention over softmax without it.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, introduction.

Judged by the ratio of the two speed-ups at the longest context of each size at which all three were
timed, without extrapolation: softmax without FlashAttention runs out of memory first. Sizes whose
longest common context is shorter than 8,192 tokens are excluded.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, points, spread, untested

NUMBER = "smallest ratio of the speed-ups at the longest common context; range over sizes"

ROLES = {"candidate": "linear chunked", "baseline": "softmax fused"}

QUERY = """
    SELECT source, setup, sweep, size, params, context, a.fused,
        a.ratio AS chunked_gain, b.ratio AS flash_gain, chunked_gain / flash_gain AS ratio
    FROM (FROM speed_ratios WHERE challenger = $candidate AND baseline = $baseline) a
    JOIN (
        SELECT source, setup, kind, sweep, size, batch, context, ratio
        FROM speed_ratios WHERE challenger = 'softmax fused' AND baseline = 'softmax no_flash'
    ) b USING (source, setup, kind, sweep, size, batch, context)
    WHERE kind = 'time_step'
    ORDER BY source, setup, params, size, sweep, context
"""

THRESHOLD = 1.0
"""Any ratio above 1 exceeds."""

MODERATE = 8192
"""Tokens. The logarithmic midpoint of the training contexts of the post, 1,024 to 65,536."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step was timed with {candidate}, {baseline} and softmax no_flash.")
    longest = rows.loc[rows.groupby(["sweep", "size"], sort=False).context.idxmax()]
    judged = longest[longest.context >= MODERATE]
    if judged.empty:
        return untested(f"All three were timed only up to {longest.context.max():,} tokens.")
    verdicts = ["holds" if ratio > THRESHOLD else "fails" for ratio in judged.ratio]
    parts = [
        f"{row['size']} at {row['context']:,} tokens: {row['chunked_gain']:.2f} compared with "
        f"{row['flash_gain']:.2f} times, {_first_context(rows.loc[rows['size'] == row['size']])}"
        for row in judged.to_dict("records")
    ]
    return Judgement(
        verdict=overall(verdicts), number=float(judged.ratio.min()), interval=spread(judged.ratio),
        rests_on=points(rows),
        why=f"Speed-ups of {'; '.join(parts)}. Softmax without FlashAttention was not timed at "
        "longer contexts.",
    )  # fmt: skip


def _first_context(rows: DataFrame) -> str:
    """The shortest timed context from which on the claim is true."""
    below = rows.context[rows.ratio <= THRESHOLD]
    after = rows.context[rows.context > below.max()] if len(below) else rows.context
    return f"larger from {after.min():,} on" if len(after) else "not larger at the longest context"
