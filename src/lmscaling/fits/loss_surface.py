"""Loss over size and data, ``L(N, D) = E + A / N^alpha + B / D^beta``.

Fitted by variable projection, which does not depend on the start: a search over the two exponents,
with ``E``, ``A`` and ``B`` from non-negative least squares, weighted by the noise of runs
(``uncertainty``). The fit of Hoffmann et al. (``log_sum_exp``) serves as a check. Points that do
not determine the parameters give a status and no numbers.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 3; exponents of the compute-optimal size
and data for ``C = 6 N D``: their equation 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from lmscaling.fits import log_sum_exp, powers, uncertainty
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import LEVEL, STATED, Interval, Noise, Runs

STATUSES = {
    "fitted": "unique minimum, residuals within the noise",
    "misfit": "residuals exceed the noise; intervals are widened to match",
    "bound": "a parameter is at its bound",
    "not_unique": "several surfaces fit the points equally well",
    "stopped_early": "no convergence within the maximum number of steps",
    "too_few": "fewer than three sizes, three numbers of tokens or six points",
}

CONVENTIONS = {
    "non_embedding": "without embeddings (Kaplan et al. 2020)",
    "total": "all",
    "total_less_positions": "all but learned positions",
}
"""Parameters counted in ``N``; the exponents depend on it (Pearce and Song 2024,
arXiv:2406.12907)."""

PARAMETERS = ("E", "A", "B", "alpha", "beta", "a")
RISE = float(chi2.ppf(LEVEL, 1))
"""Chi-squared above the minimum up to which surfaces fit about as well."""
STARTS = np.array(list(product(np.geomspace(0.04, 2, 9), repeat=2)))
"""Pairs of exponents at which the searches start."""
APART = 1.1
"""Ratio of exponents above which two minima are distinct."""
CHANCE = 0.99
"""Level of the interval of the difference between the two fits."""
CONDITION = 1e6
"""Largest condition number. Above it, rounding and curvature determine the parameter combination
with the largest error. Studies of 3 x 3 points have about 1e3."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The fit of Hoffmann et al. to the same points."""

    values: dict[str, float]
    """By ``PARAMETERS``."""
    intervals: dict[str, Interval]
    disagrees: tuple[str, ...]
    """Parameters in which the two fits differ significantly."""
    converged: bool


@dataclass(frozen=True, kw_only=True)
class LossSurface:
    """One surface; its dictionaries are empty if the points do not determine the parameters."""

    formula: ClassVar[str] = "L(N, D) = E + A / N^alpha + B / D^beta"
    optimum: ClassVar[str] = "N ~ C^a, D ~ C^(1 - a), a = beta / (alpha + beta), if C = 6 N D"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556"
    status: str
    """A key of ``STATUSES``."""
    convention: str
    """Parameters counted in ``N``: a key of ``CONVENTIONS``."""
    points: int
    values: dict[str, float] = field(default_factory=dict)
    """By ``PARAMETERS``; losses in nats per token."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """From a bootstrap over runs."""
    noise: Noise = STATED
    """The noise that the intervals assume."""
    chi2: float | None = None
    """Under the stated noise, or the noise estimated from seeds."""
    degrees: int | None = None
    """Degrees of freedom: number of points minus five."""
    condition: float | None = None
    """Ratio of the largest to the smallest standard error among combinations of parameters."""
    residuals: tuple[float, ...] = ()
    """Measured minus fitted losses, nats, in the order of the points."""
    check: Check | None = None
    """None if it was not requested."""
    replicates: dict[str, NDArray] = field(default_factory=dict, repr=False, compare=False)
    """Parameters of the replicates, for prediction intervals."""

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise ValueError(f"convention {self.convention!r} is none of {', '.join(CONVENTIONS)}")

    def loss(self, N: ArrayLike, D: ArrayLike) -> NDArray:
        """Predicted losses, nats per token."""
        if not self.values:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        return _losses(self.values, np.asarray(N, dtype=float), np.asarray(D, dtype=float))

    def band(
        self, N: ArrayLike, D: ArrayLike, level: float = LEVEL, of_runs: bool = False
    ) -> list[Interval]:
        """Intervals of the surface; with ``of_runs``, prediction intervals of measured losses."""
        if not self.replicates:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        count = len(self.replicates["E"])
        noise = of_runs * self.noise.sd * np.random.default_rng(1).standard_normal(count)
        places = zip(np.ravel(N), np.ravel(D), strict=True)
        losses = (_losses(self.replicates, n, d) for n, d in places)
        return [uncertainty.interval(loss + noise, level) for loss in losses]


def _losses(v: dict, N: ArrayLike, D: ArrayLike) -> NDArray:
    return v["E"] + v["A"] * N ** -v["alpha"] + v["B"] * D ** -v["beta"]


def fit(
    N: ArrayLike,
    D: ArrayLike,
    loss: ArrayLike,
    *,
    trunk: Iterable | None = None,
    cell: Iterable | None = None,
    convention: str = "non_embedding",
    noise: Noise = STATED,
    count: int = uncertainty.REPLICATES,
    check: bool = True,
) -> LossSurface:
    """Fit a surface to points of ``N`` parameters, ``D`` tokens and a loss in nats per token.

    ``trunk`` labels the points of one run, ``cell`` those of runs that differ in their seed only.
    Cost: 0.1 seconds for 20 points and 1,000 replicates, 0.2 with the check.
    """
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    blank = LossSurface(status="too_few", convention=convention, points=len(loss))
    if len(np.unique(N)) < 3 or len(np.unique(D)) < 3 or len(loss) < 6:
        return blank
    runs = Runs.from_labels(len(loss), trunk, cell)
    model, minima = search(N, D, loss, runs, noise)
    estimated = runs.noise(loss - model.values(minima.g_RJ, minima.c_RP)[0], noise)

    _, minima = search(N, D, loss, runs, estimated)

    def lowest(noise: Noise) -> float:  # the minimum hardly moves with the noise
        return float(search(N, D, loss, runs, noise, minima.g_RJ)[1].chi2_R[0])

    degrees, cost = len(loss) - 5, float(minima.chi2_R[0])
    result = replace(blank, status="fitted", noise=estimated, chi2=cost, degrees=degrees)
    if uncertainty.misfit(cost, estimated, degrees):
        widened = uncertainty.widen(lowest, estimated, degrees)
        result = replace(result, status="misfit", noise=widened)
    model, minima = search(N, D, loss, runs, result.noise)
    result = replace(result, condition=(condition := _condition(model, minima)))
    if len(minima.g_RJ) > 1 or condition > CONDITION:
        return replace(result, status="not_unique")
    if check:
        result = replace(result, check=_check(estimated, model, minima, loss, runs, count))
    return _with_intervals(result, model, minima, loss, runs, count)


def fit_group(points: Group, convention: str = "non_embedding", **options: Any) -> LossSurface:
    """The surface of one attention at one context; options as for ``fit``."""
    N, D = count_parameters(points, convention), points.column("tokens")
    labels = {"trunk": points.trunks, "cell": points.cells}
    return fit(N, D, points.column("loss"), convention=convention, **labels, **options)


def count_parameters(points: Group, convention: str) -> NDArray:
    """``N`` of every point by a key of ``CONVENTIONS``."""
    if convention == "non_embedding":
        return points.column("params")
    positions = points.column("params_positions") if convention == "total_less_positions" else 0
    return points.column("params_total") - positions


def search(
    N: NDArray,
    D: NDArray,
    loss: NDArray,
    runs: Runs,
    noise: Noise,
    start_RJ: NDArray = STARTS,
) -> tuple[powers.Powers, powers.Fitted]:
    """The best surface first, then all others with different exponents that fit about as well."""
    model = powers.Powers.from_variables([N, D], runs.whitener(noise))
    minima = powers.fit(model, np.tile(loss, (len(start_RJ), 1)), start_RJ)
    order = np.argsort(minima.chi2_R, kind="stable")
    good = order[minima.chi2_R[order] < minima.chi2_R[order[0]] + RISE]
    kept = [good[0]]
    for row in good[1:]:
        ratios = np.abs(np.log(minima.g_RJ[kept] / minima.g_RJ[row]))
        # The exponent of a power with coefficient 0 is undetermined.
        ratios = np.where(minima.used_RP[kept, 1:] & minima.used_RP[row, 1:], ratios, 0)
        if minima.converged_R[row] and ratios.max(axis=1).min() > np.log(APART):
            kept.append(row)
    return model, minima.rows(kept)


def _condition(model: powers.Powers, minima: powers.Fitted) -> float:
    """Condition number of the derivatives by ``E, ln A, ln B, alpha, beta``, without those of
    powers with coefficient 0."""
    used = minima.used_RP[0, 1:]
    theta = np.concatenate([minima.c_RP[0, :1], np.full(2, -np.inf), minima.g_RJ[0]])
    theta[1:3][used] = np.log(minima.c_RP[0, 1:][used])
    blank = np.zeros((1, len(model.whiten_nn)))
    _, _, hessian = powers.full_objective(model, blank, theta[None])
    keep = np.concatenate([[True], used, used])
    size = np.linalg.eigvalsh(hessian[0][np.ix_(keep, keep)])
    return float(np.sqrt(size[-1] / max(size[0], 1e-30 * size[-1])))


def _with_intervals(
    result: LossSurface,
    model: powers.Powers,
    minimum: powers.Fitted,
    loss: NDArray,
    runs: Runs,
    count: int,
) -> LossSurface:
    """The surface with values, bootstrap intervals and final status."""
    fitted = model.values(minimum.g_RJ, minimum.c_RP)[0]
    losses = uncertainty.replicates(fitted, loss - fitted, runs, result.noise, count)
    refitted = powers.fit(model, losses, np.repeat(minimum.g_RJ, count, axis=0))
    replicates = _by_name(model, refitted)
    status = "bound" if minimum.at_bound_R[0] else result.status
    return replace(
        result,
        status=status if minimum.converged_R[0] else "stopped_early",
        values={name: float(value[0]) for name, value in _by_name(model, minimum).items()},
        intervals={name: uncertainty.interval(value) for name, value in replicates.items()},
        residuals=tuple(map(float, loss - fitted)),
        replicates=replicates,
    )


def _by_name(model: powers.Powers, fitted: powers.Fitted) -> dict[str, NDArray]:
    """The parameters of each row by ``PARAMETERS``; NaN for the exponent of an unused power."""
    used = fitted.used_RP[:, 1:]
    A, B = np.where(used, np.exp(model.log_coefficients(fitted.g_RJ, fitted.c_RP)), 0).T
    alpha, beta = np.where(used, fitted.g_RJ, np.nan).T
    values = (fitted.c_RP[:, 0], A, B, alpha, beta, beta / (alpha + beta))
    return dict(zip(PARAMETERS, values, strict=True))


def _check(
    noise: Noise,
    model: powers.Powers,
    minimum: powers.Fitted,
    loss: NDArray,
    runs: Runs,
    count: int,
) -> Check:
    """The fit of Hoffmann et al. to the same points and the same replicates.

    Its difference to the other fit is compared with the differences in replicates (Hausman 1978).
    Their noise is estimated robustly, so that outliers do not increase the accepted difference.
    """
    log_N, log_D = model.log_x_Jn + model.centre_J[:, None]
    other = log_sum_exp.fit(log_N, log_D, np.log(loss))
    residual = loss - np.exp(log_sum_exp.values(other.theta_RK, log_N, log_D)[0])
    typical = 1.4826 * np.median(np.abs(residual)) * np.sqrt(len(loss) / (len(loss) - 5))
    noise = replace(
        noise, point_sd=max(STATED.point_sd, np.sqrt(max(typical**2 - noise.seed_sd**2, 0)))
    )
    fitted = model.values(minimum.g_RJ, minimum.c_RP)[0]
    losses = uncertainty.replicates(fitted, residual, runs, noise, count)
    start = np.repeat(other.theta_RK, count, axis=0)
    theirs = log_sum_exp.refit(log_N, log_D, np.log(losses), start).named()
    ours = _by_name(model, powers.fit(model, losses, np.repeat(minimum.g_RJ, count, axis=0)))
    values = {name: float(value[0]) for name, value in other.named().items()}
    own = {name: float(value[0]) for name, value in _by_name(model, minimum).items()}
    chance = {n: uncertainty.interval(theirs[n] - ours[n], CHANCE) for n in PARAMETERS}
    return Check(
        values=values,
        intervals={name: uncertainty.interval(theirs[name]) for name in PARAMETERS},
        disagrees=tuple(n for n in PARAMETERS if values[n] - own[n] not in chance[n]),
        converged=bool(other.converged_R[0]),
    )
