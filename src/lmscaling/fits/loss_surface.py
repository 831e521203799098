"""Loss over size and data, ``L(N, D) = E + A / N^alpha + B / D^beta``.

Fitted by a multivariate t distribution of whole runs (``student``), so that one run that went wrong
does not decide the exponents. Intervals are from the influence of runs; their coverage is in
docs/statistics.md. The sum is tested against the scatter of seeds, or for an interaction of ``N``
and ``D``. Where it is refused the form with interaction is tried; where that is refused too, or
where the runs could hide one that went wrong, there is a status and there are no numbers. The fit
of Hoffmann et al. (``log_sum_exp``) serves as a check.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 3; exponents of the compute-optimal size
and data for ``C = 6 N D``: their equation 4.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as t_distribution

from lmscaling.fits import inference, log_sum_exp, student
from lmscaling.fits.inference import Estimate
from lmscaling.fits.points import Group
from lmscaling.fits.student import Design
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

STATUSES = {
    "fitted": "not refused by its test",
    "interaction": "the sum is refused; the form with interaction of N and D is not",
    "refused": "refused by the test: no form describes the losses",
    "few_runs": "fewer than ten runs, or a size of one run among fewer than ten sizes: a run that "
    "went wrong could not be told from a size",
    "schedule": "the schedule of these runs is unknown: no surface",
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

OBJECTIVE = "likelihood of a multivariate t distribution of whole runs, REML scales"
STARTS_SAID = "121 pairs of exponents from 0.06 to 2, E, A and B linear; the best three descend"

PARAMETERS = ("E", "A", "B", "alpha", "beta", "a")
FEWEST_RUNS = 10
MANY_SIZES = 10
"""Sizes from which one run a size suffices."""
CHANCE = 0.99
"""Level of the interval of the difference between the two fits."""
FLAGGED = 0.05
"""Chance that any run is named although none went wrong."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The fit of Hoffmann et al. to the same points."""

    values: dict[str, float]
    """By ``PARAMETERS``."""
    intervals: dict[str, Interval]
    """Around ``values``, from the influence of runs on that fit."""
    disagrees: tuple[str, ...]
    """Parameters in which the two fits differ significantly."""
    converged: bool


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class RunInfluence:
    """What one run does to the surface."""

    run: Hashable
    without: dict[str, float]
    """``alpha``, ``beta`` and ``a`` without the run, in one step from the fit through all."""
    moved: float
    """Largest change of ``alpha``, ``beta`` or ``a`` in standard errors."""
    deviation: float
    """Mean residual of the run if it is left out, in standard errors."""
    flagged: bool
    """Whether so large a deviation is rarer than 5 % for any run of the study."""


@dataclass(frozen=True, kw_only=True)
class LossSurface:
    """One surface; its dictionaries are empty if the runs do not determine the parameters."""

    formula: ClassVar[str] = "L(N, D) = E + A / N^alpha + B / D^beta"
    interacting: ClassVar[str] = (
        "L(N, D) = E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g, g = 1 in the sum"
    )
    optimum: ClassVar[str] = "N ~ C^a, D ~ C^(1 - a), a = beta / (alpha + beta), if C = 6 N D"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556"
    status: str
    """A key of ``STATUSES``."""
    convention: str
    """Parameters counted in ``N``: a key of ``CONVENTIONS``."""
    points: int
    runs: int = 0
    values: dict[str, float] = field(default_factory=dict)
    """By ``PARAMETERS``, and ``g`` with interaction; losses in nats per token."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """From the influence of runs."""
    beside: dict[str, float] = field(default_factory=dict)
    """The other form: with interaction, or the sum where that is refused."""
    beside_intervals: dict[str, Interval] = field(default_factory=dict)
    """Empty for a refused sum."""
    tests: tuple[Test, ...] = ()
    """Of the sum: F against seeds, if there are enough, and t of the interaction."""
    run_sd: float | None = None
    """Scale of the deviations that the points of a run share, nats; None if runs are points."""
    point_sd: float | None = None
    """Scale of the deviations of single points, nats."""
    nu: float | None = None
    """Degrees of freedom of the t distribution."""
    condition: float | None = None
    """Ratio of the largest to the smallest standard error among combinations of parameters, if
    points were independent."""
    residuals: tuple[float, ...] = ()
    """Measured minus fitted losses, nats, in the order of the points."""
    influence: tuple[RunInfluence, ...] = ()
    """One for each run, the most influential first."""
    check: Check | None = None
    """None if it was not requested."""
    estimate: Estimate | None = field(default=None, repr=False, compare=False)
    """The fit that was kept, for predictions; without numbers it draws the curve only."""
    coefficients: dict[str, float] = field(default_factory=dict)
    """Of the kept fit, by ``PARAMETERS`` and ``g``, also where the runs do not determine them: for
    drawing."""

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise ValueError(f"convention {self.convention!r} is none of {', '.join(CONVENTIONS)}")

    def loss(self, N: ArrayLike, D: ArrayLike) -> NDArray:
        """Predicted losses, nats per token."""
        return self._predict(N, D)[0]

    def errors(self, N: ArrayLike, D: ArrayLike) -> NDArray:
        """Standard errors of predicted losses, without the noise of a measurement."""
        return self._predict(N, D)[1]

    def band(self, N: ArrayLike, D: ArrayLike, level: float = LEVEL) -> list[Interval]:
        """Intervals of the surface."""
        loss, error = self._predict(N, D)
        assert self.estimate is not None
        reach = t_distribution.ppf((1 + level) / 2, self.estimate.degrees) * error
        ends = zip(np.ravel(loss - reach), np.ravel(loss + reach), strict=True)
        return [Interval(float(low), float(high)) for low, high in ends]

    def _predict(self, N: ArrayLike, D: ArrayLike) -> tuple[NDArray, NDArray]:
        if self.estimate is None:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        N, D = np.broadcast_arrays(np.asarray(N, dtype=float), np.asarray(D, dtype=float))
        centre = self.estimate.design.centre
        places = (np.log(N.ravel()) - centre[0], np.log(D.ravel()) - centre[1])
        loss, error = self.estimate.predict(*places)
        return loss[0].reshape(N.shape), error[0].reshape(N.shape)


def fit(
    N: ArrayLike,
    D: ArrayLike,
    loss: ArrayLike,
    *,
    trunk: Iterable | None = None,
    cell: Iterable | None = None,
    convention: str = "non_embedding",
    check: bool = True,
) -> LossSurface:
    """Fit a surface to points of ``N`` parameters, ``D`` tokens and a loss in nats per token.

    ``trunk`` labels the points of one run, ``cell`` those of runs that differ in their seed only.
    Cost: 0.1 CPU seconds for 20 runs of 5 points, 0.3 for 245 runs of one point; with the check
    0.5 and 2.
    """
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    labels = list(range(len(loss)) if trunk is None else trunk)
    run = codes(labels)
    blank = LossSurface(status="too_few", convention=convention, points=len(loss))
    if len(np.unique(N)) < 3 or len(np.unique(D)) < 3 or len(loss) < 6:
        return blank
    blank = replace(blank, runs=int(run.max()) + 1)
    design = Design.from_points(N, D, run, codes(run if cell is None else cell))
    if not _separates(design):
        return replace(blank, status="not_unique")
    y = design.table(loss)[None]
    names = [labels[i] for i in np.unique(run, return_index=True)[1]]
    verdict = inference.judge(design, y)
    plain, full, form = verdict.plain, verdict.full, int(verdict.kept_R[0])
    best = full if form else plain
    law = replace(
        blank,
        status=("fitted", "interaction", "refused")[form],
        tests=tuple(map(_test, filter(None, (plain.lack, verdict.interaction)))),
        condition=float(best.condition_R[0]),
    )
    if best.at_bound_R[0]:
        return replace(law, status="bound")
    if not best.fit.converged_R[0]:
        return replace(law, status="stopped_early")
    if law.condition is None or law.condition > inference.CONDITION:
        return replace(law, status="not_unique")
    values_n = student.values(best.fit.theta_RK, design.x_Gm, design.z_Gm)[0][0]
    law = replace(
        law,
        estimate=best,
        coefficients=_values(best),
        residuals=tuple(map(float, loss - values_n[design.row_n, design.column_n])),
        point_sd=float(np.sqrt(best.fit.tau2_R[0])),
        run_sd=None if design.known_Gm.shape[1] == 1 else float(np.sqrt(best.fit.sigma2_R[0])),
        nu=float(best.fit.nu_R[0]),
    )
    if law.status == "refused":
        return law
    if few_runs(design):
        return replace(law, status="few_runs")
    law = replace(law, values=_values(best))
    other = plain if form else full
    if other.sound_R[0]:
        law = replace(law, beside=_values(other))
        law = law if form else replace(law, beside_intervals=_intervals(other))
    if check:
        law = replace(law, check=_check(plain, loss, N, D, run))
    return replace(law, intervals=_intervals(best), influence=_influence(best, names))


def fit_group(points: Group, convention: str = "non_embedding", **options: Any) -> LossSurface:
    """The surface of one attention at one context; options as for ``fit``. Runs of an unknown
    schedule have none: their losses are not those of one schedule at several lengths."""
    if points.schedule == "unknown":
        return LossSurface(status="schedule", convention=convention, points=len(points.points))
    N, D = count_parameters(points, convention), points.column("tokens")
    labels = {"trunk": points.trunks, "cell": points.cells}
    return fit(N, D, points.column("loss"), convention=convention, **labels, **options)


def count_parameters(points: Group, convention: str) -> NDArray:
    """``N`` of every point by a key of ``CONVENTIONS``."""
    if convention == "non_embedding":
        return points.column("params")
    positions = points.column("params_positions") if convention == "total_less_positions" else 0
    return points.column("params_total") - positions


def few_runs(design: Design) -> bool:
    """Whether a run that went wrong could pass for a size: fewer than ten runs, or some size with a
    single run and fewer than ten sizes."""
    used = design.size_G > 0
    sizes = np.unique(design.x_Gm[used, 0].round(9), return_counts=True)[1]
    return bool(used.sum() < FEWEST_RUNS or (sizes.min() < 2 and len(sizes) < MANY_SIZES))


def _separates(design: Design) -> bool:
    """Whether ``N`` and ``D`` vary independently of each other."""
    both = np.stack([design.x_Gm[design.known_Gm], design.z_Gm[design.known_Gm]])
    return bool(abs(np.corrcoef(both)[0, 1]) < 1 - 1e-9)


def _test(lack: inference.Lack) -> Test:
    return Test(
        statistic=float(lack.statistic_R[0]),
        numerator=lack.numerator,
        denominator=lack.denominator,
        p_value=float(lack.p_R[0]),
    )


PLACES = {name: inference.QUANTITIES.index(name) for name in PARAMETERS}
EXPONENTS = ("alpha", "beta", "a")


def _values(estimate: Estimate) -> dict[str, float]:
    return {n: float(inference.back(n, estimate.value_RQ[0, i])) for n, i in _places(estimate)}


def _intervals(estimate: Estimate) -> dict[str, Interval]:
    low, high = estimate.ends(LEVEL)[:, 0]
    return {
        name: Interval(float(inference.back(name, low[i])), float(inference.back(name, high[i])))
        for name, i in _places(estimate)
    }


def _places(estimate: Estimate) -> list[tuple[str, int]]:
    names = [*PARAMETERS, "g"] if estimate.form == "interaction" else PARAMETERS
    return [(name, inference.QUANTITIES.index(name)) for name in names]


def _influence(estimate: Estimate, runs: Sequence[Hashable]) -> tuple[RunInfluence, ...]:
    """What every run does, the most influential first."""
    p = student.FORMS[estimate.form]
    moved_Gp = estimate.influence_RGp[0]
    theta = np.repeat(estimate.fit.theta_RK, len(moved_Gp), axis=0)
    theta[:, :p] -= moved_Gp
    theta[:, 3:5] = np.clip(theta[:, 3:5], *student.EXPONENTS)
    without, _ = inference.quantities(theta, estimate.design.centre)
    exponents = [PLACES[name] for name in EXPONENTS]
    change = np.abs(without - estimate.value_RQ)[:, exponents] / estimate.error_RQ[0, exponents]
    deviation = inference.deviations(estimate)[0]
    limit = t_distribution.isf(FLAGGED / 2 / len(runs), max(estimate.degrees - 1, 1))
    found = [
        RunInfluence(
            run=run,
            without={n: float(inference.back(n, without[i, PLACES[n]])) for n in EXPONENTS},
            moved=float(change[i].max()),
            deviation=float(deviation[i]),
            flagged=bool(abs(deviation[i]) > limit),
        )
        for i, run in enumerate(runs)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.moved))


def _check(plain: Estimate, loss: NDArray, N: NDArray, D: NDArray, run: NDArray[np.intp]) -> Check:
    """The fit of Hoffmann et al., and whether it differs from the sum by more than chance: the
    influences of a run on both are subtracted, so that noise they share does not count."""
    log_N, log_D, log_L = np.log(N), np.log(D), np.log(loss)
    other = log_sum_exp.fit(log_N, log_D, log_L)
    value, theirs = log_sum_exp.estimate(other.theta_RK, log_L[None], log_N, log_D, run)
    p, runs = student.FORMS[plain.form], plain.runs
    _, gradient = inference.quantities(plain.fit.theta_RK, plain.design.centre)
    ours = np.einsum("rqp,rgp->rgq", gradient[:, :6, :p], plain.influence_RGp)
    degrees = runs - student.FORMS["sum"]
    error, apart = (
        np.sqrt((moved[0] ** 2).sum(axis=0) * (runs - 1) / runs)
        for moved in (theirs, theirs - ours)
    )
    reach = t_distribution.ppf((1 + LEVEL) / 2, degrees) * error
    chance = t_distribution.ppf((1 + CHANCE) / 2, degrees) * apart
    far = np.abs(value[0] - plain.value_RQ[0, :6]) > chance
    return Check(
        values={name: float(inference.back(name, value[0, i])) for name, i in PLACES.items()},
        intervals={
            name: Interval(
                *(float(inference.back(name, value[0, i] + s * reach[i])) for s in (-1, 1))
            )
            for name, i in PLACES.items()
        },
        disagrees=tuple(name for name, i in PLACES.items() if far[i]),
        converged=bool(other.converged_R[0]),
    )
