"""The speed-up of chunked linear attention over FlashAttention grows rapidly with the context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 3 (Chunked
Formulation).

Judged by the slope of ln(speed-up) against ln(context) between the two longest contexts of each
size at which both were timed. A quadratic and a linear cost differ by a slope of 1. Sizes whose
longest common context is shorter than 8,192 tokens are excluded.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested
from lmscaling.claims._ratios import last_slopes, ratios

NUMBER = "smallest slope over the last doubling of the context; range over sizes"

ROLES = {"candidate": "linear chunked", "baseline": "softmax fused"}

QUERY = ratios("$candidate", "$baseline")

THRESHOLD = 0.5
"""Slope: with every doubling of the context the speed-up grows by at least the square root of 2."""

MODERATE = 8192
"""Tokens. The logarithmic midpoint of the training contexts of the post, 1,024 to 65,536."""


def judge(rows: DataFrame) -> Judgement:
    slopes = last_slopes(rows, ["sweep", "size"], "ratio", MODERATE)
    if slopes.empty:
        return untested(
            "No step was timed with both {candidate} and {baseline} at two contexts up to at least "
            f"{MODERATE:,} tokens."
        )
    last = rows.merge(slopes, on=["sweep", "size", "context"])
    parts = [
        f"{row['size']} {row['slope']:.2f} to {row['ratio']:.1f} times as fast at "
        f"{row['context']:,} tokens"
        for row in last.to_dict("records")
    ]
    return Judgement(
        verdict="holds" if (slopes.slope >= THRESHOLD).all() else "fails",
        number=float(slopes.slope.min()), interval=spread(slopes.slope), rests_on=points(rows),
        why=f"Slopes: {'; '.join(parts)}.",
    )  # fmt: skip
