"""The surface ``L(N, D)`` fitted to whole runs by a multivariate t distribution.

The points of a run, a trunk and its branches, share the effect ``b`` of its seed: ``y = L(N, D) + b
+ e``, with scales ``sigma`` of ``b`` and ``tau`` of ``e``. A multivariate t distribution of all
points of a run (Lange, Little and Taylor 1989) gives a run far from the others a small weight, as
a whole. Weighted least squares, weights and scales are repeated until they agree; both scales are
estimated by restricted maximum likelihood. ``inference`` has the standard errors and tests.

Legend: ``n`` points, ``G`` runs, ``K = 6`` parameters ``E, ln A, ln B, alpha, beta, ln g``
(coefficients at the centre of the points), ``p`` of them free.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import entr, expit, gammaln

from lmscaling.fits.uncertainty import codes

NU = 4.0
"""Degrees of freedom of the t distribution of runs with several points."""
NUS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
"""Those from which the likelihood chooses where every point is a run of its own."""
MANY = 50
"""Runs of one point from which ``nu`` can be estimated."""
EXPONENTS = (0.02, 3.0)
"""Bounds. Published exponents of losses lie between 0.05 and 0.8; a power with exponent 0.02 halves
in 35 doublings, which no study can distinguish from a logarithm."""
LARGEST_LOG_G = 2.0
LOW, HIGH = np.array([
    (-np.inf, -np.inf, -np.inf, EXPONENTS[0], EXPONENTS[0], -LARGEST_LOG_G),
    (np.inf, np.inf, np.inf, EXPONENTS[1], EXPONENTS[1], LARGEST_LOG_G),
])  # fmt: skip
GRID = np.geomspace(0.06, 2.0, 11)
STEPS = 200
LEAST = 1e-12
"""Smallest variance, nats^2."""
FORMS = {"sum": 5, "interaction": 6}
"""Free parameters of ``E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g``; the sum has g = 1."""
LARGEST = 50.0
"""Terms, in ln nats, do not grow beyond it, against overflow."""


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

    @cached_property
    def rooted_Gn(self) -> NDArray:
        """Means of runs times the roots of their numbers of points, as a matrix."""
        return self.members_Gn / np.sqrt(self.size_G)[:, None]

    @cached_property
    def places(self) -> tuple[NDArray[np.intp], int]:
        """Numbers ``[n]`` that points share which differ in their seed only, by cell and rank in
        the run, and how many cells there are. Cells whose seeds have different numbers of points
        count as cells of one seed each."""
        sizes: dict = {}
        for cell, m in zip(self.cell_G, self.size_G, strict=True):
            sizes.setdefault(cell, set()).add(m)
        cells = codes(
            (cell, 0 if len(sizes[cell]) == 1 else 1 + run) for run, cell in enumerate(self.cell_G)
        )
        order = np.lexsort((self.z_n, self.run_n))
        rank_n = np.empty_like(order)
        rank_n[order] = np.concatenate([np.arange(m) for m in self.size_G])
        return codes(zip(cells[self.run_n], rank_n, strict=True)), cells.max() + 1

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

    @cached_property
    def mean_G(self) -> NDArray:
        """Squared scale of the mean of each run, times the number of its points."""
        return self.tau2 + self.design.size_G * self.sigma2

    def whiten(self, a_n: NDArray) -> NDArray:
        """Independent numbers of scale 1 from residuals ``[n]`` or slopes ``[n, p]``."""
        factor = 1 / np.sqrt(self.mean_G) - 1 / np.sqrt(self.tau2)
        shift = (self.design.means(a_n).T * factor).T
        return a_n / np.sqrt(self.tau2) + shift[self.design.run_n]


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
    g = np.exp(log_g)
    u, v = np.minimum(a - alpha * x, LARGEST), np.minimum(b - beta * z, LARGEST)
    term = np.exp(g * np.logaddexp(u / g, v / g))
    share = expit((u - v) / g)
    slope = np.ones((*term.shape, 6))
    slope[..., 1] = term * share
    slope[..., 2] = term - slope[..., 1]
    slope[..., 3] = -x * slope[..., 1]
    slope[..., 4] = -z * slope[..., 2]
    slope[..., 5] = g * term * (entr(share) + entr(1 - share))
    return E + term, slope


def fit(
    design: Design,
    y_n: NDArray,
    form: str = "sum",
    *,
    robust: bool = True,
    begin: Fit | None = None,
) -> Fit:
    """Fit a form, for several ``nu`` where every point is a run. Without ``robust``, least squares
    of independent points. ``begin`` is a fit of another form."""
    alone = design.runs == len(y_n)
    nus = NUS if robust and alone and len(y_n) >= MANY else (NU,) if robust else (1e9,)
    best = _descend(design, y_n, begin or start(design, y_n), nus[0], form, robust)
    for nu in nus[1:]:  # each from the solution of the one before, until the likelihood falls
        found = _descend(design, y_n, best, nu, form, robust)
        if found.score > best.score:
            break
        best = found
    return best


def start(design: Design, y_n: NDArray) -> NDArray:
    """Of all pairs of exponents of the grid that with the least median of absolute residuals, with
    coefficients by least squares, ``[K]``."""
    mean = y_n.mean()
    f, g = (np.exp(-GRID[:, None] * axis) for axis in (design.x_n, design.z_n))
    f_mean, g_mean = f.mean(axis=1), g.mean(axis=1)
    f, g, y = f - f_mean[:, None], g - g_mean[:, None], y_n - mean
    ff, gg, fg = (f**2).sum(axis=1)[:, None], (g**2).sum(axis=1), f @ g.T
    fy, gy, least = (f @ y)[:, None], g @ y, np.maximum(ff * gg - fg**2, 1e-300)
    A, B = (gg * fy - fg * gy) / least, (ff * gy - fg * fy) / least
    residual = y - A[..., None] * f[:, None] - B[..., None] * g
    median = np.where((A > 0) & (B > 0), np.median(np.abs(residual), axis=2), np.inf)
    i, k = np.unravel_index(median.argmin(), median.shape)
    if not np.isfinite(median[i, k]):
        level = y_n.min()
        return np.array([0.6 * level, *[np.log(0.2 * abs(level) + 1e-3)] * 2, 0.3, 0.3, 0.0])
    E = mean - A[i, k] * f_mean[i] - B[i, k] * g_mean[k]
    return np.array([E, np.log(A[i, k]), np.log(B[i, k]), GRID[i], GRID[k], 0.0])


def _descend(
    design: Design, y_n: NDArray, begin: NDArray | Fit, nu: float, form: str, robust: bool
) -> Fit:
    """Damped Gauss-Newton steps of weighted least squares, each with new weights and scales, until
    all stay."""
    p, m, damping, converged = FORMS[form], design.size_G, 1e-3, False
    split = robust and design.runs < len(y_n)
    theta = begin.theta_K if isinstance(begin, Fit) else begin
    table, mean, within, between = _losses(design, y_n, theta, p)
    if isinstance(begin, Fit):
        tau2, sigma2 = begin.noise.tau2, begin.noise.sigma2
    else:
        spread = 1.4826 * float(np.median(np.abs(table[:, p])))
        tau2, sigma2 = max(spread**2, LEAST), 0.0
    for _ in range(STEPS):
        scale = tau2 + m * sigma2
        far = within / tau2 + between / scale
        weight = (nu + m) / (nu + far)
        weighted = weight[:, None] * mean
        inside = table.T @ (weight[design.run_n, None] * table) - mean.T @ weighted
        of_means = mean.T @ (weighted / scale[:, None])
        products = inside / tau2 + of_means
        gradient = products[:p, p]
        bread = invert(products[:p, :p], damping)
        tried = theta.copy()
        tried[:p] += np.clip(bread @ gradient, -0.5, 0.5)
        tried = np.clip(tried, LOW, HIGH)
        # Decrease of the cost still expected, in units in which differences of 1 matter.
        short = gradient @ (tried - theta)[:p] < 1e-9
        new = _losses(design, y_n, tried, p)
        new_far = new[2] / tau2 + new[3] / scale
        change = (nu + m) @ np.log((nu + new_far) / (nu + far))
        shared = float((bread * of_means[:p, :p]).sum()) if split else None
        old = tau2, sigma2
        tau2, sigma2 = _scales(design, p, float(inside[p, p]), between, weight, shared, nu)
        if change <= 1e-12 * len(y_n):
            theta, (table, mean, within, between) = tried, new
            damping = max(damping / 10, 1e-11)
        else:
            damping = min(damping * 10, 1e5)
        still = abs(tau2 / old[0] - 1) < 1e-5
        if short and still and abs(sigma2 - old[1]) < 1e-5 * (tau2 + sigma2):
            converged = True
            break
    scale = tau2 + m * sigma2
    far = within / tau2 + between / scale
    terms = (nu + m) * np.log1p(far / nu) + np.log(scale) + (m - 1) * np.log(tau2)
    terms -= 2 * (gammaln((nu + m) / 2) - gammaln(nu / 2) - m / 2 * np.log(nu))
    noise, weight = Noise(design, tau2, sigma2), (nu + m) / (nu + far)
    return Fit(theta, noise, nu, terms.sum(), converged, table[:, p], table[:, :p], weight)


def _losses(
    design: Design, y_n: NDArray, theta_K: NDArray, p: int
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Slopes and residuals ``[n, p + 1]``, their means times the roots of numbers of points, and
    sums of squares of residuals ``[G]`` within runs and of their means."""
    value, slope = values(theta_K, design.x_n, design.z_n)
    table = np.column_stack([slope[:, :p], y_n - value])
    mean = design.rooted_Gn @ table
    between = mean[:, p] ** 2
    return table, mean, design.sums(table[:, p] ** 2) - between, between


def _scales(
    design: Design,
    p: int,
    inside: float,
    between_G: NDArray,
    weight_G: NDArray,
    shared: float | None,
    nu: float,
) -> tuple[float, float]:
    """``tau2`` and ``sigma2`` from sums of squares within and between runs over their degrees of
    freedom; ``shared`` are the parameters that means of runs determine, None without ``sigma2``."""
    m, runs, points = design.size_G, design.runs, len(design.run_n)
    if shared is None:
        tau2, sigma2 = max((inside + weight_G @ between_G) / max(points - p, 1), LEAST), 0.0
    else:
        shared = min(max(shared, 0.0), p, runs - 1)
        tau2 = max(inside / max(points - runs - p + shared, 1), LEAST)
        sigma2 = run_scale(weight_G * between_G, m, tau2, runs - shared)
    # As much larger as brings the sum of weights to that of the solution: fewer repetitions (Kent,
    # Tyler and Vardi 1994).
    apart = inside / tau2 + weight_G @ (between_G / (tau2 + m * sigma2))
    stretch = float((runs * nu + points - apart) / (nu * weight_G.sum()))
    return float(tau2 * stretch), sigma2 * stretch


def run_scale(between_G: NDArray, m_G: NDArray, tau2: float, degrees: float) -> float:
    """The ``sigma2`` for which ``sum between / (tau2 + m sigma2)`` equals the degrees of freedom,
    0 if there is none (Mandel and Paule 1970)."""
    total = between_G.sum()
    if total <= tau2 * degrees:
        return 0.0
    most, least = (total / degrees - tau2) / np.array([m_G.min(), m_G.max()])
    if least == most:
        return float(most)
    root = brentq(lambda s: (between_G / (tau2 + m_G * s)).sum() - degrees, least, most)
    return float(np.asarray(root))


def invert(matrix_pp: NDArray, damping: float = 1e-11) -> NDArray:
    """Inverse of a positive matrix that may be singular, its diagonal larger by ``damping``."""
    size = np.sqrt(matrix_pp.diagonal() + 1e-300)
    outer = size[:, None] * size
    return np.linalg.inv(matrix_pp / outer + damping * np.eye(len(size))) / outer
