"""The surface ``L(N, D)`` as Hoffmann et al. fitted it: the check of ``loss_surface``.

The Huber loss (delta 1e-3) of ``ln L - LSE(a - alpha ln N, b - beta ln D, e)`` is summed over the
points and minimized by L-BFGS from a grid of starts; ``A``, ``B``, ``E`` are the exponentials of
``a``, ``b``, ``e``. Beyond delta the loss is linear in the residual, so a few outliers affect this
fit less than least squares. Source: arXiv:2203.15556, appendix D.2; sum, units and tolerance:
Besiroglu et al. 2024, arXiv:2404.10102.

Legend: ``R`` rows (starts), ``n`` points, ``K = 5`` parameters ``a, b, e, alpha, beta``.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from lmscaling.fits import newton

DELTA = 1e-3
STARTS = tuple(
    product(
        range(0, 26, 5), range(0, 26, 5), np.arange(-1, 1.5, 0.5), *[np.arange(0, 2.5, 0.5)] * 2
    )
)
"""The 4,500 of the paper, in the units of ``N`` and ``D``."""
DESCENTS = 8
"""Number of starts, those with the lowest loss, from which L-BFGS descends."""
OPTIONS = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-14, "gtol": 1e-8}


@dataclass(frozen=True)
class Surfaces:
    """The best parameters of each row."""

    theta_RK: NDArray
    cost_R: NDArray
    """Huber losses in units of delta^2 / 2: a residual of delta adds 1."""
    converged_R: NDArray

    def named(self) -> dict[str, NDArray]:
        """The parameters of each row, and ``a``, the exponent of the compute-optimal size."""
        a, b, e, alpha, beta = self.theta_RK.T
        named = {"E": np.exp(e), "A": np.exp(a), "B": np.exp(b), "alpha": alpha, "beta": beta}
        return named | {"a": beta / (alpha + beta)}


def fit(log_N: NDArray, log_D: NDArray, log_L: NDArray) -> Surfaces:
    """The lowest minimum for one study, ``[1, K]``. Cost: 0.3 seconds for 20 points."""
    starts = np.array(STARTS, dtype=float)
    cost, _, _ = objective(starts, np.tile(log_L, (len(starts), 1)), log_N, log_D)
    # With centred logarithms a and alpha are nearly uncorrelated, which saves L-BFGS thousands of
    # steps along a narrow valley.
    shift = np.eye(5)
    shift[0, 3], shift[1, 4] = -log_N.mean(), -log_D.mean()
    x, y = log_N - log_N.mean(), log_D - log_D.mean()

    def one(theta: NDArray) -> tuple[float, NDArray]:
        value, gradient, _ = objective(theta[None], log_L[None], x, y)
        return float(value[0]), gradient[0]

    lowest = starts[np.argsort(cost, kind="stable")[:DESCENTS]] @ shift.T
    minima = [minimize(one, s, jac=True, method="L-BFGS-B", options=OPTIONS).x for s in lowest]
    refined = refit(x, y, np.tile(log_L, (len(minima), 1)), np.array(minima))
    best = [int(refined.cost_R.argmin())]
    theta = refined.theta_RK[best] @ np.linalg.inv(shift).T
    return Surfaces(theta, refined.cost_R[best], refined.converged_R[best])


def refit(log_N: NDArray, log_D: NDArray, log_L_Rn: NDArray, start_RK: NDArray) -> Surfaces:
    """Minima reached from the starts by Newton steps, to refine L-BFGS."""

    def rows(theta: NDArray, which: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        return objective(theta, log_L_Rn[which], log_N, log_D)

    minima = newton.minimize(rows, start_RK)
    return Surfaces(minima.x_RK, minima.cost_R, minima.converged_R)


def estimate(
    theta_RK: NDArray, log_L_Rn: NDArray, log_N: NDArray, log_D: NDArray, run_n: NDArray[np.intp]
) -> tuple[NDArray, NDArray]:
    """Parameters ``[R, 6]`` as ``E, ln A, ln B, ln alpha, ln beta, logit a``, and by how much each
    run moves them, ``[R, G, 6]``, in one step.

    The Huber loss is nearly that of absolute residuals: its curvature is averaged over a window as
    wide as a density estimate needs.
    """
    log_loss, (of_N, of_D, of_E) = _parts(theta_RK, log_N, log_D)
    residual = log_L_Rn - log_loss
    slope = np.stack([of_N, of_D, of_E, -of_N * log_N, -of_D * log_D], axis=2)
    n = residual.shape[1]
    spread = 1.4826 * np.median(np.abs(residual), axis=1, keepdims=True)
    window = np.maximum(spread * n**-0.2, DELTA)
    high, low = (np.clip(residual + side * window, -DELTA, DELTA) for side in (1, -1))
    curvature = ((high - low) / (2 * window)).mean(axis=1)[:, None, None]
    members = np.eye(run_n.max() + 1)[run_n]
    score = np.einsum("ng,rnk->rgk", members, np.clip(residual, -DELTA, DELTA)[..., None] * slope)
    own = np.einsum("ng,rnk,rnj->rgkj", members, slope, slope, optimize=True)
    own *= curvature[..., None]
    total = own.sum(axis=1)
    size = np.sqrt(np.einsum("rkk->rk", total) + 1e-300)
    outer = size[:, :, None] * size[:, None, :]
    bread = np.linalg.inv(total / outer + 1e-12 * np.eye(5)) / outer
    left = np.eye(5) * (1 + 1e-6) - own @ bread[:, None]
    moved = np.linalg.solve(left, score[..., None])[..., 0] @ bread
    a, b, e, alpha, beta = theta_RK.T
    value = np.stack([np.exp(e), a, b, np.log(alpha), np.log(beta), np.log(beta / alpha)], axis=1)
    gradient = np.zeros((len(theta_RK), 6, 5))
    gradient[:, 0, 2] = np.exp(e)
    gradient[:, 1, 0] = gradient[:, 2, 1] = 1
    gradient[:, 3, 3], gradient[:, 5, 3] = 1 / alpha, -1 / alpha
    gradient[:, 4, 4] = gradient[:, 5, 4] = 1 / beta
    return value, np.einsum("rqk,rgk->rgq", gradient, moved)


def values(theta_RK: NDArray, log_N: NDArray, log_D: NDArray) -> NDArray:
    """Logarithms of the losses, ``[R, n]``."""
    return _parts(theta_RK, log_N, log_D)[0]


def objective(
    theta_RK: NDArray, log_L_Rn: NDArray, log_N: NDArray, log_D: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Summed Huber loss, its gradient, and the Hessian of its iteratively reweighted squares."""
    log_loss, (of_N, of_D, of_E) = _parts(theta_RK, log_N, log_D)
    residual = log_loss - log_L_Rn
    slope = np.stack([of_N, of_D, of_E, -of_N * log_N, -of_D * log_D], axis=2)
    far = np.abs(residual)
    weight = 1 / np.maximum(far / DELTA, 1)
    huber = np.where(far <= DELTA, residual**2, DELTA * (2 * far - DELTA))
    scale = 2 / DELTA**2
    gradient = scale * np.einsum("rnk,rn->rk", slope, weight * residual)
    hessian = scale * (slope * weight[:, :, None]).transpose(0, 2, 1) @ slope
    return huber.sum(axis=1) / DELTA**2, gradient, hessian


def _parts(theta_RK: NDArray, log_N: NDArray, log_D: NDArray) -> tuple[NDArray, NDArray]:
    """The log-sum-exp, and the shares of its three terms."""
    a, b, e, alpha, beta = theta_RK.T[:, :, None]
    terms = np.stack([a - alpha * log_N, b - beta * log_D, e + 0 * log_N])
    top = terms.max(axis=0)
    exponentials = np.exp(terms - top)
    total = exponentials.sum(axis=0)
    return top + np.log(total), exponentials / total
