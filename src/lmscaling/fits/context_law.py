"""The best training context of each size.

A short context withholds text that the model could use, a long one leaves fewer updates in the same
time, so the final loss has a minimum. A parabola in ``ln T`` through the points around the lowest
loss estimates it, if it is bracketed (``parabola``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lmscaling.fits import parabola, uncertainty
from lmscaling.fits.isotime import replicate_means
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
    """Nats per token; further seeds repeat a context."""
    cell: Iterable | None = None
    """Label of the cell of each run; runs of a cell differ in their seed only. By default the runs
    of one context are a cell."""


def fit(
    sizes: Mapping[str, Losses], noise: Noise = STATED, count: int = uncertainty.REPLICATES
) -> dict[str, Optimum]:
    """The best context of each size, in tokens."""
    optima = {}
    for name, losses in sizes.items():
        context, loss = (np.asarray(v, dtype=float) for v in (losses.context, losses.loss))
        cell = context if losses.cell is None else losses.cell
        runs = Runs.from_labels(len(loss), range(len(loss)), cell)
        replicates = replicate_means(context[None], loss, runs, noise, count)
        optima[name], _ = parabola.fit(context, loss, replicates)
    return optima


def fit_group(points: Group, count: int = uncertainty.REPLICATES) -> Optimum:
    """The best context of one attention and size, from the losses at the end of the budget."""
    last = Group(tuple(point for point in points.points if point.share == 1))
    losses = Losses(last.column("context"), last.column("loss"))
    return fit({"size": losses}, count=count)["size"]
