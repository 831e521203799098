"""A training step with linear attention is 20 times faster at 4,096 tokens and 200 times at
100,000.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0 (Introduction); the final post claims less.

Judged by the largest speed-up of chunked linear attention over softmax with FlashAttention, with
which the draft compares, at any size, at 4,096 tokens and at the timed contexts around 100,000.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, points, spread, untested

NUMBER = "largest speed-up near 100,000 tokens, or else at 4,096; range over sizes and contexts"

ROLES = {"candidate": "linear chunked", "baseline": "softmax fused"}

QUERY = """
    SELECT source, setup, size, params, context, fused, ratio,
        if(context = 4096, 4096, 100000) AS around
    FROM speed_ratios
    WHERE kind = 'time_step' AND challenger = $candidate AND baseline = $baseline
        AND (context = 4096 OR context BETWEEN 65536 AND 131072)
    ORDER BY source, setup, params, size, context
"""

THRESHOLD = 0.5
"""Share of the claimed speed-up. 20 and 200 are round numbers, but half of them would be a
different claim."""

CLAIMED = {4096: 20, 100_000: 200}
"""Speed-up by context in tokens."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No step was timed at 4,096 or near 100,000 tokens with {candidate} and {baseline}."
        )
    verdicts, parts = [], []
    for context, claimed in CLAIMED.items():
        part = rows[rows.around == context]
        best = part.loc[part.ratio.idxmax()] if len(part) else None
        if best is None:
            verdicts.append("not tested")
            parts.append(f"no step was timed near {context:,} tokens")
            continue
        verdicts.append("holds" if best.ratio >= THRESHOLD * claimed else "fails")
        parts.append(
            f"{claimed} times was claimed at {context:,} tokens, the largest measured speed-up is "
            f"{best.ratio:.1f} ({best['size']} at {best.context:,})"
        )
    last = rows[rows.around == rows.around.max()]
    return Judgement(
        verdict=overall(verdicts), number=float(last.ratio.max()), interval=spread(last.ratio),
        rests_on=points(rows), why=f"{'; '.join(parts)}.",
    )  # fmt: skip
