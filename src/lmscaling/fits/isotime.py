"""The best size for a budget, and its growth with the budget.

At each budget a parabola in ``ln N`` estimates the best size, if it is bracketed (``parabola``).
The best sizes of all budgets are fitted by ``N*(t) = G t^p``. A run contributes to several budgets,
which therefore share its noise.

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
    "fitted": "at least three budgets bracket their optimum",
    "too_few": "fewer than three budgets bracket their optimum: no law",
}
FEWEST = 3
NEAR = 0.07
"""Largest relative difference between what a point spent and its budget. At this difference the
loss is off by 0.003 nats."""


@dataclass(frozen=True, kw_only=True)
class IsoTime:
    """Optima by budget and their power law; no law unless three optima are bracketed."""

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
    """Best sizes from points with identical budgets; ``trunk`` and ``cell`` as for a surface."""
    N, budget, loss = (np.asarray(values, dtype=float) for values in (N, budget, loss))
    runs = Runs.from_labels(len(loss), trunk, cell)
    replicates = replicate_means(np.stack([N, budget]), loss, runs, noise, count)
    optima, logs, budgets = {}, [], []
    for t in np.unique(budget):
        at = budget == t
        optima[float(t)], log_N_R = parabola.fit(N[at], loss[at], replicates[:, at])
        if optima[float(t)].status == "bracketed":
            budgets.append(np.log(t))
            logs.append(np.concatenate([[np.log(optima[float(t)].at)], log_N_R]))
    if len(budgets) < FEWEST:
        return IsoTime(status="too_few", optima=optima)
    with np.errstate(invalid="ignore"):  # replicates without an optimum have no exponent
        centred = np.array(budgets) - np.mean(budgets)
        exponents = centred @ np.array(logs) / (centred**2).sum()
    p = float(exponents[0])
    G = float(np.exp(np.mean([row[0] for row in logs]) - p * np.mean(budgets)))
    interval = uncertainty.interval(exponents[1:])
    return IsoTime(status="fitted", optima=optima, G=G, p=p, interval=interval)


def near(points: Group) -> Group:
    """The points that spent about as much as their budget."""
    return Group(tuple(p for p in points.points if abs(p.spent / p.budget - 1) <= NEAR))


def fit_group(points: Group, count: int = uncertainty.REPLICATES) -> IsoTime:
    """Best sizes of one attention at one context, for the budgets that its runs reached."""
    points = near(points)
    N, budget, loss = (points.column(name) for name in ("params", "budget", "loss"))
    return fit(N, budget, loss, trunk=points.trunks, cell=points.cells, count=count)


def replicate_means(x_Vn: NDArray, loss: NDArray, runs: Runs, stated: Noise, count: int) -> NDArray:
    """``[R, n]`` replicates of losses around the mean of all points with the same ``V`` variables,
    which are the columns of ``x_Vn``."""
    which = np.unique(x_Vn, axis=1, return_inverse=True)[1].ravel()
    mean = (np.bincount(which, loss) / np.bincount(which))[which]
    noise = runs.noise(loss - mean, stated)
    return uncertainty.replicates(mean, loss - mean, runs, noise, count)
