"""At equal training time linear attention reaches a lower loss than softmax at 4,096 tokens.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0 (Introduction); the final post claims the opposite.

Judged by the gap of the losses at equal hours, linear minus softmax, at every size that was trained
with a context of 4,096 tokens: where the run that lasted fewer hours ends.
"""

from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement

NUMBER = "gap, linear minus softmax, nats, mean over sizes; range: its interval, and the sizes"

QUERY = _contrasts.CURVES

AXIS = "hours"

THRESHOLD = 0.0
"""Nats. Any lower loss is lower."""

CONTEXT = 4096
"""Tokens."""


def judge(rows: DataFrame) -> Judgement:
    return _contrasts.judge_gaps(rows, AXIS, CONTEXT, high=THRESHOLD)
