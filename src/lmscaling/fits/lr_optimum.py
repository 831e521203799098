"""The optimal learning rate, if the tried rates bracket it.

With two rates on each side of it the optimum is that of ``optimum``: of a polynomial in the
logarithm of the rate, with the interval that the scatter of paired seeds gives. With one rate on a
side it is the vertex of the parabola through the lowest point and its two neighbours, whose error
is unknown, so it has no interval. If the lowest point is at the smallest or the largest rate, the
optimum has no estimate. Rates are given as ``lr_scale``, multiples of the rate that the study
assigns to the size.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import optimum, paired_losses
from lmscaling.fits.noise import Place
from lmscaling.fits.paired_losses import Scatter, Table
from lmscaling.fits.uncertainty import Interval

QUERY = """
    SELECT
        l.attention, l.size, l.context, l.lr / l.lr_scale AS study_lr, l.params, l.seed,
        l.lr_scale, l.val_loss
    FROM last_validation l
    WHERE l.status = 'done'
    ORDER BY l.attention DESC, l.params, l.size, l.context, l.seed, l.lr_scale
"""
"""Last validation losses of the runs that completed their budget."""

STATUSES = {
    "bracketed": "bracketed by two rates on each side",
    "thin": "one rate on one side of the optimum: no interval",
    "edge": "not bracketed (lowest at the edge)",
    "flat": "flat (at least three equal minima)",
    "refused": optimum.STATUSES["refused"],
    "refused_assumed": optimum.STATUSES["refused_assumed"],
    "too_few": "fewer than three rates are done",
    "untuned": "not tuned: one rate",
}


@dataclass(frozen=True, kw_only=True)
class LrOptimum:
    """The optimal rate of one attention, size and context; losses are means over seeds."""

    status: str
    """A key of ``STATUSES``; only ``bracketed`` and ``thin`` have an optimum."""
    tried: int = 0
    """Rates that are done with every seed."""
    left_out: int = 0
    """Runs that deviate from the others of their seed and rate, and were not used."""
    scale: float | None = None
    """The optimum as a multiple of the study's rate."""
    interval: Interval | None = None
    """Of ``scale``; only if it is ``bracketed``."""
    loss: float | None = None
    """The curve at the optimum, nats per token."""
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


@dataclass(frozen=True)
class Sweep:
    """The runs of one attention, size and context that differ in rate and seed."""

    x: NDArray
    """Rates with a loss for every seed, as multiples of the study's rate, ascending."""
    mean: NDArray
    """Mean losses over the seeds without a deviating run."""
    table: Table
    """The runs without those that deviate."""
    left_out: int

    @classmethod
    def from_losses(cls, scales: ArrayLike, losses: ArrayLike) -> "Sweep":
        """From ``scales [rates]`` and ``losses [seeds, rates]``. A missing loss is NaN. A rate
        without a loss for every seed is excluded: the means of different rates would otherwise be
        taken over different seeds."""
        x, y = np.asarray(scales, dtype=float), np.atleast_2d(np.asarray(losses, dtype=float))
        tried = np.isfinite(y).all(axis=0)
        x, y = x[tried], y[:, tried]
        seed, rate = (indices.ravel() for indices in np.indices(y.shape))
        table = Table.from_losses(x[rate], y.ravel(), seed)
        out = table.deviating()
        whole = np.delete(y, seed[out], axis=0)
        mean = (whole if len(whole) else y).mean(axis=0)
        return cls(x, mean, table.without(out), len(out))


def fit(sweep: Sweep, scatter: Scatter | None = None) -> LrOptimum:
    """The optimum, with an interval if the scatter of runs is known."""
    x, mean = sweep.x, sweep.mean
    if not len(x):
        return LrOptimum(status="too_few")
    interval = None
    status, scale, loss = _vertex(x, mean)
    if scale is not None and scatter:
        found = optimum.fit(sweep.table, scatter)
        if found.status in ("bracketed", "refused", "refused_assumed"):
            status, scale, loss, interval = found.status, found.at, found.loss, found.interval
    return LrOptimum(
        status=status,
        tried=len(x),
        left_out=sweep.left_out,
        scale=scale,
        interval=interval,
        loss=loss,
        lowest_scale=float(x[mean.argmin()]),
        lowest_loss=float(mean.min()),
        study_loss=float(mean[x == 1][0]) if 1 in x else None,
    )


def _vertex(scales: NDArray, loss: NDArray) -> tuple[str, float | None, float | None]:
    """Status, position and height of the vertex."""
    if len(scales) < 3:
        return "untuned" if len(scales) == 1 else "too_few", None, None
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
    return "thin", float(np.exp(at)), float(height)


@dataclass(frozen=True)
class Group:
    """The optimum of runs that differ in seed and learning rate only."""

    attention: str
    size: str
    context: int
    study_lr: float
    """The study's rate, ``lr_scale`` 1."""
    optimum: LrOptimum

    @property
    def rate(self) -> float | None:
        """The optimal rate."""
        return None if self.optimum.scale is None else self.optimum.scale * self.study_lr

    @property
    def interval(self) -> Interval | None:
        """Of ``rate``."""
        scales = self.optimum.interval
        if scales is None:
            return None
        low, high = (end and end * self.study_lr for end in (scales.low, scales.high))
        return Interval(low, high, scales.assumed)


def groups(rows: Iterable[tuple]) -> list[Group]:
    """The groups of the sizes and contexts at which an attention has two finished rates, from the
    rows of ``QUERY``. The others of this size and context are among them: they were not tuned."""
    losses: dict[tuple[str, str, int], dict[tuple[int, float], float]] = defaultdict(dict)
    study: dict[tuple[str, str, int], tuple[float, float]] = {}
    for attention, size, context, lr, params, seed, scale, loss in rows:
        losses[attention, size, context][seed, scale] = loss
        study[attention, size, context] = lr, params
    swept = {key[1:] for key, known in losses.items() if len({scale for _, scale in known}) > 1}
    sweeps = {
        key: Sweep.from_losses(*_matrix(known)) for key, known in losses.items() if key[1:] in swept
    }
    tables = {key: sweep.table for key, sweep in sweeps.items() if len(sweep.x)}
    places = {key: Place(study[key][1], key[2], key[0]) for key in tables}
    scatters = paired_losses.measure(tables, places)
    return [
        Group(*key, study[key][0], fit(sweep, scatters.get(key))) for key, sweep in sweeps.items()
    ]


def _matrix(known: dict[tuple[int, float], float]) -> tuple[list[float], list[list[float]]]:
    """Rates, and losses ``[seeds, rates]``."""
    seeds, scales = (sorted(set(values)) for values in zip(*known, strict=True))
    return scales, [[known.get((seed, scale), np.nan) for scale in scales] for seed in seeds]
