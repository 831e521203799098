"""A longer context slows down the first part of learning, with softmax and with linear attention.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the growth of the loss per doubling of the context at equal steps, for every size and
attention with at least three contexts: at a tenth of the steps of the shortest run of a size.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, series, untested

NUMBER = "growth of the loss per doubling, nats, mean; range: its interval, sizes and attentions"

QUERY = _contrasts.CURVES

AXIS = "updates"

THRESHOLD = 0.01
"""Nats per doubling, 1 % of perplexity."""

EARLY = 0.1
"""Share of the steps of the shortest run."""

FEWEST = 3
"""Contexts."""


def judge(rows: DataFrame) -> Judgement:
    losses = _contrasts.losses_at(rows, AXIS, ["size"], EARLY)
    growth = {}
    for (size, role), part in series(losses, ["size", "role"]):
        contexts = sorted(part.context.unique().tolist())
        if len(contexts) >= FEWEST:
            cells = [(size, context, role) for context in contexts]
            growth[f"{size} {{{role}}}"] = _contrasts.slope(cells, np.log2(contexts))
    found = _contrasts.estimate(losses, growth)
    if len({label.split()[-1] for label in found}) < 2:
        return untested(f"Curves of both attentions at {FEWEST} contexts are missing.")
    at = losses.groupby("size", sort=False).end.max()
    return _contrasts.judge_mean(
        losses, growth, "Nats per doubling: "
        f"{', '.join(f'{label} {one.value:.3f}' for label, one in found.items())}, after "
        f"{', '.join(f'{n:,.0f} steps ({size})' for size, n in at.items())}",
        low=THRESHOLD,
    )  # fmt: skip
