"""From 1,024 tokens on, softmax reaches a similar loss at all contexts in the end, and linear
attention does not.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the range of the losses over contexts of at least 1,024 tokens at equal steps, at every
size with three or more of them: where the run of the size with the fewest steps ends. The claim
is about the end of training, so a context at which a run has less than a quarter of the steps of
the longest run of its size is not comparable.
"""

from itertools import combinations

import numpy as np
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, overall, points, series, untested

NUMBER = "largest range of softmax over contexts, nats, without an interval"

QUERY = _contrasts.CURVES

AXIS = "updates"

THRESHOLD = 0.05
"""Nats: 5 % of perplexity, and a quarter of the difference between 124M and 355M at 1,024
tokens."""

FEWEST = 3
"""Contexts."""

ENOUGH = 0.25
"""Share of the steps of the longest run of a size. A run with a smaller one is two doublings
behind, and has not shown what it reaches in the end."""

SHORTEST = 1024
"""Tokens, from which the claim is made."""


def judge(rows: DataFrame) -> Judgement:
    long = rows.loc[rows.context >= SHORTEST]
    ends = long.groupby(["size", "context", "role", "seed"])[AXIS].max()
    shares = (ends / ends.groupby("size").transform("max")).groupby("context").min()
    early = shares.index[shares < ENOUGH].tolist()
    losses = _complete(_contrasts.losses_at(long.loc[~long.context.isin(early)], AXIS, ["size"]))
    if losses.empty:
        return untested(
            f"No size has comparable curves of both attentions at {FEWEST} contexts of at least "
            f"{SHORTEST:,} tokens."
        )
    found = {
        (size, role): list(_contrasts.estimate(part, _pairs(part)).values())
        for (size, role), part in series(losses, ["size", "role"])
    }
    softmax = [one for (_, role), part in found.items() if role == "baseline" for one in part]
    linear = [part for (_, role), part in found.items() if role == "candidate"]
    # Linear attention agrees with the claim where a pair of contexts differs.
    inverse = {"holds": "fails", "fails": "holds", "not tested": "not tested"}
    apart = [inverse[_contrasts.decide(part, -THRESHOLD, THRESHOLD)] for part in linear]
    verdict, noise = _contrasts.over_noise(
        [*softmax, *(one for part in linear for one in part)],
        overall([_contrasts.decide(softmax, -THRESHOLD, THRESHOLD), *apart]),
        softmax, -THRESHOLD, THRESHOLD,
    )  # fmt: skip
    means = losses.groupby(["size", "role", "context"], sort=False).loss.mean()
    ranges = means.groupby(["size", "role"], sort=False).agg(np.ptp).unstack("role")
    said = "; ".join(
        f"{size} {one['baseline']:.3f} and {one['candidate']:.3f}"
        for size, one in ranges.to_dict("index").items()
    )
    why = f"Ranges over contexts, {{baseline}} and {{candidate}}: {said} nats "
    why += f"(threshold {THRESHOLD:g}); {noise}."
    if early:
        at = ", ".join(f"{context:,}" for context in early)
        why += f" Not comparable at {at} tokens: too few steps."
    return Judgement(
        verdict=verdict, number=float(ranges.baseline.max()), rests_on=points(losses), why=why,
        scope=f"to {losses.context.max():,}" if early and verdict != "not tested" else "",
    )  # fmt: skip


def _complete(losses: DataFrame) -> DataFrame:
    """The sizes with both roles at enough contexts."""
    counts = losses.groupby(["size", "role"]).context.nunique().unstack().reindex(
        columns=["baseline", "candidate"]
    )  # fmt: skip
    return losses.loc[losses["size"].isin(counts.index[(counts >= FEWEST).all(axis=1)])]


def _pairs(losses: DataFrame) -> dict[str, dict[_contrasts.Cell, float]]:
    """The differences of every two contexts of a size and role."""
    size, role = losses["size"].iloc[0], losses.role.iloc[0]
    return {
        f"{a} and {b}": {(size, a, role): -1.0, (size, b, role): 1.0}
        for a, b in combinations(sorted(losses.context.unique().tolist()), 2)
    }
