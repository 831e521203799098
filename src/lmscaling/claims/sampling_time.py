"""The time of a sampled token does not depend on the context with linear attention, and grows with
it with softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 4
(Sampling); Katharopoulos et al. 2020, arXiv:2006.16236, section 3.4.

By the slope of the logarithm of time over that of the context, with its 95 % interval from the
scatter of the points: within a bound of 0 for linear attention, above it for softmax, at every size
with three contexts or more that span a factor 16.
"""

from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, slope, untested
from lmscaling.fits.uncertainty import Interval

NUMBER = "slope of linear attention farthest from 0, with its interval"

QUERY = """
    SELECT source, setup, sweep, size, params, batch, attention, context, seconds
    FROM speeds
    WHERE kind = 'time_decode' AND attention IN ('linear', 'softmax') AND seconds IS NOT NULL
    ORDER BY source, setup, params, size, batch, attention, context
"""

THRESHOLD = 0.05
"""Slope. Time then grows by 3.5 % where the context doubles, and by 37 % from 1,024 to 524,288."""

SPAN = 16
"""Factor between the shortest and the longest context."""


def judge(rows: DataFrame) -> Judgement:
    found: dict[str, dict[str, tuple[float, Interval]]] = {"linear": {}, "softmax": {}}
    series: list[tuple[Any, DataFrame]] = list(
        rows.groupby(["sweep", "size", "batch", "attention"], sort=False)
    )
    for (_, size, batch, attention), part in series:
        if part.context.nunique() > 2 and part.context.max() >= SPAN * part.context.min():
            name = f"{size} with {batch} sequence{'s' if batch > 1 else ''}"
            found[attention][name] = slope(np.log(part.context), np.log(part.seconds))
    if not (found["linear"] and found["softmax"]):
        return untested(
            "Sampling was not timed with both attentions at three contexts that span a factor "
            f"{SPAN}."
        )
    verdicts = [inside(i, -THRESHOLD, THRESHOLD) for _, i in found["linear"].values()]
    verdicts += [inside(i, THRESHOLD, np.inf) for _, i in found["softmax"].values()]
    name, (rising, interval) = max(found["linear"].items(), key=lambda item: abs(item[1][0]))
    softmax = [rising for rising, _ in found["softmax"].values()]
    return Judgement(
        verdict=overall(verdicts), number=rising, interval=interval, rests_on=points(rows),
        why=f"Slopes of linear attention are at most {abs(rising):.3f} ({name}), where "
        f"{THRESHOLD:g} is allowed, and those of softmax {min(softmax):.2f} to {max(softmax):.2f}.",
    )  # fmt: skip
