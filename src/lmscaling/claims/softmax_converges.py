"""From 1,024 tokens on, softmax reaches a similar loss at all contexts in the end, and linear
attention does not.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 5 (Learning
Performance).

Judged by the range of the losses over contexts of at least 1,024 tokens at equal updates, at every
size with three or more of them: where the run of the size with the fewest updates ends. The post
excludes no longer context. What the ranges are without the context that had the fewest updates,
and the end of which may have come too early, is told beside it.
"""

from itertools import combinations
from typing import Any

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

SHORTEST = 1024
"""Tokens, from which the claim is made."""


def judge(rows: DataFrame) -> Judgement:
    long = rows.loc[rows.context >= SHORTEST]
    losses = _complete(_contrasts.losses_at(long, AXIS, ["size"]))
    if losses.empty:
        return untested(
            f"No size has curves of both attentions at {FEWEST} contexts of at least "
            f"{SHORTEST:,} tokens."
        )
    found = {
        (size, role): list(_contrasts.estimate(part, _pairs(part)).values())
        for (size, role), part in series(losses, ["size", "role"])
    }
    softmax = [one for (_, role), part in found.items() if role == "baseline" for one in part]
    linear = [part for (_, role), part in found.items() if role == "candidate"]

    def at(s: float | None) -> str:
        # Linear attention agrees with the claim where a pair of contexts differs.
        inverse = {"holds": "fails", "fails": "holds", "not tested": "not tested"}
        apart = [inverse[_contrasts.decide(part, -THRESHOLD, THRESHOLD, s)] for part in linear]
        return overall([_contrasts.decide(softmax, -THRESHOLD, THRESHOLD, s), *apart])

    verdict, noise = _contrasts.over_noise(
        [*softmax, *(one for part in linear for one in part)], at, softmax, -THRESHOLD, THRESHOLD
    )
    ends = (
        long.groupby(["size", "context", "role", "seed"])[AXIS].max().groupby(["size", "context"])
    )
    first = ends.min().groupby("size").idxmin()
    kept = [key not in set(first) for key in zip(long["size"], long.context, strict=True)]
    shorter = _complete(_contrasts.losses_at(long.loc[kept], AXIS, ["size"]))
    without = f" Without the context of fewest updates: {_ranges(shorter)}." if len(shorter) else ""
    return Judgement(
        verdict=verdict, number=float(_range(losses).xs("baseline", level="role").max()),
        rests_on=points(losses),
        why=f"Ranges over contexts, {{baseline}} and {{candidate}}: {_ranges(losses)} nats "
        f"(threshold {THRESHOLD:g}); {noise}.{without}",
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


def _range(losses: DataFrame) -> Any:
    means = losses.groupby(["size", "role", "context"], sort=False).loss.mean()
    spans = means.groupby(["size", "role"], sort=False)
    return spans.max() - spans.min()


def _ranges(losses: DataFrame) -> str:
    spans = _range(losses).unstack("role")
    return "; ".join(
        f"{size} {baseline:.3f} and {candidate:.3f}"
        for size, baseline, candidate in spans[["baseline", "candidate"]].itertuples(name=None)
    )
