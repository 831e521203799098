"""Beyond 1,024 tokens softmax ends at a similar loss at every context, and linear attention does
not.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

By the range of the losses at the ends of the runs over contexts of 1,024 tokens and more, at every
size with three or more, with the 95 % interval of other seeds. The ends are what the post speaks
of; the same hours for all, or the same updates, are other questions, and runs that stopped early
are named.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, redrawn, untested
from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import Interval

NUMBER = "largest range of softmax over contexts, nats, with its interval"

QUERY = """
    SELECT source, size, params, attention, context, avg(loss) AS loss, avg(hours) AS hours
    FROM final
    WHERE attention IN ('linear', 'softmax') AND context >= 1024 AND status = 'done'
    GROUP BY ALL
    ORDER BY source, params, size, attention, context
"""

THRESHOLD = 0.05
"""Nats: 5 % of perplexity, 25 deviations of seeds, and a quarter of what 124M and 355M differ by at
1,024 tokens."""

FEWEST = 3
"""Contexts."""

EARLY = 0.95
"""Share of the median hours; what ended before has stopped early."""


def judge(rows: DataFrame) -> Judgement:
    enough = rows.groupby(["size", "attention"]).filter(lambda part: len(part) >= FEWEST)
    both = enough.groupby("size").filter(lambda part: part.attention.nunique() == 2)
    if both.empty:
        return untested(f"No size has ends of both attentions at {FEWEST} contexts from 1,024 on.")
    softmax, linear = (_ranges(both, name) for name in ("softmax", "linear"))
    verdicts = [inside(interval, 0, THRESHOLD) for _, interval in softmax.values()]
    verdicts += [inside(interval, THRESHOLD, np.inf) for _, interval in linear.values()]
    number, interval = max(softmax.values(), key=lambda item: item[0])
    parts = [f"{size} {softmax[size][0]:.3f} and {linear[size][0]:.3f}" for size in softmax]
    return Judgement(
        verdict=overall(verdicts), number=number, interval=interval, rests_on=points(both),
        why=f"Final losses range over (softmax and linear) {'; '.join(parts)} nats, where "
        f"{THRESHOLD:g} counts as similar; {_early(both)}, and at equal hours this was not judged.",
    )  # fmt: skip


def _ranges(rows: DataFrame, attention: str) -> dict[str, tuple[float, Interval]]:
    of = rows[rows.attention == attention]
    return {
        str(size): (
            float(np.ptp(part.loss)),
            uncertainty.interval(np.ptp(redrawn(part.loss), axis=1)),
        )
        for size, part in of.groupby("size", sort=False)
    }


def _early(rows: DataFrame) -> str:
    """Which runs stopped early, in words."""
    typical = rows.hours.median()
    early = rows[rows.hours < EARLY * typical]
    if early.empty:
        return "all runs lasted about as long"
    return (
        f"{len(early)} of {len(rows)} runs stopped early, after {early.hours.min():.3g} hours and "
        f"more where {typical:.3g} are usual"
    )
