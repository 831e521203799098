"""The loss decreases with the number of parameters at the same rate for linear attention and
softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the slope of ln(final loss) against ln(N), linear minus softmax, at every context at which
both attentions were trained at the same sizes, at least two; N counts parameters without
embeddings. The interval covers the noise of seeds.
"""

import numpy as np
from numpy.typing import NDArray
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

NUMBER = "difference of slopes farthest from 0, linear minus softmax, with its 95 % interval"

QUERY = """
    SELECT source, size, params, attention, context, avg(loss) AS loss
    FROM final
    WHERE attention IN ('linear', 'softmax') AND params > 0 AND status = 'done'
    GROUP BY ALL
    ORDER BY source, context, params, attention
"""

THRESHOLD = 0.01
"""Difference of slopes: a quarter of the typical slope of 0.04 between 124M and 774M. Over this
range it changes the gap between the attentions by 2 % of the loss."""


def judge(rows: DataFrame) -> Judgement:
    wide = rows.pivot_table(index=["context", "params"], columns="attention", values="loss")
    wide = wide.reindex(columns=["linear", "softmax"]).dropna().reset_index()
    wide = wide.groupby("context").filter(lambda part: part.params.nunique() > 1)
    if wide.empty:
        return untested("No context has final losses of both attentions at two sizes.")
    results = {}
    for context, part in wide.groupby("context"):
        N = part.params.to_numpy(float)
        linear, softmax = part.linear.to_numpy(), part.softmax.to_numpy()
        difference = _slopes(N, linear[None]) - _slopes(N, softmax[None])
        # Simulated together: two calls would draw the same noise for both attentions.
        losses = replicate_seeds(np.concatenate([linear, softmax]))
        replicates = _slopes(N, losses[:, : len(N)]) - _slopes(N, losses[:, len(N) :])
        results[int(str(context))] = float(difference[0]), uncertainty.interval(replicates)
    verdicts = {c: inside(i, -THRESHOLD, THRESHOLD) for c, (_, i) in results.items()}
    number, interval = max(results.values(), key=lambda item: abs(item[0]))
    differ = [f"{d:+.3f} at {c:,}" for c, (d, _) in results.items() if verdicts[c] == "fails"]
    agree = [f"{c:,}" for c in results if verdicts[c] == "holds"]
    unclear = [f"{c:,}" for c in results if verdicts[c] == "not tested"]
    parts = [f"differ by {', '.join(differ)}"] if differ else []
    parts += [f"agree within {THRESHOLD:g} at {', '.join(agree)}"] if agree else []
    parts += [f"are too uncertain at {', '.join(unclear)}"] if unclear else []
    used = rows.loc[rows.context.isin(list(results))]
    return Judgement(
        verdict=overall(verdicts.values()), number=number, interval=interval, rests_on=points(used),
        why=f"Slopes {'; they '.join(parts)} tokens.",
    )  # fmt: skip


def _slopes(N: NDArray, loss_Rn: NDArray) -> NDArray:
    """Slopes of ln(loss) against ln(N), ``[R]``."""
    centred = np.log(N) - np.log(N).mean()
    return np.log(loss_Rn) @ centred / (centred @ centred)
