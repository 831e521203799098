"""The best size for a budget, and its growth with the budget.

At each budget the best size is estimated, if it is bracketed (``optimum``). The best sizes of all
budgets are fitted by ``N*(t) = G t^p``, a straight line in logarithms, with weights by the
variances of the best sizes. A run contributes to several budgets; the variance of ``p`` therefore
adds up what each run contributes over all budgets, with the covariance of budgets measured from
seeds. If the best sizes deviate from the line by more than their covariance allows, the law is
refused (F test, 5 %).

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 2, with hours in the place of FLOPs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lmscaling.fits import optimum, paired_losses
from lmscaling.fits.optimum import NEGLIGIBLE, OBJECTIVE, REFUSE, STARTS_SAID, Optimum
from lmscaling.fits.paired_losses import Scatter, Short, Table
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import Interval

__all__ = ["OBJECTIVE", "STARTS_SAID", "STATUSES", "IsoTime", "fit", "fit_groups"]

STATUSES = {
    "fitted": "at least three budgets determine their optimum",
    "too_few": "fewer than three budgets determine their optimum: no law",
    "refused": "refused: best sizes deviate from a power law by more than their errors",
    "unknown_schedule": optimum.STATUSES["unknown_schedule"],
}
FEWEST = 3
"""Budgets with a closed interval of their best size."""


@dataclass(frozen=True, kw_only=True)
class IsoTime:
    """Optima by budget and their power law; it has numbers only if it is fitted."""

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
    lack: float | None = None
    """p-value of the test of lack of fit."""
    left_out: tuple[str, ...] = ()
    """Runs that deviate from the others of their seed and size."""
    short: tuple[Short, ...] = ()


def fit(table: Table, budgets: Sequence[float], scatter: Scatter) -> IsoTime:
    """Best sizes at each budget and their growth. Cost: 10 milliseconds."""
    optima: dict[float, Optimum] = {}
    moves_rT = np.zeros_like(table.loss_rT)
    used = []
    for i, budget in enumerate(budgets):
        best, moves_rT[:, i] = optimum.fit_moves(table, scatter, i)
        optima[float(budget)] = best
        if best.interval is not None and np.isfinite(best.interval.width):
            used.append(i)
    if len(used) < FEWEST:
        return IsoTime(status="too_few", optima=optima)
    log_t = np.log([budgets[i] for i in used])
    log_n = np.log([float(optima[float(budgets[i])].at or 0) for i in used])
    covariance = scatter.joint(moves_rT)[np.ix_(used, used)]
    covariance += np.diag((NEGLIGIBLE**2 * moves_rT**2).sum(axis=0)[used])
    columns = np.stack([np.ones(len(used)), log_t], axis=1)
    weighted = columns / np.maximum(covariance.diagonal(), 1e-20)[:, None]
    operator = np.linalg.solve(weighted.T @ columns, weighted.T)
    remove = np.eye(len(used)) - columns @ operator
    left = remove @ log_n
    square = float(left @ np.linalg.pinv(remove @ covariance @ remove.T) @ left)
    lack = optimum.lack_of_fit(square, len(used) - 2, 1.0, scatter.spread)
    if lack is not None and lack < REFUSE:
        return IsoTime(status="refused", optima=optima, lack=lack)
    log_G, p = operator @ log_n
    contribution = np.zeros_like(moves_rT)
    contribution[:, used] = moves_rT[:, used] * operator[1]
    half = scatter.spread.quantile() * np.sqrt(scatter.variance(contribution))
    ranges = [best.interval for best in optima.values() if best.interval is not None]
    assumed = next((one.assumed for one in ranges if one.assumed is not None), None)
    return IsoTime(
        status="fitted",
        optima=optima,
        G=float(np.exp(log_G)),
        p=float(p),
        interval=Interval(float(p - half), float(p + half), assumed),
        lack=lack,
    )


def fit_groups(groups: Mapping[Any, Group]) -> dict[Any, IsoTime]:
    """Best sizes of each group of points, which are of one attention and context."""
    found: dict[Any, IsoTime] = dict.fromkeys(groups, IsoTime(status="unknown_schedule", optima={}))
    known = {key: group for key, group in groups.items() if group.schedule != "unknown"}
    prepared = paired_losses.prepare(known, "params")
    for key, (table, budgets, scatter, left_out, short) in prepared.items():
        law = fit(table, budgets, scatter)
        optima = {
            t: best if best.at is None else replace(best, moved=optimum.most_influential(table, i))
            for i, (t, best) in enumerate(law.optima.items())
        }
        found[key] = replace(law, optima=optima, left_out=left_out, short=short)
    return found
