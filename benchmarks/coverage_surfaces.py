"""Coverage of fits of the loss surface on synthetic studies: rows of ``coverage.py``.

The truth is the surface of Besiroglu et al. 2024 (arXiv:2404.10102). A study has six sizes of three
seeds, 3M to 300M parameters, each with five branches; runs differ by 0.010 nats and points by
0.004, unless the family says otherwise. Fitters: ours (``lmscaling.fits.loss_surface``); the Huber
loss of Hoffmann et al. 2022 (arXiv:2203.15556) with a sandwich over points, which a bootstrap over
points approaches; their approach 2, a power law through vertices of parabolas; and least squares by
variable projection with the covariance of independent points.

Legend: ``R`` studies, ``G`` runs, ``n`` points, ``Q`` targets.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

import numpy as np
from coverage import WIDE, Row, each
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import linregress
from scipy.stats import t as t_distribution

from lmscaling.fits import holdout, inference, loss_surface, student
from lmscaling.fits.student import Design

SURFACE = {"E": 1.82, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
FARTHER = np.log(4)
"""The surface is predicted at four times the largest N and D, on a logarithmic scale."""
NAMES = ("E", "A", "B", "alpha", "beta", "a")
TARGETS = (*NAMES, "loss at 4 x")
FITTERS = ("ours", "Huber (Hoffmann)", "approach 2", "squares (variable projection)")
BLOWN = 0.15
"""Nats by which a run that went wrong lies above the surface."""


@dataclass(frozen=True)
class Family:
    """A kind of synthetic study."""

    sizes: int = 6
    seeds: int = 3
    points: int = 5
    run_sd: float = 0.010
    point_sd: float = 0.004
    g: float = 1.0
    tail: float = np.inf
    """Degrees of freedom of the noise."""
    uneven: bool = False
    """Noise of runs that falls from 0.025 to 0.006 nats with the size."""
    blown: int = 0
    """Runs that went wrong."""
    spike: bool = False
    """One point that went wrong."""
    data: float = 1.0
    """Tokens relative to those of a balanced study."""
    outliers: int = 0
    """Runs of one point far above the surface, 0.3 nats and more."""
    bend: str = ""
    """What the truth has beside the surface, a key of ``BENDS``."""


def _ln(value: NDArray, of: float) -> NDArray:
    return np.log(value / of)


BENDS: dict[str, Callable[[NDArray, NDArray], NDArray]] = {
    "rates off at both ends of sizes": lambda N, D: 0.002 * _ln(N, 3e7) ** 2,
    "rates off at large sizes": lambda N, D: 0.0015 * _ln(N, 3e6) ** 2,
    "alpha halves above 1e8": lambda N, D: (
        SURFACE["A"] / N ** SURFACE["alpha"] * ((1 + N / 1e8) ** (SURFACE["alpha"] / 2) - 1)
    ),
    "short runs 0.1 nats higher": lambda N, D: 0.1 * 5e7 / D,
}
"""Nats by which losses leave the surface in N or D alone; at most 0.03 at the largest sizes, but
for the last one."""


FAMILIES = {
    "clean": Family(),
    "trunk": Family(run_sd=0.020, point_sd=0.0013),
    "heavy": Family(tail=3),
    "heteroscedastic": Family(uneven=True),
    "one blown": Family(blown=1),
    "spike": Family(spike=True),
    "two blown": Family(blown=2),
    "g .9": Family(g=0.9),
    "g .7": Family(g=0.7),
    "off-centre": Family(data=30),
    "few sizes": Family(seeds=1),
    "many sizes": Family(sizes=20, seeds=1),
}
"""The twelve families of the table."""
MORE = {
    "two seeds": Family(seeds=2),
    "two seeds, blown": Family(seeds=2, blown=1),
    "ten sizes": Family(sizes=10, seeds=1),
    "four sizes": Family(sizes=4),
    "245 points": Family(sizes=49, seeds=5, points=1, outliers=5),
}


@dataclass(frozen=True)
class Study:
    """Synthetic losses."""

    design: Design
    y_n: NDArray
    star: tuple[NDArray, NDArray]
    """Where the loss is predicted, centred logarithms, ``[1]``."""

    @property
    def points(self) -> dict[str, Any]:
        """Arguments of ``loss_surface.fit``."""
        design = self.design
        N, D = np.exp(design.x_n + design.centre[0]), np.exp(design.z_n + design.centre[1])
        run = design.run_n
        return {"N": N, "D": D, "loss": self.y_n, "trunk": run, "cell": design.cell_G[run]}


Found = tuple[NDArray, NDArray, float]
"""Estimates and standard errors of ``TARGETS``, ``[Q]``, and the quantile of t."""
NONE: Found = np.full(len(TARGETS), np.nan), np.full(len(TARGETS), np.nan), np.nan


def simulate(family: Family, studies: int, seed: int = 0) -> tuple[list[Study], NDArray]:
    """Synthetic studies, and true values of ``TARGETS``, on the scales of
    ``inference.quantities``."""
    rng = np.random.default_rng(seed)
    N = np.repeat(np.geomspace(3e6, 3e8, family.sizes), family.seeds)
    G, m = len(N), family.points
    if m == 1:  # every run has a number of tokens of its own
        D = 1.2e9 * (2.0 ** (np.arange(G) % family.seeds - 2))[:, None]
    else:
        D = 1.2e9 * 2.0 ** (np.arange(m) - 2) * np.ones((G, 1))
    D = family.data * D * np.sqrt(1.7e7 / N)[:, None]
    cell = np.arange(G) if m == 1 else np.repeat(np.arange(family.sizes), family.seeds)
    run = np.repeat(np.arange(G), m)
    design = Design.from_points(np.repeat(N, m), D.ravel(), run, cell[run])
    at_N, at_D = design.centre
    truth = np.array([
        SURFACE["E"], np.log(SURFACE["A"]) - SURFACE["alpha"] * at_N,
        np.log(SURFACE["B"]) - SURFACE["beta"] * at_D, SURFACE["alpha"], SURFACE["beta"],
        np.log(family.g),
    ])  # fmt: skip

    def noise(*shape: int) -> NDArray:
        if np.isinf(family.tail):
            return rng.standard_normal(shape)
        return rng.standard_t(family.tail, shape) / np.sqrt(family.tail / (family.tail - 2))

    error = family.run_sd * noise(studies, G, 1) + family.point_sd * noise(studies, G, m)
    if family.uneven:
        error *= 2.5 * (N / N[0])[:, None] ** -0.32
    row = np.arange(studies)
    order = rng.permuted(np.tile(np.arange(G), (studies, 1)), axis=1)
    for i in range(family.blown):
        error[row, order[:, i]] += BLOWN
    for i in range(family.outliers):
        error[row, order[:, i]] += 0.3 + rng.exponential(0.5, (studies, 1))
    if family.spike:
        error[row, order[:, 0], rng.integers(m, size=studies)] += BLOWN
    star = design.x_n.max(keepdims=True) + FARTHER, design.z_n[-1:] + FARTHER
    y_Rn = student.values(truth, design.x_n, design.z_n)[0] + error.reshape(studies, -1)
    beside = 0.0
    if family.bend:
        y_Rn += BENDS[family.bend](np.repeat(N, m), D.ravel())
        beside = BENDS[family.bend](np.exp(star[0] + at_N), np.exp(star[1] + at_D))
    known = inference.quantities(truth, design.centre)[0]
    loss = student.values(truth, *star)[0] + beside
    return [Study(design, y_n, star) for y_n in y_Rn], np.append(known[:6], loss)


WRONG = {name: Family(bend=name) for name in BENDS}
PRINTED = ("clean", "heteroscedastic", "one blown", "g .7", "two seeds")
"""Families of which the loss at 4 x is judged as it is printed."""


def ours(study: Study) -> Found:
    """What is printed, if anything is."""
    verdict = inference.judge(study.design, study.y_n)
    found = verdict.kept
    if verdict.refused or not found.is_sound or loss_surface.few_runs(study.design):
        return NONE
    loss, loss_error = found.predict(*study.star)
    reach = float(t_distribution.ppf(0.975, found.degrees))
    return np.append(found.value_Q[:6], loss), np.append(found.error_Q[:6], loss_error), reach


def squares(study: Study) -> Found:
    """Least squares of points that are taken for independent. The start is a grid of exponents with
    linear coefficients, as in variable projection."""
    found = student.fit(study.design, study.y_n, robust=False)
    J = found.slope_np
    value, gradient = inference.quantities(found.theta_K, study.design.centre)
    loss, slope = student.values(found.theta_K, *study.star)
    gradient_Qp = np.concatenate([gradient[:6, :5], slope[:, :5]])
    covariance = np.linalg.pinv(J.T @ J) * found.noise.tau2
    variance = np.diag(gradient_Qp @ covariance @ gradient_Qp.T)
    reach = float(t_distribution.ppf(0.975, len(J) - 5))
    return np.append(value[:6], loss), np.sqrt(variance), reach


DELTA = 1e-3
"""Beyond it the Huber loss of Hoffmann et al. is linear in the residual."""


def log_sum_exp(theta: NDArray, x: NDArray, z: NDArray) -> tuple[NDArray, NDArray]:
    """Logarithms of losses by ``a, b, e, alpha, beta``, and their derivatives ``[n, 5]``."""
    a, b, e, alpha, beta = theta
    terms = np.stack([a - alpha * x, b - beta * z, e + 0 * x])
    log_loss = np.logaddexp.reduce(terms)
    of_N, of_D, of_E = np.exp(terms - log_loss)
    return log_loss, np.stack([of_N, of_D, of_E, -of_N * x, -of_D * z], axis=1)


def huber(design: Design, y_n: NDArray) -> NDArray:
    """``a, b, e, alpha, beta`` of Hoffmann et al., arXiv:2203.15556, appendix D.2, at the centre of
    the points, from the start of ours. The loss is summed, in units of delta (Besiroglu et al.)"""
    x, z, log_L = design.x_n, design.z_n, np.log(y_n)
    E, a, b, alpha, beta, _ = student.start(design, y_n)
    found = least_squares(
        lambda theta: (log_sum_exp(theta, x, z)[0] - log_L) / DELTA,
        [a, b, np.log(max(E, 0.1)), alpha, beta],
        cast(Any, lambda theta: log_sum_exp(theta, x, z)[1] / DELTA),
        loss="huber",
        x_scale="jac",
        ftol=1e-10,
        max_nfev=1000,
    )
    return found.x


def hoffmann(study: Study) -> Found:
    """That fit with a sandwich over points. The Huber loss is nearly that of absolute residuals:
    its curvature is averaged over a window as wide as a density estimate needs."""
    design = study.design
    theta = huber(design, study.y_n)
    a, b, e, alpha, beta = theta
    log_loss, slope = log_sum_exp(theta, design.x_n, design.z_n)
    residual = np.log(study.y_n) - log_loss
    spread = 1.4826 * np.median(np.abs(residual))
    window = max(spread * len(residual) ** -0.2, DELTA)
    high, low = (np.clip(residual + side * window, -DELTA, DELTA) for side in (1, -1))
    bread = student.invert(slope.T @ slope * ((high - low) / (2 * window)).mean())
    leverage = ((slope @ bread) * slope).sum(axis=1) * ((high - low) / (2 * window)).mean()
    score = np.clip(residual, -DELTA, DELTA) / (1 + 1e-6 - leverage)
    moved = score[:, None] * (slope @ bread)
    gradient = np.zeros((6, 5))
    gradient[0, 2] = np.exp(e)
    gradient[3, 3], gradient[5, 3] = 1 / alpha, -1 / alpha
    gradient[4:6, 4] = 1 / beta
    error = np.append(np.sqrt(((moved @ gradient.T) ** 2).sum(axis=0)), np.nan)
    error[1:3] = np.nan  # only parameters of no unit, and E, have a standard error here
    loss = np.exp(log_sum_exp(theta, *study.star)[0])
    at_N, at_D = design.centre
    value = (np.exp(e), a + alpha * at_N, b + beta * at_D, np.log(alpha), np.log(beta))
    return np.array([*value, np.log(beta / alpha), *loss]), error, 1.96


def approach_2(study: Study) -> Found:
    """Vertices of parabolas at equal compute, of losses interpolated along each run in ln C; a
    power law through the vertices. Only ``a`` has a value."""
    design = study.design
    runs = [np.flatnonzero(design.run_n == run) for run in range(design.runs)]
    compute_n = design.x_n + design.z_n
    at, budgets = [], []
    for budget in np.quantile(compute_n, [0.3, 0.4, 0.5, 0.6, 0.7]):
        near = [one for one in runs if compute_n[one[0]] <= budget <= compute_n[one[-1]]]
        x = np.array([design.x_n[one[0]] for one in near])
        if len(np.unique(x)) < 3 or len(runs) == len(compute_n):
            continue
        loss = [np.interp(budget, compute_n[one], study.y_n[one]) for one in near]
        bend, slope, _ = np.polyfit(x, loss, 2)
        if bend > 0 and x.min() < -slope / (2 * bend) < x.max():
            at.append(-slope / (2 * bend))
            budgets.append(budget)
    if len(at) < 3:
        return NONE
    line: Any = linregress(budgets, at)
    p = line.slope
    if not 0 < p < 1:
        return NONE
    value, error = NONE[0].copy(), NONE[1].copy()  # on the scale of the others, the logit
    value[5], error[5] = np.log(p / (1 - p)), line.stderr / (p * (1 - p))
    return value, error, float(t_distribution.ppf(0.975, len(at) - 2))


def printed(study: Study) -> Found:
    """What is printed after the forecasts: nothing if one missed; the loss at 4 x with the error of
    its form."""
    held = [holdout.fit(**study.points, by=by) for by in get_args(holdout.By)]
    N, D = (
        float(np.exp(at[0] + of)) for at, of in zip(study.star, study.design.centre, strict=True)
    )
    form = holdout.form_error(held, N, D)
    value, error, reach = ours(study)
    if any(one.status == "missed" for one in held):
        return NONE
    if form is None:
        return np.append(value[:-1], np.nan), error, reach
    return value, np.append(error[:-1], np.hypot(error[-1], form)), reach


FORECASTS = {name: FAMILIES[name] for name in ("clean", "heavy", "one blown", "g .7")}
BENT = 0.06
"""Nats by which a misspecified surface lies higher where it was left out."""


def forecasts(studies: int) -> list[Row]:
    """Share of studies whose forecast passes, by what was left out. A bent surface must fail."""
    made = []
    for number, (name, family) in enumerate(FORECASTS.items()):
        drawn, _ = simulate(family, studies, seed=100 + number)
        for bent in (0.0, BENT):
            for by in get_args(holdout.By):
                found = each(partial(_forecast, by=by, bent=bent), drawn)
                known = [passes for passes, off in found if off]
                off = np.concatenate([off for _, off in found])
                made.append(
                    Row(
                        law="forecast",
                        family=f"{name}, bent by {bent} where left out" if bent else name,
                        fitter="ours, test",
                        quantity=f"passes, by {by}",
                        bias=float(off.mean()),
                        rmse=float(np.sqrt((off**2).mean())),
                        coverage=float(np.mean(known)),
                        width=None,
                        refused=1 - len(known) / studies,
                        studies=studies,
                    )
                )
    return made


def _forecast(study: Study, by: holdout.By, bent: float) -> tuple[bool, list[float]]:
    """Whether it passes, and its errors: none without a surface."""
    points = study.points
    known, _ = holdout.split(points["N"], points["D"], by)
    points["loss"] = study.y_n + bent * ~known
    found = holdout.fit(**points, by=by)
    return found.status == "passed", [place.error for place in found.places]


def rows(studies: int) -> list[Row]:
    """All families and fitters, surfaces that are wrong, and forecasts."""
    return surfaces(studies) + farther(studies) + forecasts(studies)


def farther(studies: int, names: Iterable[str] = (*PRINTED, *WRONG)) -> list[Row]:
    """Losses at four times the largest N and D; and the parameters of forms that are wrong."""
    known = FAMILIES | MORE | WRONG
    made = []
    for name in names:
        drawn, target = simulate(known[name], studies, 200 + list(known).index(name))
        found = each(printed, drawn)
        made += _rows(TARGETS[-1], name, WIDE, TARGETS[-1:], found, target)
        if name in WRONG:
            made += _rows("surface", name, "ours, if the form were right", NAMES, found, target)
    return made


def surfaces(
    studies: int,
    fitters: tuple[str, ...] = FITTERS,
    families: dict[str, Family] = FAMILIES | MORE,
) -> list[Row]:
    """One row for each family, fitter and quantity."""
    all_fitters = (ours, hoffmann, approach_2, squares)
    known: dict[str, Callable[[Study], Found]] = dict(zip(FITTERS, all_fitters, strict=True))
    made = []
    seeds = {name: number for number, name in enumerate(FAMILIES | MORE)}
    for name, family in families.items():
        drawn, target = simulate(family, studies, seeds.get(name, 0))
        for fitter in fitters:
            wanted = {"ours": NAMES, "approach 2": ("a",)}.get(fitter, TARGETS)
            made += _rows("surface", name, fitter, wanted, each(known[fitter], drawn), target)
    return made


def _rows(
    law: str, family: str, fitter: str, wanted: Sequence[str], found: list[Found], target: NDArray
) -> list[Row]:
    value, error, reach = map(np.array, zip(*found, strict=True))
    made = []
    for quantity in wanted:
        i = TARGETS.index(quantity)
        off, half = value[:, i] - target[i], reach * error[:, i]
        use = np.isfinite(off)
        off, half = off[use], half[use]
        covers = len(off) > 0 and bool(np.isfinite(half).all())
        made.append(
            Row(
                law=law,
                family=family,
                fitter=fitter,
                quantity=quantity,
                bias=float(off.mean()) if len(off) else np.nan,
                rmse=float(np.sqrt((off**2).mean())) if len(off) else np.nan,
                coverage=float((np.abs(off) <= half).mean()) if covers else None,
                width=float(np.median(half)) if covers else None,
                refused=float(1 - use.mean()),
                studies=len(found),
            )
        )
    return made
