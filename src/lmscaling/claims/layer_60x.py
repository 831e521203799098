"""The forward pass of a layer with linear attention is up to 60 times faster than with softmax.

Linear Attention Is All You Need (Self-attention at a fraction of the cost?), Towards Data Science
2024, section on speed.

Judged by the largest speed-up of a forward pass of one layer over plain softmax, without
FlashAttention, with heads of width 64, a batch of 32 sequences and at most 6,000 tokens. The
article times a layer without a causal mask on a T4, and finds a kink in its own ratios.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "largest speed-up; range over contexts"

ROLES = {"candidate": "linear chunked", "baseline": "softmax no_flash"}

QUERY = """
    SELECT source, setup, size, batch, context, ratio
    FROM speed_ratios
    WHERE kind = 'time_layer' AND passes = 'forward' AND d_head = 64 AND batch = 32
        AND context <= 6000 AND challenger = $candidate AND baseline = $baseline
    ORDER BY source, setup, size, context
"""

THRESHOLD = 0.5
"""Share of the claimed speed-up. 60 is a round number; half of it would be a different claim."""

CLAIMED = 60
"""Times as fast."""

LONG = 4000
"""Tokens that the longest context must reach: the speed-up is largest there."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty or rows.context.max() < LONG:
        return untested(
            f"No forward pass of a layer was timed up to {LONG:,} tokens with {{candidate}} and "
            "{baseline}, heads of width 64 and 32 sequences; set speed: time_layer in a study to "
            "time it."
        )
    best = rows.loc[rows.ratio.idxmax()]
    return Judgement(
        verdict="holds" if best.ratio >= THRESHOLD * CLAIMED else "fails",
        number=float(best.ratio),
        interval=spread(rows.ratio),
        rests_on=points(rows),
        why=f"{CLAIMED} times was claimed, the largest measured speed-up is {best.ratio:.1f} (at "
        f"{best.context:,} tokens).",
    )
