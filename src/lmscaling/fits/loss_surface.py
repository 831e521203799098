"""Loss over size and data, ``L(N, D) = E + A / N^alpha + B / D^beta``.

Fitted by a multivariate t distribution of whole runs (``student``), so that one run that went wrong
does not decide the exponents. Intervals are from the influence of runs; their coverage is in
docs/statistics.md. The sum is tested against the scatter of seeds, or for an interaction of ``N``
and ``D``. Where it is refused the form with interaction is tried; where that is refused too, or
where the runs could hide one that went wrong, there is a status and there are no numbers.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 3; exponents of the compute-optimal size
and data for ``C = 6 N D``: their equation 4.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as t_distribution

from lmscaling.fits import inference, student
from lmscaling.fits.inference import Estimate, Test
from lmscaling.fits.points import Group
from lmscaling.fits.student import Design
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

STATUSES = {
    "fitted": "not refused by its test",
    "interaction": "the sum is refused; the form with interaction of N and D is not",
    "missed": "no intervals: the fit to the rest misses the largest size or compute",
    "refused": "refused by the test: no form describes the losses",
    "few_runs": "fewer than ten runs, or a size of one run among fewer than ten sizes: a run that "
    "went wrong would look like an effect of the size",
    "schedule": "the schedule of these runs is unknown: no surface",
    "no_floor": "the fit drives E to zero or below: the losses fall too straight for a floor",
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
STARTS_SAID = "121 pairs of exponents from 0.06 to 2, E, A and B linear; the best pair descends"

PARAMETERS = ("E", "A", "B", "alpha", "beta", "a")
FEWEST_RUNS = 10
MANY_SIZES = 10
"""Sizes from which one run a size suffices."""
FLAGGED = 0.05
"""Chance that any run is named although none went wrong."""


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
    estimate: Estimate | None = field(default=None, repr=False, compare=False)
    """The fit that was kept, for predictions; without numbers it draws the curve only."""
    lone: tuple[float, ...] = ()
    """Sizes of a single run, which were left out, as ``few_runs`` says; ``holdout`` predicts the
    largest."""
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

    def optimal_size(self, C: float) -> float | None:
        """The ``N`` of the lowest loss at ``C = 6 N D`` FLOPs; None without exponents."""
        if not self.values:
            return None
        A, B, alpha, beta = (self.values[name] for name in ("A", "B", "alpha", "beta"))
        g = self.values.get("g", 1.0)
        ratio = alpha * A ** (1 / g) / (beta * B ** (1 / g))
        return float((ratio * (C / 6) ** (beta / g)) ** (g / (alpha + beta)))

    def band(self, N: ArrayLike, D: ArrayLike, form_error: float = 0.0) -> list[Interval]:
        """Intervals of the surface; beyond the points with the error of its form, nats."""
        loss, error = self._predict(N, D)
        assert self.estimate is not None
        quantile = t_distribution.ppf((1 + LEVEL) / 2, self.estimate.degrees)
        reach = quantile * np.hypot(error, form_error)
        ends = zip(np.ravel(loss - reach), np.ravel(loss + reach), strict=True)
        return [Interval(float(low), float(high)) for low, high in ends]

    def _predict(self, N: ArrayLike, D: ArrayLike) -> tuple[NDArray, NDArray]:
        if self.estimate is None:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        N, D = np.broadcast_arrays(np.asarray(N, dtype=float), np.asarray(D, dtype=float))
        centre = self.estimate.design.centre
        places = (np.log(N.ravel()) - centre[0], np.log(D.ravel()) - centre[1])
        loss, error = self.estimate.predict(*places)
        return loss.reshape(N.shape), error.reshape(N.shape)


def fit(
    N: ArrayLike,
    D: ArrayLike,
    loss: ArrayLike,
    *,
    trunk: Iterable | None = None,
    cell: Iterable | None = None,
    convention: str = "non_embedding",
) -> LossSurface:
    """Fit a surface to points of ``N`` parameters, ``D`` tokens and a loss in nats per token.

    ``trunk`` labels the points of one run, ``cell`` those of runs that differ in their seed only.
    Of fewer than ten sizes those of a single run are left out, as one that follows a grid of runs.
    Cost: 15 ms of a CPU for 20 runs of 5 points, 0.1 s for 245 runs of one point.
    """
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    labels = list(range(len(loss)) if trunk is None else trunk)
    cells = codes(labels if cell is None else cell)
    shared = _shared(N, codes(labels))
    if shared.any() and not shared.all():
        names = [labels[i] for i in np.flatnonzero(shared)]
        without = _fit(N[shared], D[shared], loss[shared], names, cells[shared], convention)
        if without.values:
            return replace(without, lone=tuple(map(float, np.unique(N[~shared]))))
    return _fit(N, D, loss, labels, cells, convention)


def _fit(
    N: NDArray, D: NDArray, loss: NDArray, labels: list, cells: NDArray, convention: str
) -> LossSurface:
    """As ``fit``, of all points."""
    run = codes(labels)
    blank = LossSurface(status="too_few", convention=convention, points=len(loss))
    if len(np.unique(N)) < 3 or len(np.unique(D)) < 3 or len(loss) < 6:
        return blank
    blank = replace(blank, runs=int(run.max()) + 1)
    design = Design.from_points(N, D, run, cells)
    if not _separates(design):
        return replace(blank, status="not_unique")
    names = [labels[i] for i in np.unique(run, return_index=True)[1]]
    verdict = inference.judge(design, loss)
    plain, full, best = verdict.plain, verdict.full, verdict.kept
    kept = "fitted" if best is plain else "interaction"
    law = replace(
        blank,
        status="refused" if verdict.refused else kept,
        tests=tuple(filter(None, (plain.lack, verdict.interaction))),
        condition=best.condition,
    )
    if best.at_bound:
        no_floor = best.fit.theta_K[0] <= inference.WEIGHTLESS
        return replace(law, status="no_floor" if no_floor else "bound")
    if not best.fit.converged:
        return replace(law, status="stopped_early")
    if best.condition > inference.CONDITION:
        return replace(law, status="not_unique")
    noise = best.fit.noise
    law = replace(
        law,
        estimate=best,
        coefficients=_values(best),
        residuals=tuple(map(float, best.fit.residual_n)),
        point_sd=float(np.sqrt(noise.tau2)),
        run_sd=None if design.runs == len(loss) else float(np.sqrt(noise.sigma2)),
        nu=best.fit.nu,
    )
    if law.status == "refused":
        return law
    if few_runs(design):
        return replace(law, status="few_runs")
    other = full if best is plain else plain
    if other.is_sound:
        law = replace(law, beside=_values(other))
        law = replace(law, beside_intervals=_intervals(other)) if other is full else law
    return replace(
        law, values=_values(best), intervals=_intervals(best), influence=_influence(best, names)
    )


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
    first = np.unique(design.run_n, return_index=True)[1]
    sizes = np.unique(design.x_n[first].round(9), return_counts=True)[1]
    return design.runs < FEWEST_RUNS or bool(sizes.min() < 2 and len(sizes) < MANY_SIZES)


def _shared(N: NDArray, run: NDArray) -> NDArray[np.bool_]:
    """The points of sizes that several runs have; all, if there are enough sizes of one run."""
    sizes, at_n = np.unique(N, return_inverse=True)
    runs = np.array([len({*run[at_n == i]}) for i in range(len(sizes))])
    return (runs[at_n] > 1) | (len(sizes) >= MANY_SIZES)


def _separates(design: Design) -> bool:
    """Whether ``N`` and ``D`` vary independently of each other."""
    return bool(abs(np.corrcoef(design.x_n, design.z_n)[0, 1]) < 1 - 1e-9)


EXPONENTS = ("alpha", "beta", "a")


def _values(estimate: Estimate) -> dict[str, float]:
    return {name: float(inference.back(name, value)) for name, value, _, _ in _numbers(estimate)}


def _intervals(estimate: Estimate) -> dict[str, Interval]:
    return {
        name: Interval(float(inference.back(name, low)), float(inference.back(name, high)))
        for name, _, low, high in _numbers(estimate)
    }


def _numbers(estimate: Estimate) -> list[tuple[str, float, float, float]]:
    """Name, value and ends of the interval of each parameter on the scale of ``quantities``."""
    rows = zip(inference.QUANTITIES, estimate.value_Q, *estimate.ends(LEVEL), strict=True)
    return [row for row in rows if row[0] != "g" or estimate.form == "interaction"]


def _influence(estimate: Estimate, runs: Sequence[Hashable]) -> tuple[RunInfluence, ...]:
    """What every run does, the most influential first."""
    deviations = inference.deviations(estimate)
    limit = t_distribution.isf(FLAGGED / 2 / len(runs), max(estimate.degrees - 1, 1))
    places = [inference.QUANTITIES.index(name) for name in EXPONENTS]
    found = []
    for run, moved, deviation in zip(runs, estimate.influence_Gp, deviations, strict=True):
        theta = estimate.fit.theta_K.copy()
        theta[: len(moved)] -= moved
        theta[3:5] = np.clip(theta[3:5], *student.EXPONENTS)
        without = inference.quantities(theta, estimate.design.centre)[0][places]
        change = np.abs(without - estimate.value_Q[places]) / estimate.error_Q[places]
        one = RunInfluence(
            run=run,
            without={
                name: float(inference.back(name, value))
                for name, value in zip(EXPONENTS, without, strict=True)
            },
            moved=float(change.max()),
            deviation=float(deviation),
            flagged=bool(abs(deviation) > limit),
        )
        found.append(one)
    return tuple(sorted(found, key=lambda one: -one.moved))
