"""The loss gap of linear attention to softmax grows with the context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the growth of the gap, linear minus softmax, per doubling of the context at equal steps,
at every size with at least five contexts. Both losses are those at the end of the run with fewer
steps. The post compares learning apart from speed and names no other axis; the growth at equal
hours, where softmax has had fewer steps at long contexts, is told beside it.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, untested

NUMBER = "growth of the gap per doubling, nats, mean over sizes; range: its interval, and the sizes"

QUERY = _contrasts.CURVES

AXIS = "updates"

THRESHOLD = 0.01
"""Nats per doubling: from 1,024 to 65,536 tokens the gap grows by 6 % of perplexity, two thirds of
the gap of published runs at 1,024 tokens."""

FEWEST = 5
"""Contexts. A line through fewer shows little of a trend."""


def judge(rows: DataFrame) -> Judgement:
    losses = _contrasts.losses_at(rows, AXIS, ["size", "context"])
    growth = _growth(losses)
    found = _contrasts.estimate(losses, growth)
    if not found:
        return untested(f"No size has curves of both attentions at {FEWEST} contexts.")
    hours = _contrasts.losses_at(rows, "hours", ["size", "context"])
    in_time = _contrasts.estimate(hours, {size: growth[size] for size in found})
    parts = [f"{size} {one.value:.3f} ({_ends(losses, size)})" for size, one in found.items()]
    return _contrasts.judge_mean(
        losses, growth, f"Nats per doubling at equal steps: {'; '.join(parts)}", low=THRESHOLD,
        also=" At equal hours: "
        f"{', '.join(f'{size} {one.value:.3f}' for size, one in in_time.items())}.",
    )  # fmt: skip


def _growth(losses: DataFrame) -> dict[str, dict[_contrasts.Cell, float]]:
    """By size the slope of the gap against log2(context)."""
    growth = {}
    for size, part in losses.groupby("size", sort=False):
        both = part.groupby("context").role.nunique()
        contexts = both[both == 2].index.tolist()
        if len(contexts) >= FEWEST:
            places = [(str(size), context) for context in contexts]
            growth[str(size)] = _contrasts.gap_slope(places, np.log2(contexts))
    return growth


def _ends(losses: DataFrame, size: str) -> str:
    """The gaps of a size at its shortest and its longest context."""
    own = losses.loc[losses["size"] == size]
    wide = own.pivot_table(index="context", columns="role", values="loss").dropna()
    gaps = [
        f"{loss['candidate'] - loss['baseline']:.3f} at {context:,}"
        for context, loss in wide.iloc[[0, -1]].to_dict("index").items()
    ]
    return f"gap {' and '.join(gaps)} tokens"
