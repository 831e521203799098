"""Parallel attention without FlashAttention is two orders of magnitude faster than nested loops.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the ratio of the times of a step at every size and context at which both were timed: its
logarithm to base 10 must be within the threshold of 2.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement
from lmscaling.claims._ratios import orders, ratios

NUMBER = "time ratio farthest from 100 in orders of magnitude; range over all points"

ROLES: dict[str, str] = {}

QUERY = ratios("'linear attention_parallel_no_flash'", "'linear attention'")

THRESHOLD = 0.5
"""Orders of magnitude: half of one is where rounding gives another number of them."""


def judge(rows: DataFrame) -> Judgement:
    return orders(rows, 2, THRESHOLD, "linear attention_parallel_no_flash", "linear attention")
