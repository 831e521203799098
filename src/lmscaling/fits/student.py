"""The surface ``L(N, D)`` fitted to whole runs by a multivariate t distribution.

The points of a run, a trunk and its branches, share the effect ``b`` of its seed: ``y = L(N, D) + b
+ e``, with scales ``sigma`` of ``b`` and ``tau`` of ``e``. A multivariate t distribution of all
points of a run (Lange, Little and Taylor 1989) gives a run far from the others a small weight, as
a whole. Weighted least squares, weights and scales are repeated until they agree; both scales are
estimated by restricted maximum likelihood. ``inference`` has the standard errors and tests.

Legend: ``n`` points, ``G`` runs, ``K = 6`` parameters ``E, ln A, ln B, alpha, beta, ln g``
(coefficients at the centre of the points), ``p`` of them free.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, least_squares
from scipy.special import gammaln, xlogy

NU = 4.0
"""Degrees of freedom of the t distribution of runs with several points."""
NUS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
"""Those from which the likelihood chooses where every point is a run of its own."""
MANY = 50
"""Runs of one point from which ``nu`` can be estimated."""
EXPONENTS = (0.02, 3.0)
"""Bounds. Published exponents of losses lie between 0.05 and 0.8; a power with exponent 0.02 halves
in 35 doublings, which no study can distinguish from a logarithm."""
GRID = np.geomspace(0.06, 2.0, 11)
STEPS, FEW = 200, 4
"""Most repetitions, and those after which the best of several starts goes on alone."""
LEAST = 1e-12
"""Smallest variance, nats^2."""
FORMS = {"sum": 5, "interaction": 6}
"""Free parameters of ``E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g``; the sum has g = 1."""
LARGEST, LARGEST_LOG_G = 50.0, 6.0
"""Numbers beyond which a term, in ln nats, and ``ln g`` do not grow, against overflow."""


@dataclass(frozen=True)
class Design:
    """Where the points of a study are."""

    x_n: NDArray
    """``ln N`` minus ``centre[0]``."""
    z_n: NDArray
    """``ln D`` minus ``centre[1]``."""
    centre: tuple[float, float]
    run_n: NDArray[np.intp]
    """Runs, numbered from 0."""
    cell_G: NDArray[np.intp]
    """The cell of each run; runs of a cell differ in their seed only."""

    @classmethod
    def from_points(cls, N: ArrayLike, D: ArrayLike, run: ArrayLike, cell: ArrayLike) -> "Design":
        """From points of runs and cells numbered from 0."""
        x, z = (np.log(np.asarray(values, dtype=float)) for values in (N, D))
        centre = float(x.mean()), float(z.mean())
        first = np.unique(run, return_index=True)[1]
        return cls(
            x - centre[0], z - centre[1], centre, np.asarray(run), np.asarray(cell)[first]
        )  # fmt: skip

    @property
    def runs(self) -> int:
        return len(self.cell_G)

    @cached_property
    def size_G(self) -> NDArray:
        """Points of each run."""
        return np.bincount(self.run_n)

    @cached_property
    def members_Gn(self) -> NDArray:
        """1 where a run has a point."""
        return (self.run_n == np.arange(self.runs)[:, None]).astype(float)

    def sums(self, a_n: NDArray) -> NDArray:
        """Sums ``[G]`` or ``[G, p]`` over the points of each run."""
        return self.members_Gn @ a_n

    def means(self, a_n: NDArray) -> NDArray:
        """Means ``[G]`` or ``[G, p]`` over the points of each run."""
        return (self.sums(a_n).T / self.size_G).T


@dataclass(frozen=True)
class Noise:
    """Scales of points and runs."""

    design: Design
    tau2: float
    sigma2: float

    @property
    def mean_G(self) -> NDArray:
        """Squared scale of the mean of each run, times the number of its points."""
        return self.tau2 + self.design.size_G * self.sigma2

    def whiten(self, a_n: NDArray) -> NDArray:
        """Independent numbers of scale 1 from residuals ``[n]`` or slopes ``[n, p]``."""
        mean = self.design.means(a_n)
        other = (mean.T / np.sqrt(self.mean_G)).T - mean / np.sqrt(self.tau2)
        return a_n / np.sqrt(self.tau2) + other[self.design.run_n]

    def weights(self, residual_n: NDArray, nu: float) -> tuple[NDArray, NDArray]:
        """Weights ``[G]`` of runs, and their squared distances from the surface."""
        far = self.design.sums(self.whiten(residual_n) ** 2)
        m = self.design.size_G
        return (nu + m) / (nu + far), far

    def score(self, residual_n: NDArray, nu: float) -> float:
        """Minus twice the logarithm of the likelihood, up to a constant of the design."""
        m, (_, far) = self.design.size_G, self.weights(residual_n, nu)
        determinant = np.log(self.mean_G) + (m - 1) * np.log(self.tau2)
        constant = gammaln((nu + m) / 2) - gammaln(nu / 2) - m / 2 * np.log(nu)
        return float(((nu + m) * np.log1p(far / nu) + determinant - 2 * constant).sum())


@dataclass(frozen=True)
class Fit:
    """One form fitted to one study."""

    theta_K: NDArray
    noise: Noise
    """Scales in nats. The variance is ``nu / (nu - 2)`` times as large as their squares."""
    nu: float
    score: float
    """Minus twice the logarithm of the likelihood, up to a constant of the design."""
    converged: bool
    residual_n: NDArray
    slope_np: NDArray
    """Derivatives of the losses by the free parameters."""
    weight_G: NDArray
    """1 for a run as far from the surface as its noise; less for a run farther off."""


def values(theta_K: NDArray, x: NDArray, z: NDArray) -> tuple[NDArray, NDArray]:
    """Losses at centred logarithms, and their derivatives ``[..., K]``."""
    E, a, b, alpha, beta, log_g = theta_K
    g = np.exp(np.clip(log_g, -LARGEST_LOG_G, LARGEST_LOG_G))
    u, v = np.minimum(a - alpha * x, LARGEST), np.minimum(b - beta * z, LARGEST)
    term = np.exp(g * np.logaddexp(u / g, v / g))
    share = 1 / (1 + np.exp(np.clip((v - u) / g, -600, 600)))
    entropy = -xlogy(share, share) - xlogy(1 - share, 1 - share)
    of_N, of_D = term * share, term * (1 - share)
    slopes = (np.ones_like(term), of_N, of_D, -x * of_N, -z * of_D, g * term * entropy)
    return E + term, np.stack(slopes, axis=-1)


def fit(design: Design, y_n: NDArray, form: str = "sum", *, robust: bool = True) -> Fit:
    """Fit a form, from three starts and, where every point is a run, for several ``nu``. Without
    ``robust``, least squares of independent points."""
    alone = bool((design.size_G == 1).all())
    nus = NUS if robust and alone and len(y_n) >= MANY else (NU,) if robust else (1e9,)

    def lowest(fits: Iterable[Fit]) -> Fit:
        return min(fits, key=lambda one: one.score)

    begun = [_descend(design, y_n, one, nus[0], form, robust, FEW) for one in starts(design, y_n)]
    best = _descend(design, y_n, lowest(begun), nus[0], form, robust)
    for nu in nus[1:]:  # each from the solution of the one before
        best = lowest([best, _descend(design, y_n, best, nu, form, robust)])
    return best


def starts(design: Design, y_n: NDArray) -> NDArray:
    """``[3, K]`` starts from a grid of exponents with linear coefficients: least squares with alpha
    >= beta, with alpha < beta, and least median of absolute residuals."""
    alpha, beta = (axis.ravel() for axis in np.meshgrid(GRID, GRID))
    powers = -alpha[:, None] * design.x_n, -beta[:, None] * design.z_n
    columns = np.stack([np.ones_like(powers[0]), *np.exp(powers)], axis=2)
    c = np.linalg.pinv(columns) @ y_n
    residual = y_n - (columns @ c[..., None])[..., 0]
    logs = np.log(np.maximum(c[:, 1:], 1e-9))
    found = np.column_stack([c[:, 0], logs, alpha, beta, 0 * alpha])
    positive = (c[:, 1:] > 0).all(axis=1)
    squares = (residual**2).mean(axis=1)
    level = y_n.min()
    middle = np.array([0.6 * level, *[np.log(0.2 * abs(level) + 1e-3)] * 2, 0.3, 0.3, 0.0])
    return np.array([
        found[np.where(among, score, np.inf).argmin()] if among.any() else middle
        for among, score in (
            (positive & (alpha >= beta), squares),
            (positive & (alpha < beta), squares),
            (positive, np.median(np.abs(residual), axis=1)),
        )
    ])  # fmt: skip


def _descend(
    design: Design,
    y_n: NDArray,
    start: NDArray | Fit,
    nu: float,
    form: str,
    robust: bool,
    steps: int = STEPS,
) -> Fit:
    """Weighted least squares, each followed by new weights and scales, until they stay."""
    p = FORMS[form]
    theta, converged = np.array(start.theta_K if isinstance(start, Fit) else start), False

    def at(free_p: NDArray) -> tuple[NDArray, NDArray]:
        value, slope = values(np.concatenate([free_p, theta[p:]]), design.x_n, design.z_n)
        return y_n - value, slope[:, :p]

    residual, _ = at(theta[:p])
    noise = Noise(design, max((1.4826 * float(np.median(np.abs(residual)))) ** 2, LEAST), 0.0)
    if isinstance(start, Fit):
        noise = start.noise
    for _ in range(steps):
        weight, far = noise.weights(residual, nu)
        theta[:p], squares = _weighted_squares(at, theta[:p], noise, weight)
        residual, slope = at(theta[:p])
        old, noise = noise, _scales(noise, residual, slope, noise.weights(residual, nu)[0], robust)
        # Both in units in which differences of 1 matter.
        short = weight @ far - squares < 1e-7
        still = abs(noise.tau2 / old.tau2 - 1) < 1e-6
        still &= abs(noise.sigma2 - old.sigma2) < 1e-6 * (noise.tau2 + noise.sigma2)
        if short and still:
            converged = True
            break
    theta[3:5] = np.clip(theta[3:5], *EXPONENTS)
    residual, slope = at(theta[:p])
    weight, _ = noise.weights(residual, nu)
    score = noise.score(residual, nu)
    return Fit(theta, noise, nu, score, converged, residual, slope, weight)


def _weighted_squares(
    at: Callable[[NDArray], tuple[NDArray, NDArray]],
    start_p: NDArray,
    noise: Noise,
    weight_G: NDArray,
) -> tuple[NDArray, float]:
    """The least sum of squares of weighted runs, and where it is; ``at`` gives residuals and slopes
    of losses."""
    root_n = np.sqrt(weight_G)[noise.design.run_n]

    def residuals(free_p: NDArray) -> NDArray:
        return root_n * noise.whiten(at(free_p)[0])

    def slopes(free_p: NDArray) -> NDArray:
        return -root_n[:, None] * noise.whiten(at(free_p)[1])

    found = least_squares(residuals, start_p, cast(Any, slopes), method="lm")
    return found.x, 2 * found.cost


def _scales(
    noise: Noise, residual_n: NDArray, slope_np: NDArray, weight_G: NDArray, robust: bool
) -> Noise:
    """Sums of squares within and between runs over their degrees of freedom."""
    design, (points, p) = noise.design, slope_np.shape
    m, G = design.size_G, design.runs
    between_G = weight_G * m * design.means(residual_n) ** 2
    total = weight_G[design.run_n] @ residual_n**2
    if not robust or points == G:
        return Noise(design, max(total / max(points - p, 1), LEAST), 0.0)
    of_mean, white = design.means(slope_np), noise.whiten(slope_np)
    of_means = of_mean.T @ ((weight_G * m / noise.mean_G)[:, None] * of_mean)
    hessian = white.T @ (weight_G[design.run_n, None] * white)
    shared = np.clip(np.trace(invert(hessian) @ of_means), 0, min(p, G - 1))
    within = max(total - between_G.sum(), 0)
    tau2 = max(within / max(points - G - p + shared, 1), LEAST)
    return Noise(design, tau2, run_scale(between_G, m, tau2, G - shared))


def run_scale(between_G: NDArray, m_G: NDArray, tau2: float, degrees: float) -> float:
    """The ``sigma2`` for which ``sum between / (tau2 + m sigma2)`` equals the degrees of freedom,
    0 if there is none (Mandel and Paule 1970)."""

    def excess(sigma2: float) -> float:
        return float((between_G / (tau2 + m_G * sigma2)).sum() - degrees)

    if excess(0.0) <= 0:
        return 0.0
    largest = float((between_G / m_G).sum() / degrees)
    return float(np.asarray(brentq(excess, 0.0, largest, xtol=1e-12 * largest)))


def invert(matrix_pp: NDArray) -> NDArray:
    """Inverse of a positive matrix that may be singular."""
    size = np.sqrt(np.diag(matrix_pp) + 1e-300)
    outer = np.outer(size, size)
    return np.linalg.inv(matrix_pp / outer + 1e-11 * np.eye(len(size))) / outer
