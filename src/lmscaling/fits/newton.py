"""Many small least-squares problems at once: damped Newton steps, one row of the batch a problem.

A bootstrap fits the same few parameters a thousand times. One after the other that is a minute;
here all fits of a batch step together (Levenberg-Marquardt: Gauss-Newton's Hessian, its diagonal
enlarged while steps fail), and a row that is done leaves the batch.

Legend: ``R`` rows of the batch, ``K`` parameters of each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Objective = Callable[[NDArray, NDArray], tuple[NDArray, NDArray, NDArray]]
"""From parameters ``[R, K]`` and the numbers of their rows ``[R]`` to cost ``[R]``, gradient
``[R, K]`` and Hessian ``[R, K, K]``, which may be Gauss-Newton's. Costs count in units in which 1
matters, as chi-squared does, or the tolerance means nothing (Besiroglu et al. 2024,
arXiv:2404.10102: a mean instead of a sum stopped the optimizer of the Chinchilla paper early)."""

STEPS = 200
TOLERANCE = 1e-9
"""Of what the next step promises to save: parameters are then within 3e-5 standard errors."""


@dataclass(frozen=True)
class Minima:
    """Where each row of the batch came to rest."""

    x_RK: NDArray
    cost_R: NDArray
    converged_R: NDArray
    """False where steps ran out: the row is no minimum."""


def minimize(
    objective: Objective, start_RK: NDArray, low: ArrayLike = -np.inf, high: ArrayLike = np.inf
) -> Minima:
    """The minima below the starts, within bounds (broadcast to the starts)."""
    x = np.array(start_RK, dtype=float)
    low, high = (np.broadcast_to(np.asarray(bound, dtype=float), x.shape) for bound in (low, high))
    x = np.clip(x, low, high)
    rows = np.arange(len(x))
    cost, gradient, hessian = objective(x, rows)
    final, damping, todo = cost.copy(), np.full(len(x), 1e-3), np.ones(len(x), dtype=bool)
    for _ in range(STEPS):
        step = _step(x[rows], gradient, hessian, damping[rows], low[rows], high[rows])
        promise = -(gradient * step).sum(axis=1)
        todo[rows] = promise > TOLERANCE
        going = todo[rows]
        rows, step, gradient, hessian = rows[going], step[going], gradient[going], hessian[going]
        if not len(rows):
            break
        tried = x[rows] + step
        new_cost, new_gradient, new_hessian = objective(tried, rows)
        better = new_cost <= final[rows]  # False for what is no number
        damping[rows] *= np.where(better, 0.2, 8.0)
        x[rows[better]], final[rows[better]] = tried[better], new_cost[better]
        gradient[better], hessian[better] = new_gradient[better], new_hessian[better]
    return Minima(x, final, ~todo)


def _step(
    x: NDArray, gradient: NDArray, hessian: NDArray, damping: NDArray, low: NDArray, high: NDArray
) -> NDArray:
    """The damped step, cut at the bounds; parameters that press against a bound stand still."""
    free = ~((x <= low) & (gradient > 0)) & ~((x >= high) & (gradient < 0))
    size = np.einsum("rkk->rk", hessian)
    # A parameter without effect has an empty row; its step is zero whatever stands there.
    scale = np.sqrt(np.maximum(size, 1e-12 * size.max(axis=1, keepdims=True)) + 1e-300)
    scaled = hessian / (scale[:, :, None] * scale[:, None, :])
    scaled *= free[:, :, None] & free[:, None, :]
    identity = np.eye(x.shape[1])
    scaled += identity * (damping[:, None] + ~free + 1e-12)[:, :, None]
    right = np.where(free, -gradient / scale, 0)
    step = np.linalg.solve(scaled, right[:, :, None])[:, :, 0] / scale
    return np.clip(x + step, low, high) - x
