"""The size that has the lowest loss at each compute along the curves of a study.

Where curves of several sizes are compared at equal FLOPs, each compute has a size whose loss is the
lowest. The sizes of this frontier are fitted by ``N*(C) = G C^a``, a straight line in logarithms. A
size that is the lowest at the edge of the compared range counts like the others, and neighbouring
points share their curves, so there is no interval: its coverage is not known.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 1.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

STATUSES = {
    "fitted": "at least three sizes are on the frontier",
    "too_few": "fewer than three sizes are on the frontier",
}
QUERY = """
    SELECT b.source, b.attention, b.context, params,
        list(v.tokens * flops_per_token ORDER BY v.tokens),
        list(val_loss ORDER BY v.tokens)
    FROM law_runs b JOIN validations v USING (run)
    WHERE source = 'measured' AND status = 'done' AND surviving AND val_loss IS NOT NULL
        AND v.tokens > 0
    GROUP BY b.source, b.attention, b.context, params, run ORDER BY run
"""
"""Parameters of each run that is done, with FLOPs and losses of its validations."""
FEWEST = 3
"""Sizes on the frontier."""
POINTS = 200
"""Computes, at equal ratios, at which curves are compared."""

Curve = tuple[float, NDArray, NDArray]
"""Parameters, FLOPs and losses."""


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The law of the frontier; it has numbers only if it is fitted."""

    formula: ClassVar[str] = "N*(C) = G C^a"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556, approach 1"
    status: str
    """A key of ``STATUSES``."""
    sizes: int = 0
    """Sizes on the frontier."""
    G: float | None = None
    """Best size at one FLOP."""
    a: float | None = None


def fit(curves: Iterable[Curve]) -> Frontier:
    """The frontier of curves, each with its parameters, its FLOPs and its losses there.

    A curve counts between its first and last point, with ln FLOPs as the scale between points; a
    compute counts if curves of at least three sizes reach it.
    """
    parts = [(size, np.log(flops), loss) for size, flops, loss in curves]
    if len({size for size, _, _ in parts}) < FEWEST:
        return Frontier(status="too_few")
    grid = np.linspace(min(x[0] for _, x, _ in parts), max(x[-1] for _, x, _ in parts), POINTS)
    losses = np.array([np.interp(grid, x, y, np.nan, np.nan) for _, x, y in parts])
    log_n = np.log([size for size, _, _ in parts])
    known = np.array([len({*log_n[np.isfinite(column)]}) >= FEWEST for column in losses.T])
    best = log_n[np.nanargmin(losses[:, known], axis=0)] if known.any() else np.array([])
    sizes = len(np.unique(best))
    if sizes < FEWEST:
        return Frontier(status="too_few", sizes=sizes)
    a, log_G = np.polyfit(grid[known], best, 1)
    return Frontier(status="fitted", sizes=sizes, G=float(np.exp(log_G)), a=float(a))


def fit_groups(rows: Iterable[tuple]) -> dict[tuple, Frontier]:
    """Frontiers by source, attention and context, from the rows of ``QUERY``."""
    found: dict[tuple, list[Curve]] = defaultdict(list)
    for *key, params, flops, losses in rows:
        found[tuple(key)].append((params, np.array(flops), np.array(losses)))
    return {key: fit(curves) for key, curves in found.items()}
