"""The cumulative sum of states overtakes parallel linear attention near 13,000 tokens without
FlashAttention, and near 100,000 tokens with it.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the last context at which the times of two forms of linear attention cross at 124M, the
smallest size, whose times reach beyond 100,000 tokens: interpolated linearly in the logarithms
between timed contexts. Both crossings must agree with the claimed contexts within a factor. A
missing crossing counts against the claim only if contexts beyond that factor were timed.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, untested
from lmscaling.claims._ratios import crossings

NUMBER = "context of the crossing without FlashAttention; range: adjacent timed contexts"

ROLES: dict[str, str] = {}

QUERY = """
    SELECT source, setup, size, baseline, status, context, low, high, shortest, longest, most_ratio
    FROM crossings
    WHERE kind = 'time_step' AND challenger = 'linear state_parallel'
        AND starts_with(baseline, 'linear attention_parallel')
        -- GPT-2's 124M without embeddings, whatever its row is called.
        AND params BETWEEN 80e6 AND 90e6
    ORDER BY source, setup, baseline DESC
"""

THRESHOLD = 1.25
"""Factor. The post gives one and two significant digits; timed contexts double, and interpolation
between two of them is accurate to a few percent."""

CLAIMED = {"linear attention_parallel_no_flash": 13_000, "linear attention_parallel": 100_000}
"""Context of the crossing in tokens, by baseline."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No step of 124M was timed with linear state_parallel and a parallel attention form of "
            "linear attention."
        )
    return crossings(rows, CLAIMED, THRESHOLD)
