"""Standard errors, tests and the choice of the form of surfaces fitted by ``student``.

Intervals are from the influence of whole runs: what each moves the parameters by when it is left
out, with the leverage correction of Bell and McCaffrey 2002 for a jackknife (CR3).

Legend: as in ``student``; ``Q`` quantities.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import fdtrc
from scipy.stats import chi2
from scipy.stats import t as t_distribution

from lmscaling.fits.student import (
    EXPONENTS,
    FORMS,
    LEAST,
    Design,
    Fit,
    Noise,
    fit,
    invert,
    run_scale,
    values,
)

SEED_DEGREES = 6
"""Degrees of freedom between seeds from which they can judge a form."""
REFUSED = 0.05
"""Level of the test of a form against seeds."""
REFUSED_INTERACTION = 0.005
"""That of the interaction. A choice of the form by a test at 5 % would cost intervals up to three
points of coverage; one at 0.2 % would miss g = 0.9 in ten sizes of one seed."""
CONDITION = 1e6
"""Largest condition number. Above it, rounding and curvature determine the parameter combination
with the largest error. Studies of 3 x 3 points have about 1e3."""
WEIGHTLESS = 1e-4
"""Nats. ``E``, or a term at the centre of the points, that is smaller counts as zero."""


def influence(design: Design, fit: Fit) -> NDArray:
    """``[G, p]``: by how much each run moves the parameters, in one step from the fit."""
    w, m, nu = fit.weight_G, design.size_G, fit.nu
    white, rest = fit.noise.whiten(fit.slope_np), fit.noise.whiten(fit.residual_n)
    of_mean = design.means(white)
    far_mean = m * design.means(rest) ** 2
    far_rest = design.sums(rest**2) - far_mean
    curving = 2 * w**2 / (nu + m)
    # Mean derivative of weight times residual over the mean weight, for means and deviations.
    of_means, of_rest = (
        max(1 - curving @ far / (w @ count), 0.2) if count.any() else 1.0
        for far, count in ((far_mean, np.ones(len(m))), (far_rest, m - 1))
    )
    outer = (m * w)[:, None, None] * of_mean[:, :, None] * of_mean[:, None, :]
    squares = design.sums((white[:, :, None] * white[:, None, :]).reshape(len(white), -1))
    full = w[:, None, None] * squares.reshape(outer.shape)
    hessian = of_means * outer + of_rest * (full - outer)
    bread = invert(hessian.sum(axis=0))
    score = w[:, None] * design.sums(white * rest[:, None])
    left = np.eye(white.shape[1]) * (1 + 1e-6) - hessian @ bread
    return np.linalg.solve(left, score[..., None])[..., 0] @ bread


def standard_errors(gradient_Qp: NDArray, influence_Gp: NDArray) -> NDArray:
    """``[Q]`` standard errors of quantities with these gradients."""
    runs = len(influence_Gp)
    return np.sqrt(((influence_Gp @ gradient_Qp.T) ** 2).sum(axis=0) * (runs - 1) / runs)


QUANTITIES = ("E", "A", "B", "alpha", "beta", "a", "g")
"""Names of the parameters that are reported; ``a = beta / (alpha + beta)``."""


def quantities(theta_K: NDArray, centre: tuple[float, float]) -> tuple[NDArray, NDArray]:
    """``[Q]`` parameters on the scale of their intervals, and gradients ``[Q, K]``: ``E`` itself,
    the logit of ``a``, logarithms of the others."""
    E, a, b, alpha, beta, log_g = theta_K
    named = (
        E, a + alpha * centre[0], b + beta * centre[1], np.log(alpha), np.log(beta),
        np.log(beta / alpha), log_g,
    )  # fmt: skip
    gradient = np.zeros((7, 6))
    gradient[[0, 1, 2, 6], [0, 1, 2, 5]] = 1
    gradient[1, 3], gradient[2, 4] = centre
    gradient[3, 3], gradient[5, 3] = 1 / alpha, -1 / alpha
    gradient[4:6, 4] = 1 / beta
    return np.array(named), gradient


def back(name: str, value: ArrayLike) -> Any:
    """A number on the scale of ``quantities`` in its own units."""
    value = np.asarray(value, dtype=float)
    if name == "a":
        return 1 / (1 + np.exp(-value))
    return value if name == "E" else np.exp(value)


@dataclass(frozen=True)
class Test:
    """A test of the form; small p-values refuse it."""

    __test__: ClassVar[bool] = False
    statistic: float
    numerator: int
    """Degrees of freedom of an F test against seeds; 0 for the t test of the interaction."""
    denominator: int
    p_value: float

    def __str__(self) -> str:
        name = f"F({self.numerator}, " if self.numerator else "t of g("
        return f"{name}{self.denominator}) = {self.statistic:.2f}, p = {self.p_value:.2g}"


def lack_of_fit(design: Design, fit: Fit) -> Test | None:
    """F test of the residuals of cells against the scatter of their seeds; None with too few seeds.

    The noise is that of seeds alone.
    """
    place_n, cells = design.places
    seeds, m = np.bincount(place_n), design.size_G
    free, count = design.runs - cells, len(seeds) - fit.slope_np.shape[1]
    if free < SEED_DEGREES or count < 1:
        return None
    mean_n = (np.bincount(place_n, fit.residual_n) / seeds)[place_n]
    deviation = fit.residual_n - mean_n
    between_G = m * design.means(deviation) ** 2
    if degrees := len(place_n) - len(seeds) - free:
        tau2 = max((deviation @ deviation - between_G.sum()) / degrees, LEAST)
        noise = Noise(design, tau2, run_scale(between_G, m, tau2, free))
    else:
        noise = Noise(design, max(between_G.sum() / free, LEAST), 0.0)
    statistic = float((noise.whiten(mean_n) ** 2).sum() / count)
    return Test(statistic, count, free, float(fdtrc(count, free, statistic)))


@dataclass(frozen=True)
class Estimate:
    """One form with its parameters, their standard errors and its test."""

    design: Design
    form: str
    fit: Fit
    influence_Gp: NDArray
    value_Q: NDArray
    """By ``QUANTITIES``, on the scale of ``quantities``."""
    error_Q: NDArray
    lack: Test | None
    """None if there are too few seeds."""

    @property
    def degrees(self) -> int:
        """Degrees of freedom of intervals: runs less parameters."""
        return self.design.runs - FORMS[self.form]

    def ends(self, level: float) -> NDArray:
        """``[2, Q]`` ends of intervals on the scale of ``quantities``."""
        reach = t_distribution.ppf((1 + level) / 2, self.degrees) * self.error_Q
        return np.stack([self.value_Q - reach, self.value_Q + reach])

    def predict(self, x: NDArray, z: NDArray) -> tuple[NDArray, NDArray]:
        """Losses ``[n]`` at centred logarithms ``[n]``, and their standard errors."""
        loss, slope = values(self.fit.theta_K, x, z)
        return loss, standard_errors(slope[:, : FORMS[self.form]], self.influence_Gp)

    @property
    def is_sound(self) -> bool:
        """Whether the search ended at one minimum inside the bounds."""
        return self.fit.converged and not self.at_bound and self.condition <= CONDITION

    @property
    def at_bound(self) -> bool:
        """Whether ``E`` or a coefficient is zero, or an exponent is at a bound of the search."""
        E, a, b, alpha, beta, log_g = self.fit.theta_K
        low, high = EXPONENTS
        return not (
            WEIGHTLESS < E
            and np.log(WEIGHTLESS) < min(a, b)
            and low * 1.001 < min(alpha, beta)
            and max(alpha, beta) < high / 1.001
            and abs(log_g) < 1.99
        )

    @property
    def condition(self) -> float:
        """Ratio of the largest to the smallest standard error among combinations of parameters, if
        points were independent."""
        size = np.linalg.eigvalsh(self.fit.slope_np.T @ self.fit.slope_np)
        return float(np.sqrt(size[-1] / max(size[0], 1e-30 * size[-1])))


def estimate(design: Design, y_n: NDArray, form: str = "sum", begin: Fit | None = None) -> Estimate:
    """A form fitted to a study, with standard errors."""
    found = fit(design, y_n, form, begin=begin)
    moved = influence(design, found)
    value, gradient = quantities(found.theta_K, design.centre)
    error = standard_errors(gradient[:, : FORMS[form]], moved)
    return Estimate(design, form, found, moved, value, error, lack_of_fit(design, found))


@dataclass(frozen=True)
class Verdict:
    """Both forms of a study, and whether one of them is kept."""

    plain: Estimate
    full: Estimate
    interaction: Test
    """t test of ``ln g = 0``."""
    kept: Estimate
    """The form with interaction if the sum is refused."""
    refused: bool
    """Whether neither form describes the losses."""


def judge(design: Design, y_n: NDArray) -> Verdict:
    """Fit both forms and choose.

    The sum is refused by its lack of fit against the scatter of seeds or by a t test of the
    interaction. The form with interaction is then kept unless its own lack of fit refuses it. The F
    test alone misses g = 0.95, with which intervals of the sum hold the truth in 80 % of studies.
    """
    plain = estimate(design, y_n)
    full = estimate(design, y_n, "interaction", plain.fit)
    t = float(full.value_Q[-1] / max(full.error_Q[-1], 1e-300))
    p_value = float(2 * t_distribution.sf(abs(t), full.degrees))
    interaction = Test(t, 0, full.degrees, p_value)
    bent = full.is_sound and p_value < REFUSED_INTERACTION
    refused = bent or (plain.lack is not None and plain.lack.p_value < REFUSED)
    good = full.is_sound and (full.lack is None or full.lack.p_value >= REFUSED)
    return Verdict(plain, full, interaction, full if refused else plain, refused and not good)


@cache
def normal_variance(nu: float, points: int) -> float:
    """Variance over squared scale, if the scale of a t distribution of ``points`` numbers is fitted
    to normal ones: the root ``c`` of ``E[(nu + m) c q / (nu + c q)] = m``, q chi-squared of m."""
    q = chi2.ppf((np.arange(400) + 0.5) / 400, points)

    def excess(c: float) -> float:
        return float(np.mean((nu + points) * c * q / (nu + c * q)) - points)

    return float(np.asarray(brentq(excess, 0.5, 50)))


def deviations(estimate: Estimate) -> NDArray:
    """``[G]``: mean residual of each run from the surface of the others, in standard errors."""
    design, found, moved = estimate.design, estimate.fit, estimate.influence_Gp
    m = design.size_G
    shift_GG = design.means(found.slope_np) @ moved.T
    outside = design.means(found.residual_n) + np.diag(shift_GG)
    variance = (shift_GG**2).sum(axis=1) - np.diag(shift_GG) ** 2
    wide = normal_variance(found.nu, int(m.max()))
    own = wide * (found.noise.sigma2 + found.noise.tau2 / m)
    return outside / np.sqrt(own + variance)
