"""The best context to train at, one size after the other.

Short contexts hide what a model could use, long ones leave fewer updates in the same time; in
between lies the lowest loss. A parabola in ``ln T`` through the points around it gives the optimum,
if it is bracketed (``parabola``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lmscaling.fits import parabola, uncertainty
from lmscaling.fits.isotime import redrawn
from lmscaling.fits.parabola import STATUSES, Optimum
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import STATED, Noise, Runs

__all__ = ["STATUSES", "Losses", "fit"]


@dataclass(frozen=True)
class Losses:
    """Final losses of one size."""

    context: ArrayLike
    """Tokens."""
    loss: ArrayLike
    """Nats per token; seeds repeat the context."""
    cell: Iterable | None = None
    """Labels of the runs that differ in seed only; by default those of one context."""


def fit(
    sizes: Mapping[str, Losses], noise: Noise = STATED, count: int = uncertainty.REPLICATES
) -> dict[str, Optimum]:
    """The best context of each size, in tokens."""
    optima = {}
    for name, losses in sizes.items():
        context, loss = (np.asarray(v, dtype=float) for v in (losses.context, losses.loss))
        cell = context if losses.cell is None else losses.cell
        runs = Runs.of(len(loss), range(len(loss)), cell)
        drawn = redrawn(context[None], loss, runs, noise, count)
        optima[name], _ = parabola.fit(context, loss, drawn)
    return optima


def of(points: Group, count: int = uncertainty.REPLICATES) -> Optimum:
    """The best context of one attention and size at the end of the budget."""
    last = Group(tuple(point for point in points.points if point.share == 1))
    losses = Losses(last.column("context"), last.column("loss"))
    return fit({"size": losses}, count=count)["size"]
