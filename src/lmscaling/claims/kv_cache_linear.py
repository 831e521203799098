"""With softmax and a cache of keys and values the time to sample a token grows in proportion to the
context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 4
(Sampling).

Judged by the slope of ln(time) against ln(context) between the two longest contexts of every size
that was timed up to at least 16,384 tokens: 1 within the threshold.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, untested
from lmscaling.claims._ratios import last_slopes, near

NUMBER = "slope farthest from 1; range over sizes"

ROLES = {"baseline": "softmax"}

QUERY = """
    SELECT source, setup, sweep, size, params, batch, method, context, seconds
    FROM speeds
    WHERE kind = 'time_decode' AND attention = $baseline AND seconds IS NOT NULL
    ORDER BY source, setup, params, size, batch, context
"""

THRESHOLD = 0.25
"""Slope. The rest of the model takes a constant time, so that the slope only approaches 1."""

LONG = 16_384
"""Tokens that the longest context of a series must reach."""


def judge(rows: DataFrame) -> Judgement:
    slopes = last_slopes(rows, ["sweep", "size", "batch", "method"], "seconds", LONG)
    if slopes.empty:
        return untested(
            f"Sampling with {{baseline}} was not timed at two contexts up to {LONG:,} tokens."
        )
    return near(slopes.assign(expected=1), THRESHOLD)
