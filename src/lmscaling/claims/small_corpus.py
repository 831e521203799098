"""On a small corpus linear attention reaches the same loss as softmax.

Buckman and Gelada, draft of Linear Transformers Are Faster After All, Manifest AI 2024, section 5
(Learning Performance).

Judged by the gap of the final losses, linear minus softmax, of runs that read their training text
at least twice, with a 95 % interval for the noise of seeds. A run that reads every text once does
not test a small corpus.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, untested
from lmscaling.fits.uncertainty import STATED, Interval

NUMBER = "gap farthest from 0, nats, with its 95 % interval"

QUERY = """
    SELECT source, size, a.params, context, seed, a.loss - b.loss AS gap
    FROM final a JOIN final b USING (source, size, context, seed)
    WHERE a.attention = 'linear' AND b.attention = 'softmax'
        AND a.status IN ('done', 'out_of_tokens') AND b.status IN ('done', 'out_of_tokens')
        AND a.run IN (SELECT run FROM validations WHERE epoch > 2 AND surviving)
        AND b.run IN (SELECT run FROM validations WHERE epoch > 2 AND surviving)
    ORDER BY source, a.params, size, context, seed
"""

THRESHOLD = 0.02
"""Nats: 2 % of perplexity, and a quarter of the gap of published runs at 1,024 tokens, which read
every text once."""

CHANCE = 1.96 * np.sqrt(2) * STATED.sd
"""Half the width of the 95 % interval of a gap between two runs."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No pair of runs read its training text twice; train a study on a few million tokens "
            "with epochs: 10 or more to test this."
        )
    intervals = [Interval(gap - CHANCE, gap + CHANCE) for gap in rows.gap]
    number = float(rows.gap.loc[rows.gap.abs().idxmax()])
    return Judgement(
        verdict=overall(inside(interval, -THRESHOLD, THRESHOLD) for interval in intervals),
        number=number,
        interval=Interval(number - CHANCE, number + CHANCE),
        rests_on=points(rows),
        why=f"The gaps of {len(rows)} pairs of runs are between {rows.gap.min():+.3f} and "
        f"{rows.gap.max():+.3f} nats (threshold {THRESHOLD:g}).",
    )
