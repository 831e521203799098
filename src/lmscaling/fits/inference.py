"""Standard errors, tests and the choice of the form of surfaces fitted by ``student``.

Intervals are from the influence of whole runs: what each moves the parameters by when it is left
out, with the leverage correction of Bell and McCaffrey 2002 for a jackknife (CR3).

Legend: as in ``student``; ``Q`` quantities.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import chi2
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from lmscaling.fits.student import (
    EXPONENTS,
    FORMS,
    LEAST,
    Design,
    Fit,
    Whitener,
    average,
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
    """``[R, G, p]``: by how much each run moves the parameters, in one step from the fit."""
    noise, w = Whitener(design, fit.tau2_R, fit.sigma2_R), fit.weight_RG
    white, rest = noise.whiten(fit.slope_RGmp), noise.whiten(fit.residual_RGm)
    m, nu = design.size_G, fit.nu_R[:, None]
    mean, of_mean = (average(part, m, design.known_Gm) for part in (rest, white))
    far_mean = m * mean**2
    far_rest = (rest**2).sum(axis=2) - far_mean
    used = m > 0
    curving = 2 * w**2 / (nu + m)
    # Mean derivative of weight times residual over the mean weight, for means and deviations.
    kappa = [
        np.maximum(1 - (curving * far)[:, used].sum(axis=1) / (w * count)[:, used].sum(axis=1), 0.2)
        if count.any()
        else np.ones(len(w))
        for far, count in ((far_mean, np.minimum(m, 1)), (far_rest, np.maximum(m - 1, 0)))
    ]
    outer = (m * w)[..., None, None] * of_mean[..., :, None] * of_mean[..., None, :]
    weighted = white * w[:, :, None, None]
    full = weighted.transpose(0, 1, 3, 2) @ white
    hessian = kappa[0][:, None, None, None] * outer
    hessian += kappa[1][:, None, None, None] * (full - outer)
    bread = invert(hessian.sum(axis=1))
    score = np.einsum("rgmp,rgm->rgp", weighted, rest)
    left = np.eye(score.shape[-1]) * (1 + 1e-6) - hessian @ bread[:, None]
    moved = np.linalg.solve(left, score[..., None])[..., 0]
    return moved @ bread.transpose(0, 2, 1)


def standard_errors(gradient_RQp: NDArray, influence_RGp: NDArray, runs: int) -> NDArray:
    """``[R, Q]`` standard errors of quantities with these gradients."""
    moved = np.einsum("rqp,rgp->rgq", gradient_RQp, influence_RGp)
    return np.sqrt((moved**2).sum(axis=1) * (runs - 1) / runs)


QUANTITIES = ("E", "A", "B", "alpha", "beta", "a", "g")
"""Names of the parameters that are reported; ``a = beta / (alpha + beta)``."""


def quantities(theta_RK: NDArray, centre: tuple[float, float]) -> tuple[NDArray, NDArray]:
    """``[R, Q]`` parameters on the scale of their intervals, and gradients ``[R, Q, K]``: ``E``
    itself, the logit of ``a``, logarithms of the others."""
    E, a, b, alpha, beta, log_g = theta_RK.T
    named = (
        E, a + alpha * centre[0], b + beta * centre[1], np.log(alpha), np.log(beta),
        np.log(beta / alpha), log_g,
    )  # fmt: skip
    gradient = np.zeros((len(theta_RK), 7, 6))
    gradient[:, [0, 1, 2, 6], [0, 1, 2, 5]] = 1
    gradient[:, 1, 3], gradient[:, 2, 4] = centre
    gradient[:, 3, 3] = 1 / alpha
    gradient[:, 4, 4] = gradient[:, 5, 4] = 1 / beta
    gradient[:, 5, 3] = -1 / alpha
    return np.stack(named, axis=1), gradient


def back(name: str, value: ArrayLike) -> Any:
    """A number on the scale of ``quantities`` in its own units."""
    value = np.asarray(value, dtype=float)
    if name == "a":
        return 1 / (1 + np.exp(-value))
    return value if name == "E" else np.exp(value)


@dataclass(frozen=True)
class Lack:
    """Test of a form for each study."""

    statistic_R: NDArray
    numerator: int
    """Degrees of freedom; 0 for the t test of ``ln g``."""
    denominator: int
    p_R: NDArray


def lack_of_fit(design: Design, fit: Fit) -> Lack | None:
    """F test of the residuals of cells against the scatter of their seeds; None with too few seeds.

    The noise is that of seeds alone. Cells whose seeds have different numbers of points count as
    cells of one seed each.
    """
    m, known = design.size_G, design.known_Gm
    used = m > 0
    cell = design.cell_G.copy()
    for one in np.unique(cell[used]):
        members = np.flatnonzero((cell == one) & used)
        if len(set(m[members])) > 1:
            cell[members] = cell.max() + 1 + np.arange(len(members))
    names, cell_u = np.unique(cell[used], return_inverse=True)
    seeds_C = np.bincount(cell_u)
    free = int((seeds_C - 1).sum())
    if free < SEED_DEGREES:
        return None
    mean_of = (cell_u == np.arange(len(names))[:, None]) / seeds_C[:, None]
    residual = fit.residual_RGm[:, used]
    mean = np.einsum("cg,rgm->rcm", mean_of, residual)
    deviation = residual - mean[:, cell_u]
    m, known = m[used], known[used]
    m_C = m[np.unique(cell_u, return_index=True)[1]]
    between = m * average(deviation, m, known) ** 2
    within = (deviation**2).sum(axis=(1, 2)) - between.sum(axis=1)
    degrees = int(((seeds_C - 1) * (m_C - 1)).sum())
    if degrees:
        tau2 = np.maximum(within / degrees, LEAST)
        sigma2 = run_scale(between, m, tau2, np.full(len(tau2), float(free)))
    else:
        tau2, sigma2 = np.maximum(between.sum(axis=1) / free, LEAST), np.zeros(len(between))
    known_Cm = known[np.unique(cell_u, return_index=True)[1]]
    scale = tau2[:, None] + m_C * sigma2[:, None]
    average_C = average(mean, m_C, known_Cm)
    squares = (mean**2).sum(axis=2) - m_C * average_C**2
    lack = (seeds_C * (squares / tau2[:, None] + m_C * average_C**2 / scale)).sum(axis=1)
    count = int(m_C.sum()) - fit.slope_RGmp.shape[-1]
    if count < 1:
        return None
    return Lack(lack / count, count, free, f_distribution.sf(lack / count, count, free))


@dataclass(frozen=True)
class Estimate:
    """One form with its parameters, their standard errors and its test."""

    design: Design
    form: str
    fit: Fit
    influence_RGp: NDArray
    value_RQ: NDArray
    """By ``QUANTITIES``, on the scale of ``quantities``."""
    error_RQ: NDArray
    lack: Lack | None
    """None if there are too few seeds."""

    @property
    def runs(self) -> int:
        return int((self.design.size_G > 0).sum())

    @property
    def degrees(self) -> int:
        """Degrees of freedom of intervals: runs less parameters."""
        return self.runs - FORMS[self.form]

    def ends(self, level: float) -> NDArray:
        """``[2, R, Q]`` ends of intervals on the scale of ``quantities``."""
        reach = t_distribution.ppf((1 + level) / 2, self.degrees) * self.error_RQ
        return np.stack([self.value_RQ - reach, self.value_RQ + reach])

    def predict(self, x: NDArray, z: NDArray) -> tuple[NDArray, NDArray]:
        """Losses ``[R, n]`` at centred logarithms ``[n]``, and their standard errors."""
        loss, slope = values(self.fit.theta_RK, x, z)
        slope = slope[..., : FORMS[self.form]]
        return loss, standard_errors(slope, self.influence_RGp, self.runs)

    @property
    def sound_R(self) -> NDArray:
        """Whether the search ended at one minimum inside the bounds."""
        return self.fit.converged_R & ~self.at_bound_R & (self.condition_R <= CONDITION)

    @property
    def at_bound_R(self) -> NDArray:
        """Whether ``E`` or a coefficient is zero, or an exponent is at a bound of the search."""
        E, a, b, alpha, beta, log_g = self.fit.theta_RK.T
        low, high = EXPONENTS
        inside = (E > WEIGHTLESS) & (np.minimum(a, b) > np.log(WEIGHTLESS))
        for exponent in (alpha, beta):
            inside &= (exponent > low * 1.001) & (exponent < high / 1.001)
        return ~(inside & (np.abs(log_g) < 1.99))

    @property
    def condition_R(self) -> NDArray:
        """Ratio of the largest to the smallest standard error among combinations of parameters, if
        points were independent."""
        slope = self.fit.slope_RGmp[:, self.design.known_Gm]
        size = np.linalg.eigvalsh(slope.transpose(0, 2, 1) @ slope)
        return np.sqrt(size[:, -1] / np.maximum(size[:, 0], 1e-30 * size[:, -1]))


def estimate(design: Design, y_RGm: NDArray, form: str = "sum", *, robust: bool = True) -> Estimate:
    """A form fitted to each study, with standard errors."""
    found = fit(design, y_RGm, form, robust=robust)
    moved = influence(design, found)
    value, gradient = quantities(found.theta_RK, design.centre)
    runs = int((design.size_G > 0).sum())
    error = standard_errors(gradient[:, :, : FORMS[form]], moved, runs)
    return Estimate(design, form, found, moved, value, error, lack_of_fit(design, found))


def interaction_test(full: Estimate) -> Lack:
    """t test of ``ln g = 0`` by the influence of runs."""
    last = QUANTITIES.index("g")
    t = full.value_RQ[:, last] / np.maximum(full.error_RQ[:, last], 1e-300)
    return Lack(t, 0, full.degrees, 2 * t_distribution.sf(np.abs(t), full.degrees))


@dataclass(frozen=True)
class Verdict:
    """Both forms of each study, and which of them is kept."""

    plain: Estimate
    full: Estimate
    interaction: Lack
    """t test of ``ln g = 0``."""
    kept_R: NDArray[np.intp]
    """0: the sum; 1: the form with interaction; 2: neither."""


def judge(design: Design, y_RGm: NDArray) -> Verdict:
    """Fit both forms and choose.

    The sum is refused by its lack of fit against the scatter of seeds or by a t test of the
    interaction. The form with interaction is then kept unless its own lack of fit refuses it. The F
    test alone misses g = 0.95, with which intervals of the sum hold the truth in 80 % of studies.
    """
    plain, full = (estimate(design, y_RGm, form) for form in FORMS)
    interaction = interaction_test(full)
    refused = full.sound_R & (interaction.p_R < REFUSED_INTERACTION)
    if plain.lack is not None:
        refused |= plain.lack.p_R < REFUSED
    good = full.sound_R
    if full.lack is not None:
        good = good & (full.lack.p_R >= REFUSED)
    return Verdict(plain, full, interaction, np.where(refused, np.where(good, 1, 2), 0))


def normal_variance(nu: ArrayLike, points: int) -> NDArray:
    """Variance over squared scale, if the scale of a t distribution of ``points`` numbers is fitted
    to normal ones: the root ``c`` of ``E[(nu + m) c q / (nu + c q)] = m``, q chi-squared of m."""
    q = chi2.ppf((np.arange(400) + 0.5) / 400, points)
    known, which = np.unique(np.atleast_1d(np.asarray(nu, dtype=float)), return_inverse=True)

    def excess(c: float, nu: float) -> float:
        return float(np.mean((nu + points) * c * q / (nu + c * q)) - points)

    return np.array([brentq(excess, 0.5, 50, args=(one,)) for one in known])[which]


def deviations(estimate: Estimate) -> NDArray:
    """``[R, G]``: mean residual of each run from the surface of the others, in standard errors."""
    design, found = estimate.design, estimate.fit
    m, known = design.size_G, design.known_Gm
    slope = average(found.slope_RGmp, m, known)
    shift = np.einsum("rgp,rgp->rg", slope, estimate.influence_RGp)
    outside = average(found.residual_RGm, m, known) + shift
    others = np.einsum("rgp,rhp->rgh", slope, estimate.influence_RGp) ** 2
    variance = others.sum(axis=2) - np.einsum("rgg->rg", others)
    wide = normal_variance(found.nu_R, int(m.max()))[:, None]
    own = wide * (found.sigma2_R[:, None] + found.tau2_R[:, None] / np.maximum(m, 1))
    return outside / np.sqrt(own + variance)
