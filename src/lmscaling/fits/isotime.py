"""The best size for a budget: loss against ``N`` at each budget, and how the optimum grows.

At every budget a parabola in ``ln N`` gives the best size, where it is bracketed (``parabola``);
over the budgets the best sizes follow ``N*(t) = G t^p``. A run contributes to all budgets, so its
noise is shared by them.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 2, with hours in the place of FLOPs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import parabola, uncertainty
from lmscaling.fits.parabola import Optimum
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import STATED, Interval, Noise, Runs

STATUSES = {
    "fitted": "three or more budgets have a bracketed optimum",
    "too_few": "fewer than three budgets have a bracketed optimum: no law",
}
FEWEST = 3
NEAR = 0.07
"""A run that spent so much less or more than a budget counts: its loss is off by 0.003 nats."""


@dataclass(frozen=True, kw_only=True)
class IsoTime:
    """Optima by budget and their law; no law unless enough are bracketed."""

    formula: ClassVar[str] = "N*(t) = G t^p"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556, approach 2"
    status: str
    """A key of ``STATUSES``."""
    optima: dict[float, Optimum]
    """By budget."""
    G: float | None = None
    """Best size at budget 1."""
    p: float | None = None
    interval: Interval | None = None
    """Of ``p``."""


def fit(
    N: ArrayLike,
    budget: ArrayLike,
    loss: ArrayLike,
    *,
    trunk: Iterable | None = None,
    cell: Iterable | None = None,
    noise: Noise = STATED,
    count: int = uncertainty.REPLICATES,
) -> IsoTime:
    """Best sizes from points that share budgets exactly; ``trunk``, ``cell`` as for a surface."""
    N, budget, loss = (np.asarray(values, dtype=float) for values in (N, budget, loss))
    drawn = redrawn(np.stack([N, budget]), loss, Runs.of(len(loss), trunk, cell), noise, count)
    optima, logs, budgets = {}, [], []
    for t in np.unique(budget):
        at = budget == t
        optima[float(t)], log_N_R = parabola.fit(N[at], loss[at], drawn[:, at])
        if optima[float(t)].status == "bracketed":
            budgets.append(np.log(t))
            logs.append(np.concatenate([[np.log(optima[float(t)].at)], log_N_R]))
    if len(budgets) < FEWEST:
        return IsoTime(status="too_few", optima=optima)
    with np.errstate(invalid="ignore"):  # a replicate without an optimum has no law either
        away = np.array(budgets) - np.mean(budgets)
        rising = away @ np.array(logs) / (away**2).sum()
    p = float(rising[0])
    G = float(np.exp(np.mean([row[0] for row in logs]) - p * np.mean(budgets)))
    interval = uncertainty.interval(rising[1:])
    return IsoTime(status="fitted", optima=optima, G=G, p=p, interval=interval)


def near(points: Group) -> Group:
    """The points that spent what their budget says."""
    return Group(tuple(p for p in points.points if abs(p.spent / p.budget - 1) <= NEAR))


def of(points: Group, count: int = uncertainty.REPLICATES) -> IsoTime:
    """Best sizes of an attention at a context, by the budgets that its points reach."""
    points = near(points)
    N, budget, loss = (points.column(name) for name in ("params", "budget", "loss"))
    return fit(N, budget, loss, trunk=points.trunks, cell=points.cells, count=count)


def redrawn(place: NDArray, loss: NDArray, runs: Runs, stated: Noise, count: int) -> NDArray:
    """``[R, n]`` replicates of losses around the means at each place (a column)."""
    which = np.unique(place, axis=1, return_inverse=True)[1].ravel()
    mean = (np.bincount(which, loss) / np.bincount(which))[which]
    noise = runs.noise(loss - mean, stated)
    return uncertainty.replicates(mean, loss - mean, runs, noise, count)
