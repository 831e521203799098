"""The surface ``L(N, D)`` as Hoffmann et al. fitted it: the check of ``loss_surface``.

The Huber loss (delta 1e-3) of ``ln L - LSE(a - alpha ln N, b - beta ln D, e)`` is summed over
the points and minimized by L-BFGS from a grid of starts; ``A``, ``B``, ``E`` are the exponentials.
Points far off count by their distance, not its square, so the two fits differ where a few points
spoil one of them. Source: arXiv:2203.15556, appendix D.2; the sum, the units and the tolerance:
Besiroglu et al. 2024, arXiv:2404.10102.

Legend: ``R`` rows (starts, replicates), ``n`` points, ``K = 5`` parameters ``a, b, e, alpha,
beta``.
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
"""L-BFGS goes down from the lowest so many starts."""
OPTIONS = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-14, "gtol": 1e-8}


@dataclass(frozen=True)
class Surfaces:
    """The best parameters of each row."""

    theta_RK: NDArray
    cost_R: NDArray
    """Huber losses in units of delta^2 / 2: 1 is one point off by delta."""
    converged_R: NDArray

    def named(self) -> dict[str, NDArray]:
        """The parameters of each row, and ``a``, the exponent of the compute-optimal size."""
        a, b, e, alpha, beta = self.theta_RK.T
        named = {"E": np.exp(e), "A": np.exp(a), "B": np.exp(b), "alpha": alpha, "beta": beta}
        return named | {"a": beta / (alpha + beta)}


def fit(log_N: NDArray, log_D: NDArray, log_L: NDArray) -> Surfaces:
    """The lowest minimum of one study, ``[1, K]``. Cost: a third of a second for 20 points."""
    starts = np.array(STARTS, dtype=float)
    cost, _, _ = objective(starts, np.tile(log_L, (len(starts), 1)), log_N, log_D)
    # Measured from the middle of the points, a and alpha hardly depend on each other, which saves
    # L-BFGS thousands of steps through a narrow valley.
    shift = np.eye(5)
    shift[0, 3], shift[1, 4] = -log_N.mean(), -log_D.mean()
    x, y = log_N - log_N.mean(), log_D - log_D.mean()

    def one(theta: NDArray) -> tuple[float, NDArray]:
        value, gradient, _ = objective(theta[None], log_L[None], x, y)
        return float(value[0]), gradient[0]

    lowest = starts[np.argsort(cost, kind="stable")[:DESCENTS]] @ shift.T
    found = [minimize(one, s, jac=True, method="L-BFGS-B", options=OPTIONS).x for s in lowest]
    ended = refit(x, y, np.tile(log_L, (len(found), 1)), np.array(found))
    best = [int(ended.cost_R.argmin())]
    theta = ended.theta_RK[best] @ np.linalg.inv(shift).T
    return Surfaces(theta, ended.cost_R[best], ended.converged_R[best])


def refit(log_N: NDArray, log_D: NDArray, log_L_Rn: NDArray, start_RK: NDArray) -> Surfaces:
    """The minima below the starts, by Newton's steps: of replicates, and where L-BFGS ended."""

    def rows(theta: NDArray, which: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        return objective(theta, log_L_Rn[which], log_N, log_D)

    found = newton.minimize(rows, start_RK)
    return Surfaces(found.x_RK, found.cost_R, found.converged_R)


def unfinished(theta_K: NDArray, log_N: NDArray, log_D: NDArray, log_L: NDArray) -> float:
    """What is still to be gained below ``theta_K``, in units of delta^2 / 2: 0 at a minimum, and
    more than 1 if the optimizer stopped so early that a point's error went by unseen."""
    cost, _, _ = objective(theta_K[None], log_L[None], log_N, log_D)
    return float(cost[0] - refit(log_N, log_D, log_L[None], theta_K[None]).cost_R[0])


def values(theta_RK: NDArray, log_N: NDArray, log_D: NDArray) -> NDArray:
    """Logarithms of the losses, ``[R, n]``."""
    return _parts(theta_RK, log_N, log_D)[0]


def objective(
    theta_RK: NDArray, log_L_Rn: NDArray, log_N: NDArray, log_D: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Summed Huber loss, its gradient, and the Hessian of the reweighted squares above it."""
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
