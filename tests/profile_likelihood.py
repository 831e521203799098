"""Profile-likelihood intervals of a loss surface, an independent reference for the bootstrap.

One parameter is held fixed while all others are fitted again; the values at which chi-squared rises
by 3.84 bound the 95 % interval (Wilks 1938). They need no simulation, and are exact if the model is
linear in a transform of its parameters.

Legend: ``R`` rows (studies), ``K = 1 + 2 J`` parameters ``E, ln c_j, g_j``.
"""

import numpy as np
from numpy.typing import NDArray

from lmscaling.fits import loss_surface, newton, powers
from lmscaling.fits.loss_surface import PARAMETERS, RISE, LossSurface
from lmscaling.fits.powers import EXPONENTS, Fitted, Powers
from lmscaling.fits.uncertainty import Interval, Runs

DOUBLINGS = 12
SECANTS = 5
"""The root of the rise is nearly linear in the value: the end is then known to 1e-3 of it."""


def intervals(found: LossSurface, N, D, loss, trunk=None, cell=None) -> dict[str, Interval]:
    """By ``PARAMETERS``, under the noise of the surface ``found``."""
    runs = Runs.from_labels(len(loss), trunk, cell)
    model, minimum = loss_surface.search(N, D, loss, runs, found.noise)
    made = {}
    for name, which in zip(PARAMETERS, (0, 1, 2, 3, 4, "share"), strict=True):
        ends = interval(model, loss[None], minimum, which)[0]
        ends = np.exp(ends) if name in ("A", "B") else ends
        made[name] = Interval(*(float(end) if np.isfinite(end) else None for end in ends))
    return made


def interval(model: Powers, y_Rn: NDArray, fitted: Fitted, which: int | str) -> NDArray:
    """``[R, 2]`` ends of one parameter, by its place in ``E, ln c_j, g_j``, or of ``"share"``, the
    part ``g_2 / (g_1 + g_2)``. Coefficients are in the units of ``x`` and positive in every row. An
    end beyond a bound of the fit is infinite.
    """
    best = np.concatenate([fitted.c_RP[:, :1], np.log(fitted.c_RP[:, 1:]), fitted.g_RJ], axis=1)
    side = np.repeat([-1.0, 1.0], len(best))  # both ends are searched together
    row = np.tile(np.arange(len(best)), 2)
    frame = _Frame(model, (y_Rn @ model.whiten_nn.T)[row], which)
    at, rest = frame.split(best[row])
    ends = _ends(frame, fitted.chi2_R[row], at, rest, side * frame.spread(best[row]))
    return ends.reshape(2, -1).T


class _Frame:
    """The model with one coordinate held: parameters are ``matrix(value) rest + shift(value)``."""

    def __init__(self, model: Powers, y_Rn: NDArray, which: int | str) -> None:
        self.model, self.y_Rn = model, y_Rn
        self.share = which == "share"
        count = len(model.log_x_Jn)
        self.held = 2 * count if self.share else int(which)
        self.coefficient = 1 <= self.held <= count
        low = np.array([0.0, *[-np.inf] * count, *[EXPONENTS[0]] * count])
        high = np.array([np.inf, *[np.inf] * count, *[EXPONENTS[1]] * count])
        self.least, self.most = (0, 1) if self.share else (low[self.held], high[self.held])
        self.low, self.high = np.delete(low, self.held), np.delete(high, self.held)
        if self.share:
            self.high[-1] *= 2  # the sum of two exponents

    def split(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        """The held coordinate and the others; beside a share the other is the sum."""
        theta = theta.copy()
        if self.share:
            total = theta[:, -2] + theta[:, -1]
            theta[:, -1] /= total
            theta[:, -2] = total
        value = theta[:, self.held]
        if self.coefficient:
            value = value + theta[:, self._exponent] * self._centre
        return value, np.delete(theta, self.held, axis=1)

    @property
    def _exponent(self) -> int:
        """Place of the exponent that goes with the held coefficient."""
        return self.held + len(self.model.centre_J)

    @property
    def _centre(self) -> float:
        return self.model.centre_J[self.held - 1]

    def embed(self, value: NDArray) -> tuple[NDArray, NDArray]:
        count = self.low.size + 1
        matrix = np.delete(np.eye(count), self.held, axis=1)
        matrix = np.repeat(matrix[None], len(value), axis=0)
        shift = np.zeros((len(value), count))
        if self.share:
            matrix[:, -2, -1], matrix[:, -1, -1] = 1 - value, value
        else:
            shift[:, self.held] = value
        if self.coefficient:
            matrix[:, self.held, self._exponent - 1] = -self._centre
        return matrix, shift

    def spread(self, theta: NDArray) -> NDArray:
        """A standard error by the Hessian, where the search for an end begins."""
        _, _, hessian = powers.full_objective(self.model, self.y_Rn, theta)
        slope = np.zeros_like(theta)
        if self.share:
            first, second = theta[:, -2], theta[:, -1]
            slope[:, -2:] = np.stack([-second, first], axis=1) / (first + second)[:, None] ** 2
        else:
            slope[:, self.held] = 1
        if self.coefficient:
            slope[:, self._exponent] = self._centre
        inverse = np.linalg.pinv(hessian / 2, hermitian=True)
        return np.sqrt(np.einsum("ri,rij,rj->r", slope, inverse, slope))

    def lowest(self, value: NDArray, rest: NDArray) -> tuple[NDArray, NDArray]:
        """Chi-squared with the coordinate held at ``value``, and where the others come to rest."""
        matrix, shift = self.embed(value)

        def held(u: NDArray, rows: NDArray) -> tuple[NDArray, NDArray, NDArray]:
            theta = np.einsum("rkl,rl->rk", matrix[rows], u) + shift[rows]
            cost, gradient, hessian = powers.full_objective(self.model, self.y_Rn[rows], theta)
            turned = matrix[rows].transpose(0, 2, 1)
            return cost, np.einsum("rlk,rk->rl", turned, gradient), turned @ hessian @ matrix[rows]

        found = newton.minimize(held, rest, self.low, self.high)
        return found.cost_R, found.x_RK


def _ends(frame: _Frame, lowest: NDArray, at: NDArray, rest: NDArray, step: NDArray) -> NDArray:
    """Where chi-squared has risen: steps double until it has, then secants."""
    target = np.sqrt(RISE)
    inner, outer = at.copy(), np.clip(at + 2 * step, frame.least, frame.most)
    known, low, high = rest.copy(), np.zeros(len(at)), np.zeros(len(at))
    for _ in range(DOUBLINGS):
        cost, moved = frame.lowest(outer, known)
        high = np.sqrt(np.maximum(cost - lowest, 0))
        short = (high < target) & (outer > frame.least) & (outer < frame.most)
        if not short.any():
            break
        inner[short], known[short], low[short] = outer[short], moved[short], high[short]
        outer[short] = np.clip(at + 2 * (outer - at), frame.least, frame.most)[short]
    beyond = high < target
    for _ in range(SECANTS):
        part = (target - low) / np.where(beyond, 1, high - low)
        middle = inner + part * (outer - inner)
        cost, moved = frame.lowest(middle, known)
        rise = np.sqrt(np.maximum(cost - lowest, 0))
        inside = rise < target
        inner[inside], known[inside], low[inside] = middle[inside], moved[inside], rise[inside]
        outer[~inside], high[~inside] = middle[~inside], rise[~inside]
    end = inner + (target - low) / np.where(beyond, 1, high - low) * (outer - inner)
    return np.where(beyond, np.sign(step) * np.inf, end)
