"""The cumulative sum of states is one order of magnitude faster than one loop over states.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the ratio of the times of a step at every size and context at which both were timed: its
logarithm to base 10 must be within the threshold of 1.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement
from lmscaling.claims._ratios import orders, ratios

NUMBER = "time ratio farthest from 10 in orders of magnitude; range over all points"

ROLES: dict[str, str] = {}

QUERY = ratios("'linear state_parallel'", "'linear state'")

THRESHOLD = 0.5
"""Orders of magnitude: half of one is where rounding gives another number of them."""


def judge(rows: DataFrame) -> Judgement:
    return orders(rows, 1, THRESHOLD, "linear state_parallel", "linear state")
