"""Batched minimization of many small least-squares problems by damped Newton steps.

All problems of a batch step together (Levenberg-Marquardt: a Gauss-Newton Hessian whose diagonal is
increased when a step fails), and converged rows leave the batch.

Legend: ``R`` rows of the batch (problems), ``K`` parameters of each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Objective = Callable[[NDArray, NDArray], tuple[NDArray, NDArray, NDArray]]
"""Maps parameters ``[R, K]`` and the indices ``[R]`` of their rows to cost ``[R]``, gradient ``[R,
K]`` and Hessian ``[R, K, K]``, which may be that of Gauss-Newton. The cost must be scaled such that
differences of 1 are significant, as for chi-squared: the tolerance is absolute (Besiroglu et al.
2024, arXiv:2404.10102: a mean instead of a sum stopped the optimizer of the Chinchilla paper
early)."""

STEPS = 200
TOLERANCE = 1e-9
"""Smallest predicted decrease of the cost: parameters are then within 3e-5 standard errors."""


@dataclass(frozen=True)
class Minima:
    """The minimum of each row of the batch."""

    x_RK: NDArray
    cost_R: NDArray
    converged_R: NDArray
    """False if the maximum number of steps was reached."""


def minimize(objective: Objective, start_RK: NDArray) -> Minima:
    """Minima reached from the starts."""
    x = np.array(start_RK, dtype=float)
    rows = np.arange(len(x))
    cost, gradient, hessian = objective(x, rows)
    final, damping, todo = cost.copy(), np.full(len(x), 1e-3), np.ones(len(x), dtype=bool)
    for _ in range(STEPS):
        step = _step(gradient, hessian, damping[rows])
        predicted = -(gradient * step).sum(axis=1)
        todo[rows] = predicted > TOLERANCE
        active = todo[rows]
        rows, step = rows[active], step[active]
        gradient, hessian = gradient[active], hessian[active]
        if not len(rows):
            break
        tried = x[rows] + step
        new_cost, new_gradient, new_hessian = objective(tried, rows)
        better = new_cost <= final[rows]  # False for NaN
        damping[rows] *= np.where(better, 0.2, 8.0)
        x[rows[better]], final[rows[better]] = tried[better], new_cost[better]
        gradient[better], hessian[better] = new_gradient[better], new_hessian[better]
    return Minima(x, final, ~todo)


def _step(gradient: NDArray, hessian: NDArray, damping: NDArray) -> NDArray:
    """The damped step; a parameter without effect does not move."""
    size = np.einsum("rkk->rk", hessian)
    # A parameter without effect has a row of zeros; the lower limit of its scale avoids 0 / 0.
    scale = np.sqrt(np.maximum(size, 1e-12 * size.max(axis=1, keepdims=True)) + 1e-300)
    scaled = hessian / (scale[:, :, None] * scale[:, None, :])
    scaled += np.eye(len(scale[0])) * (damping + 1e-12)[:, None, None]
    return np.linalg.solve(scaled, (-gradient / scale)[:, :, None])[:, :, 0] / scale
