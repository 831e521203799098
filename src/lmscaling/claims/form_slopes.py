"""At long contexts the time of a step grows with the square of the context in the attention forms
of linear attention, and in proportion to it in the state forms.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the slope of ln(time) against ln(context) between the two longest contexts of every form
and size that was timed up to at least 8,192 tokens: 2 or 1 within the threshold.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, untested
from lmscaling.claims._ratios import last_slopes, near

NUMBER = "slope farthest from the claimed 2 or 1; range over forms and sizes"

ROLES: dict[str, str] = {}

EXPECTED = {
    "linear attention": 2, "linear attention_parallel_no_flash": 2, "linear attention_parallel": 2,
    "linear state": 1, "linear state_parallel": 1,
}  # fmt: skip

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, seconds / batch AS seconds
    FROM speeds
    WHERE kind = 'time_step' AND seconds IS NOT NULL AND method IN (
        'linear attention', 'linear attention_parallel_no_flash', 'linear attention_parallel',
        'linear state', 'linear state_parallel'
    )
    ORDER BY source, setup, method, params, size, sweep, context
"""

THRESHOLD = 0.25
"""Slope: half way to the middle between 1 and 2. A step has other parts than attention, so that its
slope only approaches these limits."""

MODERATE = 8192
"""Tokens that the longest context of a series must reach."""


def judge(rows: DataFrame) -> Judgement:
    slopes = last_slopes(rows, ["sweep", "size", "method"], "seconds", MODERATE)
    slopes["expected"] = slopes.method.map(EXPECTED)
    if set(slopes.expected) != {1, 2}:
        return untested(
            f"Steps were not timed up to {MODERATE:,} tokens with an attention form and a state "
            "form of linear attention."
        )
    return near(slopes, THRESHOLD)
