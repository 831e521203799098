"""With more parameters the loss falls alike with linear attention and with softmax.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

By the slope of the logarithm of the final loss over that of N (parameters without embeddings),
linear less softmax, at every context that both attentions were trained at with the same two sizes
or more. The interval is that of other seeds.
"""

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, redrawn, untested
from lmscaling.fits import uncertainty

NUMBER = "difference of the slopes farthest from 0, linear less softmax, with its interval"

QUERY = """
    SELECT source, size, params, attention, context, avg(loss) AS loss
    FROM final
    WHERE attention IN ('linear', 'softmax') AND params > 0 AND status = 'done'
    GROUP BY ALL
    ORDER BY source, context, params, attention
"""

THRESHOLD = 0.01
"""Difference of slopes: a quarter of the 0.04 that is usual between 124M and 774M. Over these sizes
it moves the gap between the attentions by 2 % of the loss."""


def judge(rows: DataFrame) -> Judgement:
    wide = rows.pivot_table(index=["context", "params"], columns="attention", values="loss")
    wide = wide.reindex(columns=["linear", "softmax"]).dropna().reset_index()
    wide = wide.groupby("context").filter(lambda part: part.params.nunique() > 1)
    if wide.empty:
        return untested("No context has final losses of both attentions at two sizes.")
    found = {}
    for context, part in wide.groupby("context"):
        N = part.params.to_numpy(float)
        difference = _slopes(N, part.linear.to_numpy()[None]) - _slopes(
            N, part.softmax.to_numpy()[None]
        )
        # One stream of noise for both attentions would give both the same seeds.
        drawn = redrawn(np.concatenate([part.linear, part.softmax]))
        spread = _slopes(N, drawn[:, : len(N)]) - _slopes(N, drawn[:, len(N) :])
        found[int(str(context))] = float(difference[0]), uncertainty.interval(spread)
    verdicts = {c: inside(i, -THRESHOLD, THRESHOLD) for c, (_, i) in found.items()}
    number, interval = max(found.values(), key=lambda item: abs(item[0]))
    apart = [f"{d:+.3f} at {c:,}" for c, (d, _) in found.items() if verdicts[c] == "fails"]
    agree = [f"{c:,}" for c in found if verdicts[c] == "holds"]
    unsure = [f"{c:,}" for c in found if verdicts[c] == "not tested"]
    parts = [f"differ by {', '.join(apart)}"] if apart else []
    parts += [f"agree within {THRESHOLD:g} at {', '.join(agree)}"] if agree else []
    parts += [f"may do either at {', '.join(unsure)}"] if unsure else []
    used = rows.loc[rows.context.isin(list(found))]
    return Judgement(
        verdict=overall(verdicts.values()), number=number, interval=interval, rests_on=points(used),
        why=f"Slopes {'; they '.join(parts)} tokens.",
    )  # fmt: skip


def _slopes(N: NDArray, loss_Rn: NDArray) -> NDArray:
    """Of ln loss on ln N, ``[R]``."""
    away = np.log(N) - np.log(N).mean()
    return np.log(loss_Rn) @ away / (away @ away)
