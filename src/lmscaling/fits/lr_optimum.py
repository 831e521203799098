"""The optimal learning rate, if the tried rates bracket it.

Near its minimum the loss is a parabola in the logarithm of the rate; the parabola through the
lowest point and its two neighbours estimates the optimum. If the lowest point is at the smallest or
the largest rate, the optimum is not bracketed and has no estimate. Rates are given as ``lr_scale``,
multiples of the rate that the study assigns to the size.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

QUERY = """
    SELECT
        l.attention, l.size, l.context, l.lr / l.lr_scale AS study_lr,
        12 * s.n_layer * s.d_model * s.d_model AS n, l.params, l.seed, l.lr_scale, l.val_loss
    FROM last_validation l JOIN status s USING (run)
    WHERE l.status = 'done'
    ORDER BY l.attention DESC, l.params, l.size, l.context, l.seed, l.lr_scale
"""
"""Last validation losses of the runs that completed their budget; ``n`` is ``N`` of a law of rates,
see ``config/lr_law.py``."""

STATUSES = {
    "bracketed": "bracketed",
    "edge": "not bracketed (lowest at the edge)",
    "flat": "flat (at least three equal minima)",
    "too_few": "fewer than three rates are done",
}


@dataclass(frozen=True, kw_only=True)
class LrOptimum:
    """The optimal rate of one attention, size and context; losses are means over seeds."""

    formula: ClassVar[str] = "loss = a + b (ln lr - ln lr_optimum)^2"
    status: str
    """A key of ``STATUSES``; only ``bracketed`` has an optimum."""
    scale: float | None = None
    """The optimum as a multiple of the study's rate."""
    loss: float | None = None
    """The parabola at the optimum, nats per token."""
    low: float | None = None
    """Smallest optimum of a single seed. None if there is one seed, or if a seed does not bracket
    its optimum."""
    high: float | None = None
    """Largest optimum of a single seed."""
    lowest_scale: float | None = None
    """The tried rate with the lowest loss; None if no rate is done."""
    lowest_loss: float | None = None
    """The loss at ``lowest_scale``."""
    study_loss: float | None = None
    """The loss at the study's rate; None if it was not tried."""

    @property
    def gain(self) -> float | None:
        """Loss at the study's rate minus that at the optimum, or at the best tried rate."""
        best = self.lowest_loss if self.loss is None else self.loss
        return None if best is None or self.study_loss is None else self.study_loss - best


def fit(scales: ArrayLike, losses: ArrayLike) -> LrOptimum:
    """The optimum from ``scales [rates]``, ascending, and ``losses [seeds, rates]``.

    A missing loss is NaN. A rate without a loss for every seed is excluded: the means of different
    rates would otherwise be taken over different seeds.
    """
    x, y = np.asarray(scales, dtype=float), np.atleast_2d(np.asarray(losses, dtype=float))
    tried = np.isfinite(y).all(axis=0)
    x, y = x[tried], y[:, tried]
    if not len(x):
        return LrOptimum(status="too_few")
    mean = y.mean(axis=0)
    status, scale, loss = _vertex(x, mean)
    low, high = _range(x, y) if scale is not None else (None, None)
    return LrOptimum(
        status=status,
        scale=scale,
        loss=loss,
        low=low,
        high=high,
        lowest_scale=float(x[mean.argmin()]),
        lowest_loss=float(mean.min()),
        study_loss=float(mean[x == 1][0]) if 1 in x else None,
    )


def _vertex(scales: NDArray, loss: NDArray) -> tuple[str, float | None, float | None]:
    """Status, position and height of the vertex."""
    if len(scales) < 3:
        return "too_few", None, None
    lowest = np.flatnonzero(loss == loss.min())
    if len(lowest) > 2:
        return "flat", None, None
    inner = lowest[(lowest > 0) & (lowest < len(scales) - 1)]
    if not len(inner):
        return "edge", None, None
    three = slice(inner[0] - 1, inner[0] + 2)
    x, y = np.log(scales[three]), loss[three]
    left, right = np.diff(y) / np.diff(x)  # Newton's form of the parabola
    bend = (right - left) / (x[2] - x[0])
    at = (x[0] + x[1]) / 2 - left / (2 * bend)
    height = y[0] + left * (at - x[0]) + bend * (at - x[0]) * (at - x[1])
    return "bracketed", float(np.exp(at)), float(height)


def _range(scales: NDArray, losses: NDArray) -> tuple[float, float] | tuple[None, None]:
    """Smallest and largest optimum of single seeds, if there are several and all have one."""
    optima = [_vertex(scales, loss)[1] for loss in losses]
    known = [scale for scale in optima if scale is not None]
    return (min(known), max(known)) if len(known) == len(optima) > 1 else (None, None)


@dataclass(frozen=True)
class Group:
    """The optimum of runs that differ in seed and learning rate only."""

    attention: str
    size: str
    context: int
    study_lr: float
    """The study's rate, ``lr_scale`` 1."""
    optimum: LrOptimum


def groups(rows: Iterable[tuple]) -> list[Group]:
    """The groups with at least two finished rates, from the rows of ``QUERY``."""
    losses: dict[tuple[str, str, int], dict[tuple[int, float], float]] = defaultdict(dict)
    study_lr: dict[tuple[str, str, int], float] = {}
    for attention, size, context, lr, seed, scale, loss in rows:
        losses[attention, size, context][seed, scale] = loss
        study_lr[attention, size, context] = lr
    groups = []
    for key, known in losses.items():
        seeds, scales = (sorted(set(values)) for values in zip(*known, strict=True))
        if len(scales) > 1:
            table = [[known.get((seed, scale), np.nan) for scale in scales] for seed in seeds]
            groups.append(Group(*key, study_lr[key], fit(scales, table)))
    return groups
