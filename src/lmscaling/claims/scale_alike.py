"""The loss decreases with the number of parameters at the same rate for linear attention and
softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the slope of ln(final loss) against ln(N), linear minus softmax, at equal budgets, for the
post a day of training: at every context at which both attentions were trained at the same sizes, at
least two; N counts parameters without embeddings.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, points, untested

NUMBER = "difference of slopes farthest from 0, linear minus softmax, without an interval"

QUERY = """
    SELECT source, size, params, context, seed, loss,
        if(attention = $candidate, 'candidate', 'baseline') AS role
    FROM final
    WHERE attention IN ($candidate, $baseline) AND params > 0 AND status = 'done'
    ORDER BY source, context, params, size, role, seed
"""

AXIS = "budget"

THRESHOLD = 0.01
"""Difference of slopes: a quarter of the typical slope of 0.04 between 124M and 774M. Over this
range it changes the gap between the attentions by 2 % of the loss."""


def judge(rows: DataFrame) -> Judgement:
    slopes = {}
    means = rows.groupby(["context", "size", "params", "role"]).loss.mean().unstack("role")
    means = means.reindex(columns=["candidate", "baseline"]).dropna().reset_index()
    for context, part in means.groupby("context"):
        if part.params.nunique() > 1:
            places = [(size, int(context)) for size in part["size"]]
            slopes[int(context)] = _contrasts.gap_slope(places, np.log(part.params))
    logs = rows.assign(loss=np.log(rows.loss))
    labels = {f"{context:,}": weights for context, weights in slopes.items()}
    found = _contrasts.estimate(logs, labels, unit=float(rows.loss.mean()))
    if not found:
        return untested("No context has final losses of both attentions at two sizes.")
    verdict, noise = _contrasts.within(found.values(), -THRESHOLD, THRESHOLD)
    said = ", ".join(f"{one.value:+.3f} at {context}" for context, one in found.items())
    used = rows.loc[rows.context.isin(list(slopes))]
    return Judgement(
        verdict=verdict, number=max((one.value for one in found.values()), key=abs),
        rests_on=points(used),
        why=f"Slopes differ by {said} tokens (threshold {THRESHOLD:g}); {noise}.",
    )  # fmt: skip
