"""The surface ``L(N, D)`` fitted to whole runs by a multivariate t distribution.

The points of a run, a trunk and its branches, share the effect ``b`` of its seed: ``y = L(N, D) + b
+ e``, with scales ``sigma`` of ``b`` and ``tau`` of ``e``. A multivariate t distribution of all
points of a run (Lange, Little and Taylor 1989) gives a run far from the others a small weight, as
a whole. Both scales are estimated within the fit by restricted maximum likelihood. ``inference``
has the standard errors and tests. All functions work on many studies at once, so that the coverage
of intervals can be simulated with the code that prints them.

Legend: ``R`` studies, ``G`` runs, ``m`` most points of a run, ``C`` cells, ``K = 6`` parameters
``E, ln A, ln B, alpha, beta, ln g`` (coefficients at the centre of the points), ``p`` of them free.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

NU = 4.0
"""Degrees of freedom of the t distribution of runs with several points."""
NUS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
"""Those from which the likelihood chooses where every point is a run of its own."""
MANY = 50
"""Runs of one point from which ``nu`` can be estimated."""
EXPONENTS = (0.02, 3.0)
"""Bounds of the search. Published exponents of losses lie between 0.05 and 0.8; a power with
exponent 0.02 halves in 35 doublings, which no study can distinguish from a logarithm."""
GRID = np.geomspace(0.06, 2.0, 11)
STEPS = 200
LEAST = 1e-12
"""Smallest variance, nats^2."""
FORMS = {"sum": 5, "interaction": 6}
"""Free parameters of ``E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g``; the sum has g = 1."""
LARGEST = 50.0
"""Largest logarithm of a term in nats; steps that exceed it are rejected anyway."""


@dataclass(frozen=True)
class Design:
    """Where the points of a study are, as a table of runs by points."""

    x_Gm: NDArray
    """``ln N`` minus ``centre[0]``; 0 where a run has no further point."""
    z_Gm: NDArray
    """``ln D`` minus ``centre[1]``."""
    known_Gm: NDArray[np.bool_]
    """Where a run has a point."""
    centre: tuple[float, float]
    cell_G: NDArray[np.intp]
    """The cell of each run; runs of a cell differ in their seed only."""
    row_n: NDArray[np.intp]
    """The run of each point in the order of the caller."""
    column_n: NDArray[np.intp]

    @classmethod
    def from_points(cls, N: ArrayLike, D: ArrayLike, run: ArrayLike, cell: ArrayLike) -> "Design":
        """From points of runs and cells numbered from 0; those of a run are ordered by ``D``."""
        x, z = (np.log(np.asarray(values, dtype=float)) for values in (N, D))
        row, cell = np.asarray(run), np.asarray(cell)
        column = np.empty(len(row), dtype=np.intp)
        for one in range(row.max() + 1):
            members = np.flatnonzero(row == one)
            column[members[np.argsort(z[members], kind="stable")]] = np.arange(len(members))
        centre = float(x.mean()), float(z.mean())
        blank = np.zeros((row.max() + 1, column.max() + 1))
        known = blank.astype(bool)
        known[row, column] = True
        first = np.unique(row, return_index=True)[1]
        design = cls(blank, blank, known, centre, cell[first], row, column)
        return replace(design, x_Gm=design.table(x - centre[0]), z_Gm=design.table(z - centre[1]))

    def table(self, values_n: ArrayLike) -> NDArray:
        """Numbers of points ``[..., n]`` as tables ``[..., G, m]``, with zeros elsewhere."""
        values = np.asarray(values_n, dtype=float)
        table = np.zeros((*values.shape[:-1], *self.known_Gm.shape))
        table[..., self.row_n, self.column_n] = values
        return table

    @property
    def size_G(self) -> NDArray:
        """Points of each run."""
        return self.known_Gm.sum(axis=1)

    def without(self, points_n: NDArray[np.bool_]) -> "Design":
        """The same places without some points; runs that lose all of theirs remain, empty."""
        known = self.known_Gm.copy()
        known[self.row_n[points_n], self.column_n[points_n]] = False
        return replace(self, known_Gm=known)


@dataclass(frozen=True)
class Fit:
    """One form fitted to each study."""

    theta_RK: NDArray
    tau2_R: NDArray
    """Squared scale of points, nats^2. The variance is ``nu / (nu - 2)`` times as large."""
    sigma2_R: NDArray
    """Squared scale of runs."""
    nu_R: NDArray
    score_R: NDArray
    """Minus twice the logarithm of the likelihood, up to a constant of the design."""
    converged_R: NDArray
    residual_RGm: NDArray
    slope_RGmp: NDArray
    """Derivatives of the losses by the free parameters."""
    weight_RG: NDArray
    """1 for a run as far from the surface as its noise; less for a run farther off."""

    def rows(self, chosen: Any) -> "Fit":
        """Some of the studies."""
        return Fit(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def values(theta_RK: NDArray, x: NDArray, z: NDArray) -> tuple[NDArray, NDArray]:
    """Losses ``[R, ...]`` at centred logarithms, and their derivatives ``[R, ..., K]``."""
    E, a, b, alpha, beta, log_g = (part[(...,) + (None,) * x.ndim] for part in theta_RK.T)
    g = np.exp(log_g)
    u, v = np.minimum(a - alpha * x, LARGEST), np.minimum(b - beta * z, LARGEST)
    term = np.exp(g * np.logaddexp(u / g, v / g))
    share = 1 / (1 + np.exp(np.clip((v - u) / g, -600, 600)))
    mixed = np.clip(share, 1e-300, 1), np.clip(1 - share, 1e-300, 1)
    entropy = -sum(part * np.log(part) for part in mixed)
    of_N, of_D = term * share, term * (1 - share)
    slopes = (np.ones_like(term), of_N, of_D, -x * of_N, -z * of_D, g * term * entropy)
    return E + term, np.stack(slopes, axis=-1)


def fit(design: Design, y_RGm: NDArray, form: str = "sum", *, robust: bool = True) -> Fit:
    """Fit a form to each study, from three starts and, where every point is a run, for several
    ``nu``. Without ``robust``, least squares of independent points."""
    R, K = len(y_RGm), 6
    alone = bool((design.size_G <= 1).all())
    nus: tuple[float, ...] = (NU,)
    if not robust:
        nus = (1e9,)
    elif alone and len(y_RGm[0]) >= MANY:
        nus = NUS
    start_SRK = starts(design, y_RGm)
    S = len(start_SRK)
    first = _descend(
        design, np.tile(y_RGm, (S, 1, 1)), start_SRK.reshape(-1, K), nus[0], form, robust
    )
    best = _lowest(first, S, R)
    for nu in nus[1:]:  # each from the solution of the one before
        start = best.theta_RK
        both = np.concatenate([start, start_SRK[0]]) if nu == nus[-1] else start
        found = _descend(design, np.tile(y_RGm, (len(both) // R, 1, 1)), both, nu, form, robust)
        best = _join(best, _lowest(found, len(both) // R, R))
    return best


def starts(design: Design, y_RGm: NDArray) -> NDArray:
    """``[3, R, K]`` starts from a grid of exponents with linear coefficients: least squares with
    alpha >= beta, with alpha < beta, and least median of absolute residuals."""
    known = design.known_Gm
    y_Rn, x, z = y_RGm[:, known], design.x_Gm[known], design.z_Gm[known]
    best_3R = np.full((3, len(y_Rn)), np.inf)
    theta_3RK = np.zeros((3, len(y_Rn), 6))
    level = y_Rn.min(axis=1)
    theta_3RK[:] = np.stack(
        [0.6 * level, *[np.log(0.2 * np.abs(level) + 1e-3)] * 2, *[0 * level + 0.3] * 2, 0 * level],
        axis=1,
    )
    for alpha, beta in product(GRID, GRID):
        columns = np.stack([np.ones_like(x), np.exp(-alpha * x), np.exp(-beta * z)], axis=1)
        c = y_Rn @ np.linalg.pinv(columns).T
        residual = y_Rn - c @ columns.T
        positive = (c[:, 1:] > 0).all(axis=1)
        logs = np.log(np.maximum(c[:, 1:], 1e-9))
        rest = np.broadcast_to([alpha, beta, 0.0], (len(c), 3))
        found = np.concatenate([c[:, :1], logs, rest], axis=1)
        squares = (residual**2).mean(axis=1)
        for i, score in (
            (int(alpha < beta), squares),
            (2, np.median(np.abs(residual), axis=1)),
        ):
            better = positive & (score < best_3R[i])
            best_3R[i, better], theta_3RK[i, better] = score[better], found[better]
    return theta_3RK


def _lowest(fits: Fit, count: int, studies: int) -> Fit:
    """The best of several starts of each study, stacked one after another."""
    score = np.where(np.isfinite(fits.score_R), fits.score_R, np.inf).reshape(count, studies)
    return fits.rows(score.argmin(axis=0) * studies + np.arange(studies))


def _join(one: Fit, other: Fit) -> Fit:
    """The better of two fits for each study."""
    both = Fit(
        *(
            np.concatenate([getattr(one, name), getattr(other, name)])
            for name in one.__dataclass_fields__
        )
    )
    return _lowest(both, 2, len(one.score_R))


class Whitener:
    """Scales of points and runs, and what follows from them for each run of each study."""

    def __init__(self, design: Design, tau2_R: NDArray, sigma2_R: NDArray) -> None:
        self.known, self.size_G = design.known_Gm, design.size_G
        self.tau2_R, self.sigma2_R = tau2_R, sigma2_R
        self.mean_RG = tau2_R[:, None] + self.size_G * sigma2_R[:, None]
        """Squared scale of the mean of a run, times the number of its points."""

    def whiten(self, a: NDArray) -> NDArray:
        """Independent numbers of scale 1 from residuals or slopes ``[R, G, m, ...]``."""
        extra = (1,) * (a.ndim - 3)
        known = self.known.reshape((1, *self.known.shape, *extra))
        mean = average(a, self.size_G, self.known)[:, :, None]
        tau = np.sqrt(self.tau2_R).reshape(-1, 1, 1, *extra)
        between = np.sqrt(self.mean_RG).reshape(*self.mean_RG.shape, 1, *extra)
        return np.where(known, (a - mean) / tau + mean / between, 0)

    def score(self, residual: NDArray, nu: float) -> tuple[NDArray, NDArray]:
        """Weights of runs, and minus twice the logarithm of the likelihood of residuals."""
        far = (self.whiten(residual) ** 2).sum(axis=2)
        m = self.size_G
        cost = ((nu + m) * np.log1p(far / nu)).sum(axis=1)
        return (nu + m) / (nu + far), cost

    def determinant(self) -> NDArray:
        """Logarithm of the determinant of the covariance of all points."""
        used = self.size_G > 0
        return (
            np.log(self.mean_RG[:, used]).sum(axis=1)
            + (self.size_G[used] - 1).sum() * np.log(self.tau2_R)
        )  # fmt: skip


def average(a: NDArray, size_G: NDArray, known_Gm: NDArray) -> NDArray:
    """Means of runs ``[R, G, ...]``, over the points that they have."""
    known = known_Gm.reshape((1, *known_Gm.shape, *(1,) * (a.ndim - 3)))
    count = np.maximum(size_G, 1).reshape((1, -1, *(1,) * (a.ndim - 3)))
    return (a * known).sum(axis=2) / count


def _descend(
    design: Design, y_RGm: NDArray, theta_RK: NDArray, nu: float, form: str, robust: bool
) -> Fit:
    """Damped Gauss-Newton steps, each followed by new weights and scales; converged studies leave
    the batch."""
    p = FORMS[form]
    theta, R = np.array(theta_RK, dtype=float), len(theta_RK)
    theta[:, 3:5] = np.clip(theta[:, 3:5], *EXPONENTS)
    value, slope = values(theta, design.x_Gm, design.z_Gm)
    slope = slope[..., :p]
    residual = np.where(design.known_Gm, y_RGm - value, 0)
    spread = np.median(np.abs(residual[:, design.known_Gm]), axis=1)
    tau2 = np.maximum((1.4826 * spread) ** 2, LEAST)
    sigma2, damping = 0 * tau2, np.full(R, 1e-2)
    weight, score = np.ones((R, len(design.size_G))), np.full(R, np.inf)
    converged, active = np.zeros(R, dtype=bool), np.arange(R)
    for _ in range(STEPS):
        noise = Whitener(design, tau2[active], sigma2[active])
        w, cost = noise.score(residual[active], nu)
        white, rest = noise.whiten(slope[active]), noise.whiten(residual[active])
        hessian = _cross(white, white, w)
        gradient = _cross(white, rest[..., None], w)[..., 0]
        size = np.einsum("rpp->rp", hessian) + 1e-12
        scaled = hessian / np.sqrt(size[:, :, None] * size[:, None, :])
        scaled += (damping[active, None] + 1e-11)[:, :, None] * np.eye(p)
        step = np.linalg.solve(scaled, (gradient / np.sqrt(size))[..., None])[..., 0]
        step = np.clip(step / np.sqrt(size), -0.5, 0.5)
        tried = theta[active]
        tried[:, :p] += step
        low, high = EXPONENTS
        tried[:, 3:5] = np.clip(tried[:, 3:5], low, high)
        tried[:, 5] = np.clip(tried[:, 5], -2, 2)
        moved = tried[:, :p] - theta[active, :p]  # a bound may stop a step
        value, new_slope = values(tried, design.x_Gm, design.z_Gm)
        new = np.where(design.known_Gm, y_RGm[active] - value, 0)
        _, new_cost = noise.score(new, nu)
        better = new_cost <= cost + 1e-12 * np.abs(cost)
        damping[active] = np.clip(damping[active] * np.where(better, 1 / 6, 6), 1e-9, 1e5)
        taken = active[better]
        theta[taken], residual[taken] = tried[better], new[better]
        slope[taken] = new_slope[better][..., :p]
        # Decrease of the cost still expected, in units in which differences of 1 matter.
        short = (gradient * moved).sum(axis=1) < 1e-7
        old = tau2[active], sigma2[active]
        noise_w, _ = noise.score(residual[active], nu)
        tau2[active], sigma2[active] = _scales(
            design, noise, residual[active], slope[active], noise_w, robust
        )
        still = np.abs(np.log(tau2[active] / old[0])) < 1e-5
        still &= np.abs(sigma2[active] - old[1]) < 1e-5 * (tau2[active] + sigma2[active])
        done = short & still
        converged[active[done]] = True
        active = active[~done]
        if not len(active):
            break
    noise = Whitener(design, tau2, sigma2)
    weight, cost = noise.score(residual, nu)
    m = design.size_G[design.size_G > 0]
    constant = (gammaln((nu + m) / 2) - gammaln(nu / 2) - m / 2 * np.log(nu)).sum()
    score = cost + noise.determinant() - 2 * constant
    return Fit(
        theta, tau2, sigma2, np.full(R, nu), score, converged, residual, slope, weight
    )  # fmt: skip


def _cross(one: NDArray, other: NDArray, weight: NDArray) -> NDArray:
    """Weighted sums over points of products, ``[R, p, q]``."""
    R, G, m, p = one.shape
    left = (one * weight[:, :, None, None]).reshape(R, G * m, p)
    return left.transpose(0, 2, 1) @ other.reshape(R, G * m, -1)


def _scales(
    design: Design,
    noise: Whitener,
    residual: NDArray,
    slope: NDArray,
    weight: NDArray,
    robust: bool,
) -> tuple[NDArray, NDArray]:
    """Sums of squares within and between runs over their degrees of freedom."""
    m, G, p = design.size_G, (design.size_G > 0).sum(), slope.shape[-1]
    points = m.sum()
    mean = average(residual, m, design.known_Gm)
    between = weight * m * mean**2
    total = (weight * (residual**2).sum(axis=2)).sum(axis=1)
    if not robust or points == G:
        return np.maximum(total / max(points - p, 1), LEAST), np.zeros(len(total))
    of_mean = average(slope, m, design.known_Gm)[:, :, None]
    of_means = _cross(of_mean, of_mean, weight * m / noise.mean_RG)
    white = noise.whiten(slope)
    hessian = _cross(white, white, weight)
    shared = np.einsum("rpq,rqp->r", invert(hessian), of_means)
    shared = np.clip(shared, 0, min(p, G - 1))
    within = np.maximum(total - between.sum(axis=1), 0)
    tau2 = np.maximum(within / np.maximum(points - G - p + shared, 1), LEAST)
    return tau2, run_scale(between, m, tau2, G - shared)


def run_scale(between_RG: NDArray, m_G: NDArray, tau2_R: NDArray, degrees_R: NDArray) -> NDArray:
    """The ``sigma2`` for which ``sum between / (tau2 + m sigma2)`` equals the degrees of freedom,
    0 if there is none (Mandel and Paule 1970). Newton steps on the reciprocal, which is linear in
    ``sigma2`` if all runs have equally many points."""
    sigma2 = np.zeros(len(tau2_R))
    m = np.maximum(m_G, 1)
    for _ in range(1 if (m == m[0]).all() else 6):
        scale = tau2_R[:, None] + m * sigma2[:, None]
        total = np.maximum((between_RG / scale).sum(axis=1), 1e-300)
        slope = np.maximum((between_RG * m / scale**2).sum(axis=1), 1e-300)
        sigma2 = np.maximum(sigma2 + (total / degrees_R - 1) * total / slope, 0)
    return sigma2


def invert(matrix_Rpp: NDArray) -> NDArray:
    """Inverses of positive matrices, of which some may be singular."""
    size = np.sqrt(np.einsum("rpp->rp", matrix_Rpp) + 1e-300)
    outer = size[:, :, None] * size[:, None, :]
    return np.linalg.inv(matrix_Rpp / outer + 1e-11 * np.eye(matrix_Rpp.shape[-1])) / outer
