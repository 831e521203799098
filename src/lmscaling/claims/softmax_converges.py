"""From 1,024 tokens on, softmax reaches a similar final loss at all contexts, and linear attention
does not.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the range of the final losses over contexts of at least 1,024 tokens, at every size with
three or more of them, with a 95 % interval for the noise of seeds. The post compares final losses,
so neither equal hours nor equal updates are used; runs that stopped early are reported.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import (
    Judgement,
    inside,
    overall,
    points,
    replicate_seeds,
    untested,
)
from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import Interval

NUMBER = "largest range of softmax over contexts, nats, with its 95 % interval"

QUERY = """
    SELECT source, size, params, attention, context, avg(loss) AS loss, avg(hours) AS hours
    FROM final
    WHERE attention IN ('linear', 'softmax') AND context >= 1024 AND status = 'done'
    GROUP BY ALL
    ORDER BY source, params, size, attention, context
"""

THRESHOLD = 0.05
"""Nats: 5 % of perplexity, 25 standard deviations of seeds, and a quarter of the difference between
124M and 355M at 1,024 tokens."""

FEWEST = 3
"""Contexts."""

EARLY = 0.95
"""Share of the median hours below which a run stopped early."""


def judge(rows: DataFrame) -> Judgement:
    enough = rows.groupby(["size", "attention"]).filter(lambda part: len(part) >= FEWEST)
    both = enough.groupby("size").filter(lambda part: part.attention.nunique() == 2)
    if both.empty:
        return untested(
            f"No size has final losses of both attentions at {FEWEST} contexts of at least 1,024 "
            "tokens."
        )
    softmax, linear = (_ranges(both, name) for name in ("softmax", "linear"))
    verdicts = [inside(interval, 0, THRESHOLD) for _, interval in softmax.values()]
    verdicts += [inside(interval, THRESHOLD, np.inf) for _, interval in linear.values()]
    number, interval = max(softmax.values(), key=lambda item: item[0])
    parts = [f"{size} {softmax[size][0]:.3f} and {linear[size][0]:.3f}" for size in softmax]
    return Judgement(
        verdict=overall(verdicts), number=number, interval=interval, rests_on=points(both),
        why=f"Ranges of the final losses over contexts, softmax and linear: {'; '.join(parts)} "
        f"nats (threshold {THRESHOLD:g}); {_early_runs(both)}.",
    )  # fmt: skip


def _ranges(rows: DataFrame, attention: str) -> dict[str, tuple[float, Interval]]:
    own = rows[rows.attention == attention]
    return {
        str(size): (
            float(np.ptp(part.loss)),
            uncertainty.interval(np.ptp(replicate_seeds(part.loss), axis=1)),
        )
        for size, part in own.groupby("size", sort=False)
    }


def _early_runs(rows: DataFrame) -> str:
    """The number of runs that stopped early."""
    typical = rows.hours.median()
    early = rows[rows.hours < EARLY * typical]
    if early.empty:
        return "no run stopped early"
    return (
        f"{len(early)} of {len(rows)} runs stopped early, the first after "
        f"{early.hours.min():.3g} hours (median {typical:.3g})"
    )
