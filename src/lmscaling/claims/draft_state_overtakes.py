"""At 1.5 billion parameters the sequential form of linear attention becomes faster than its
attention form near 64,000 tokens.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0.1.

Judged by the last context at which the times of a step with state_parallel and attention_parallel
cross, interpolated linearly in the logarithms between timed contexts. A missing crossing counts
against the claim only if contexts beyond the factor were timed.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, untested
from lmscaling.claims._ratios import crossings

NUMBER = "context of the crossing; range: adjacent timed contexts"

ROLES: dict[str, str] = {}

QUERY = """
    SELECT source, setup, size, baseline, status, context, low, high, shortest, longest, most_ratio
    FROM crossings
    WHERE kind = 'time_step' AND challenger = 'linear state_parallel'
        AND starts_with(baseline, 'linear attention_parallel')
        -- GPT-2's 1,558M without embeddings, whatever its row is called.
        AND params BETWEEN 1.3e9 AND 1.7e9
    ORDER BY source, setup, baseline DESC
"""

THRESHOLD = 1.25
"""Factor. Timed contexts double, and the draft names one of them."""

CLAIMED = {"linear attention_parallel": 65_536}
"""Context of the crossing in tokens, by baseline."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No step of 1.5 billion parameters was timed with linear state_parallel and linear "
            "attention_parallel."
        )
    return crossings(rows, CLAIMED, THRESHOLD)
