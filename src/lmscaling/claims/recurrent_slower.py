"""A straightforward recurrence makes linear attention train much more slowly than an optimized
transformer.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, introduction.

Judged by the time of a step with one loop over states divided by that with FlashAttention, at every
size and context at which both were timed. A single point that is not much slower refutes the claim.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, places, points, spread, untested
from lmscaling.claims._ratios import ratios

NUMBER = "smallest time ratio, one loop over FlashAttention; range over all points"

ROLES = {"baseline": "softmax fused"}

QUERY = ratios("$baseline", "'linear state'")

THRESHOLD = 2.0
"""Much more slowly: at least twice the time."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step was timed with both linear state and {baseline}.")
    close = rows.loc[rows.ratio < THRESHOLD]
    return Judgement(
        verdict="fails" if len(close) else "holds",
        number=float(rows.ratio.min()),
        interval=spread(rows.ratio),
        rests_on=points(rows),
        why=f"Takes {rows.ratio.min():.1f} to {rows.ratio.max():.1f} times as long"
        + (f"; less than {THRESHOLD:g} at {places(close)}." if len(close) else "."),
    )
