"""The time to sample a token is independent of the context with linear attention, and grows with
the context with softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 4
(Sampling); Katharopoulos et al. 2020, arXiv:2006.16236, section 3.4.

Judged by the slope of ln(time) against ln(context) with its 95 % interval from the regression:
within the threshold of 0 for linear attention and above the threshold for softmax, at every size
with at least three contexts that span a factor of 16.
"""

from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, slope, untested
from lmscaling.fits.uncertainty import Interval

NUMBER = "slope of linear attention farthest from 0, with its 95 % interval"

QUERY = """
    SELECT source, setup, sweep, size, params, batch, attention, context, seconds
    FROM speeds
    WHERE kind = 'time_decode' AND attention IN ('linear', 'softmax') AND seconds IS NOT NULL
    ORDER BY source, setup, params, size, batch, attention, context
"""

THRESHOLD = 0.05
"""Slope. At this slope the time grows by 3.5 % per doubling of the context, and by 37 % from 1,024
to 524,288 tokens."""

SPAN = 16
"""Factor between the shortest and the longest context."""


def judge(rows: DataFrame) -> Judgement:
    slopes: dict[str, dict[str, tuple[float, Interval]]] = {"linear": {}, "softmax": {}}
    series: list[tuple[Any, DataFrame]] = list(
        rows.groupby(["sweep", "size", "batch", "attention"], sort=False)
    )
    for (_, size, batch, attention), part in series:
        if part.context.nunique() > 2 and part.context.max() >= SPAN * part.context.min():
            name = f"{size} with {batch} sequence{'s' if batch > 1 else ''}"
            slopes[attention][name] = slope(np.log(part.context), np.log(part.seconds))
    if not (slopes["linear"] and slopes["softmax"]):
        return untested(
            "Sampling was not timed with both attentions at three contexts that span a factor of "
            f"{SPAN}."
        )
    verdicts = [inside(i, -THRESHOLD, THRESHOLD) for _, i in slopes["linear"].values()]
    verdicts += [inside(i, THRESHOLD, np.inf) for _, i in slopes["softmax"].values()]
    name, (number, interval) = max(slopes["linear"].items(), key=lambda item: abs(item[1][0]))
    softmax = [value for value, _ in slopes["softmax"].values()]
    return Judgement(
        verdict=overall(verdicts), number=number, interval=interval, rests_on=points(rows),
        why=f"Slopes of linear attention are at most {abs(number):.3f} ({name}; threshold "
        f"{THRESHOLD:g}), those of softmax {min(softmax):.2f} to {max(softmax):.2f}.",
    )  # fmt: skip
