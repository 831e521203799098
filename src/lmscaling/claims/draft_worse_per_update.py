"""At equal steps linear attention is worse than softmax at 4,096 tokens.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0 (Introduction).

Judged by the gap of the losses at equal steps, linear minus softmax, at every size that was
trained with a context of 4,096 tokens: where the run with fewer steps ends. The draft calls the
loss slightly worse, and gives no number that would tell a slight gap from another.
"""

from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement

NUMBER = "gap, linear minus softmax, nats, mean over sizes; range: its interval, and the sizes"

QUERY = _contrasts.CURVES

AXIS = "updates"

THRESHOLD = 0.0
"""Nats. Any higher loss is worse."""

CONTEXT = 4096
"""Tokens."""


def judge(rows: DataFrame) -> Judgement:
    return _contrasts.judge_gaps(rows, AXIS, CONTEXT, low=THRESHOLD)
