"""Loss over size and data, ``L(N, D) = E + A / N^alpha + B / D^beta``.

Fitted by variable projection, which needs no lucky start: a search over the two exponents, with
``E``, ``A``, ``B`` by non-negative least squares inside, weighted by the noise of runs
(``uncertainty``). The fit of Hoffmann et al. (``log_sum_exp``) stands beside it as a check. Where
the points cannot tell the parameters, the status says so and there are no numbers.

Source: Hoffmann et al. 2022, arXiv:2203.15556, approach 3; exponents of the compute-optimal size
and data for ``C = 6 N D``: their equation 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import log_sum_exp, powers, profile, uncertainty
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import LEVEL, STATED, Interval, Noise, Runs

STATUSES = {
    "fitted": "a single minimum, within the stated noise",
    "misfit": "points are farther off than their noise; intervals are widened to match",
    "bound": "a parameter lies at its bound",
    "not_unique": "the points allow many surfaces",
    "stopped_early": "the search ran out of steps",
    "too_few": "fewer than three sizes, three amounts of data or six points",
}

CONVENTIONS = {
    "non_embedding": "without embeddings (Kaplan et al. 2020)",
    "total": "all",
    "total_less_positions": "all but learned positions",
}
"""What ``N`` may count; exponents differ with it (Pearce and Song 2024, arXiv:2406.12907)."""

PARAMETERS = ("E", "A", "B", "alpha", "beta", "a")
STARTS = np.array(list(product(np.geomspace(0.04, 2, 9), repeat=2)))
"""Pairs of exponents at which searches begin."""
APART = 1.1
"""Ratio of exponents from which two minima are two."""
CHANCE = 0.99
"""By chance the two fits lie so near in as many studies."""
CONDITION = 1e6
"""Beyond this ratio of the best to the least known direction, rounding and curvature decide the
latter. Studies of 3 x 3 points have some 1e3."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The fit of Hoffmann et al. to the same points."""

    values: dict[str, float]
    """By ``PARAMETERS``."""
    intervals: dict[str, Interval]
    disagrees: tuple[str, ...]
    """Parameters in which the two lie farther apart than by chance."""
    converged: bool


@dataclass(frozen=True, kw_only=True)
class LossSurface:
    """One surface; dictionaries are empty unless the points tell the numbers."""

    formula: ClassVar[str] = "L(N, D) = E + A / N^alpha + B / D^beta"
    optimum: ClassVar[str] = "N ~ C^a, D ~ C^(1 - a), a = beta / (alpha + beta), if C = 6 N D"
    source: ClassVar[str] = "Hoffmann et al. 2022, arXiv:2203.15556"
    status: str
    """A key of ``STATUSES``."""
    convention: str
    """What ``N`` counts: a key of ``CONVENTIONS``."""
    points: int
    values: dict[str, float] = field(default_factory=dict)
    """By ``PARAMETERS``; losses in nats per token."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """By the bootstrap over runs."""
    profiles: dict[str, Interval] = field(default_factory=dict)
    """By profile likelihood, for comparison; empty at a bound."""
    noise: Noise = STATED
    """What the intervals assume."""
    chi2: float | None = None
    """Under the noise that is stated, or that seeds show."""
    degrees: int | None = None
    """Of freedom: points less five."""
    condition: float | None = None
    """How many times worse the least known combination of parameters is known than the best."""
    residuals: tuple[float, ...] = ()
    """Measured less fitted losses, nats, in the order of the points."""
    check: Check | None = None
    """None if it was not asked for."""
    drawn: dict[str, NDArray] = field(default_factory=dict, repr=False, compare=False)
    """Parameters of the replicates, for bands around curves."""

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise ValueError(f"convention {self.convention!r} is none of {', '.join(CONVENTIONS)}")

    def loss(self, N: ArrayLike, D: ArrayLike) -> NDArray:
        """What the surface says of other sizes and data, nats per token."""
        if not self.values:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        return _losses(self.values, np.asarray(N, dtype=float), np.asarray(D, dtype=float))

    def band(
        self, N: ArrayLike, D: ArrayLike, level: float = LEVEL, of_runs: bool = False
    ) -> list[Interval]:
        """Intervals of the surface at other sizes and data, or of what runs would measure there."""
        if not self.drawn:
            raise ValueError(f"a surface of status {self.status!r} has no values")
        count = len(self.drawn["E"])
        luck = of_runs * self.noise.sd * np.random.default_rng(1).standard_normal(count)
        places = zip(np.ravel(N), np.ravel(D), strict=True)
        return [uncertainty.interval(_losses(self.drawn, n, d) + luck, level) for n, d in places]


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
    """The surface through points of ``N`` parameters, ``D`` tokens and a loss.

    ``trunk`` labels the points of one run, ``cell`` those whose runs differ in seed only. Cost: 0.1
    seconds for 20 points and 1,000 replicates, 0.2 with the check.
    """
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    blank = LossSurface(status="too_few", convention=convention, points=len(loss))
    if len(np.unique(N)) < 3 or len(np.unique(D)) < 3 or len(loss) < 6:
        return blank
    runs = Runs.of(len(loss), trunk, cell)
    model, found = _search(N, D, loss, runs, noise)
    seen = runs.noise(loss - model.values(found.g_RJ, found.c_RP)[0], noise)

    _, found = _search(N, D, loss, runs, seen)

    def lowest(noise: Noise) -> float:  # wider noise moves the minimum little
        return float(_search(N, D, loss, runs, noise, found.g_RJ)[1].chi2_R[0])

    degrees, cost = len(loss) - 5, float(found.chi2_R[0])
    result = replace(blank, status="fitted", noise=seen, chi2=cost, degrees=degrees)
    if uncertainty.misfit(cost, seen, degrees):
        result = replace(result, status="misfit", noise=uncertainty.widen(lowest, seen, degrees))
    model, found = _search(N, D, loss, runs, result.noise)
    result = replace(result, condition=(condition := _condition(model, found)))
    if len(found.g_RJ) > 1 or condition > CONDITION:
        return replace(result, status="not_unique")
    if check:
        result = replace(result, check=_check(seen, model, found, loss, runs, count))
    return _judged(result, model, found, loss, runs, count)


def of(points: Group, convention: str = "non_embedding", **options: Any) -> LossSurface:
    """The surface of an attention at a context; options as for ``fit``."""
    N, D = counted(points, convention), points.column("tokens")
    of_runs = {"trunk": points.trunks, "cell": points.cells}
    return fit(N, D, points.column("loss"), convention=convention, **of_runs, **options)


def counted(points: Group, convention: str) -> NDArray:
    """``N`` of every point by a key of ``CONVENTIONS``."""
    if convention == "non_embedding":
        return points.column("params")
    positions = points.column("params_positions") if convention == "total_less_positions" else 0
    return points.column("params_total") - positions


def _search(
    N: NDArray,
    D: NDArray,
    loss: NDArray,
    runs: Runs,
    noise: Noise,
    start_RJ: NDArray = STARTS,
) -> tuple[powers.Powers, powers.Fitted]:
    """The best surface, first, and all others that fit about as well and have other exponents."""
    model = powers.Powers.of([N, D], runs.whitener(noise))
    found = powers.fit(model, np.tile(loss, (len(start_RJ), 1)), start_RJ)
    order = np.argsort(found.chi2_R, kind="stable")
    good = order[found.chi2_R[order] < found.chi2_R[order[0]] + profile.RISE]
    kept = [good[0]]
    for row in good[1:]:
        ratios = np.abs(np.log(found.g_RJ[kept] / found.g_RJ[row]))
        # The exponent of a power without weight says nothing.
        ratios = np.where(found.used_RP[kept, 1:] & found.used_RP[row, 1:], ratios, 0)
        if found.converged_R[row] and ratios.max(axis=1).min() > np.log(APART):
            kept.append(row)
    return model, found.rows(kept)


def _condition(model: powers.Powers, found: powers.Fitted) -> float:
    """Ratio of the extreme singular values of the slopes by ``E, ln A, ln B, alpha, beta``, less
    those of powers without weight."""
    used = found.used_RP[0, 1:]
    theta = np.concatenate([found.c_RP[0, :1], np.full(2, -np.inf), found.g_RJ[0]])
    theta[1:3][used] = np.log(found.c_RP[0, 1:][used])
    blank = np.zeros((1, len(model.whiten_nn)))
    _, _, hessian = profile.objective(model, blank, theta[None])
    keep = np.concatenate([[True], used, used])
    size = np.linalg.eigvalsh(hessian[0][np.ix_(keep, keep)])
    return float(np.sqrt(size[-1] / max(size[0], 1e-30 * size[-1])))


def _judged(
    result: LossSurface,
    model: powers.Powers,
    found: powers.Fitted,
    loss: NDArray,
    runs: Runs,
    count: int,
) -> LossSurface:
    """The surface with its numbers, intervals and status."""
    fitted = model.values(found.g_RJ, found.c_RP)[0]
    drawn = uncertainty.replicates(fitted, loss - fitted, runs, result.noise, count)
    again = powers.fit(model, drawn, np.repeat(found.g_RJ, count, axis=0))
    named = _named(model, again)
    status = "bound" if found.at_bound_R[0] else result.status
    return replace(
        result,
        status=status if found.converged_R[0] else "stopped_early",
        values={name: float(value[0]) for name, value in _named(model, found).items()},
        intervals={name: uncertainty.interval(value) for name, value in named.items()},
        profiles={} if status == "bound" else _profiles(model, found, loss),
        residuals=tuple(map(float, loss - fitted)),
        drawn=named,
    )


def _named(model: powers.Powers, found: powers.Fitted) -> dict[str, NDArray]:
    """The parameters of each row by ``PARAMETERS``; a power without weight has no exponent."""
    used = found.used_RP[:, 1:]
    A, B = np.where(used, np.exp(model.log_coefficients(found.g_RJ, found.c_RP)), 0).T
    alpha, beta = np.where(used, found.g_RJ, np.nan).T
    values = (found.c_RP[:, 0], A, B, alpha, beta, beta / (alpha + beta))
    return dict(zip(PARAMETERS, values, strict=True))


def _profiles(model: powers.Powers, found: powers.Fitted, loss: NDArray) -> dict[str, Interval]:
    """Profile intervals under the same noise."""
    made = {}
    for name, which in zip(PARAMETERS, (0, 1, 2, 3, 4, "share"), strict=True):
        ends = profile.interval(model, loss[None], found, which)[0]
        ends = np.exp(ends) if name in ("A", "B") else ends
        made[name] = Interval(*(float(end) if np.isfinite(end) else None for end in ends))
    return made


def _check(
    noise: Noise,
    model: powers.Powers,
    found: powers.Fitted,
    loss: NDArray,
    runs: Runs,
    count: int,
) -> Check:
    """The fit of Hoffmann et al., to the same points and the same replicates.

    How far the two may lie apart by chance is what they do in replicates (Hausman 1978), whose
    noise is as wide as most points ask for: a few points far off shall not excuse themselves.
    """
    log_N, log_D = model.log_x_Jn + model.centre_J[:, None]
    other = log_sum_exp.fit(log_N, log_D, np.log(loss))
    residual = loss - np.exp(log_sum_exp.values(other.theta_RK, log_N, log_D)[0])
    typical = 1.4826 * np.median(np.abs(residual)) * np.sqrt(len(loss) / (len(loss) - 5))
    noise = replace(
        noise, point_sd=max(STATED.point_sd, np.sqrt(max(typical**2 - noise.seed_sd**2, 0)))
    )
    drawn = uncertainty.replicates(
        model.values(found.g_RJ, found.c_RP)[0], residual, runs, noise, count
    )
    start = np.repeat(other.theta_RK, count, axis=0)
    again = log_sum_exp.refit(log_N, log_D, np.log(drawn), start).named()
    mine = _named(model, powers.fit(model, drawn, np.repeat(found.g_RJ, count, axis=0)))
    values = {name: float(value[0]) for name, value in other.named().items()}
    here = _named(model, found)
    apart = {name: uncertainty.interval(again[name] - mine[name], CHANCE) for name in PARAMETERS}
    return Check(
        values=values,
        intervals={name: uncertainty.interval(again[name]) for name in PARAMETERS},
        disagrees=tuple(
            name for name in PARAMETERS if values[name] - float(here[name][0]) not in apart[name]
        ),
        converged=bool(other.converged_R[0]),
    )
