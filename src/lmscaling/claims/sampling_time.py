"""The time to sample a token is independent of the context with linear attention, and grows with
the context with softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 4
(Sampling); Katharopoulos et al. 2020, arXiv:2006.16236, section 3.4.

Judged by the slope of ln(time) against ln(context): its 95 % interval from the regression must be
within the threshold of 0 for linear attention and above the threshold for softmax, at every size
with at least three contexts that span a factor of 16.
"""

from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import (
    Judgement,
    inside,
    overall,
    points,
    spread,
    untested,
)
from lmscaling.fits.slopes import line
from lmscaling.fits.uncertainty import LEVEL

NUMBER = "slope of linear attention farthest from 0; range over sizes and batches"

ROLES = {"candidate": "linear", "baseline": "softmax"}

QUERY = """
    SELECT source, setup, sweep, size, params, batch, context, seconds,
        if(attention = $candidate, 'candidate', 'baseline') AS role
    FROM speeds
    WHERE kind = 'time_decode' AND attention IN ($candidate, $baseline) AND seconds IS NOT NULL
    ORDER BY source, setup, params, size, batch, role, context
"""

THRESHOLD = 0.05
"""Slope. At this slope the time grows by 3.5 % per doubling of the context, and by 37 % from 1,024
to 524,288 tokens."""

SPAN = 16
"""Factor between the shortest and the longest context."""


def judge(rows: DataFrame) -> Judgement:
    parts = rows.groupby(["sweep", "size", "batch", "role"], sort=False).filter(
        lambda part: part.context.nunique() > 2 and part.context.max() >= SPAN * part.context.min()
    )
    if parts.role.nunique() < 2:
        return untested(
            "Sampling was not timed with {candidate} and {baseline} at three contexts that span a "
            f"factor of {SPAN}."
        )
    series: list[tuple[Any, DataFrame]] = list(
        parts.groupby(["sweep", "size", "batch", "role"], sort=False)
    )
    verdicts, slopes = [], {"candidate": [], "baseline": []}
    for (_, size, batch, role), part in series:
        x, y = np.log(part.context), np.log(part.seconds)
        bounds = (-THRESHOLD, THRESHOLD) if role == "candidate" else (THRESHOLD, np.inf)
        verdict = inside(line(x, y)[1], *bounds)
        if verdict == "fails":  # one of many: significant after a correction for their number
            verdict = inside(line(x, y, 1 - (1 - LEVEL) / len(series))[1], *bounds)
        verdicts.append(verdict)
        slopes[role].append(
            (line(x, y)[0], f"{size} with {batch} sequence{'s' if batch > 1 else ''}")
        )
    number, name = max(slopes["candidate"], key=lambda item: abs(item[0]))
    baseline = [value for value, _ in slopes["baseline"]]
    return Judgement(
        verdict=overall(verdicts), number=number,
        interval=spread(value for value, _ in slopes["candidate"]), rests_on=points(rows),
        why=f"Slopes of {{candidate}} are at most {abs(number):.3f} ({name}; threshold "
        f"{THRESHOLD:g}), those of {{baseline}} {min(baseline):.2f} to {max(baseline):.2f}.",
    )  # fmt: skip
