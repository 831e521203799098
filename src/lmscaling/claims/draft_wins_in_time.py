"""At equal training time linear attention reaches a lower loss than softmax at 4,096 tokens.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0 (Introduction); the final post claims the opposite.

Judged by the gap of the losses at equal hours, linear minus softmax, at every size that was trained
with a context of 4,096 tokens: where the run that lasted fewer hours ends.
"""

from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, points, untested

NUMBER = "gap, linear minus softmax, nats, mean over sizes, with its interval"

QUERY = _contrasts.CURVES

AXIS = "hours"

THRESHOLD = 0.0
"""Nats. Any lower loss is lower."""

CONTEXT = 4096
"""Tokens."""


def judge(rows: DataFrame) -> Judgement:
    losses = _contrasts.losses_at(rows.loc[rows.context == CONTEXT], AXIS, ["size"])
    gaps = {size: _contrasts.pair(size, CONTEXT) for size in losses["size"].unique()}
    found = _contrasts.estimate(losses, gaps)
    if not found:
        return untested(f"No size has curves of both attentions at {CONTEXT:,} tokens.")
    total = _contrasts.estimate(losses, {"": _contrasts.mean([gaps[size] for size in found])}).get(
        ""
    )
    verdict, noise = _contrasts.within([total] if total else found.values(), high=THRESHOLD)
    return Judgement(
        verdict=verdict, number=total and total.value, interval=total and total.interval,
        rests_on=points(losses),
        why=f"Gaps: {', '.join(f'{size} {one.value:+.3f}' for size, one in found.items())} nats; "
        f"{noise}.",
    )  # fmt: skip
