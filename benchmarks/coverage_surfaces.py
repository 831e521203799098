"""Coverage of fits of the loss surface on synthetic studies: rows of ``coverage.py``.

The truth is the surface of Besiroglu et al. 2024 (arXiv:2404.10102). A study has six sizes of three
seeds, 3M to 300M parameters, each with five branches; runs differ by 0.010 nats and points by
0.004, unless the family says otherwise. Fitters: ours (``lmscaling.fits.loss_surface``); the Huber
loss of Hoffmann et al. 2022 (arXiv:2203.15556) with a sandwich over points, which a bootstrap over
points approaches; their approach 2, a power law through vertices of parabolas; and least squares by
variable projection with the covariance of independent points.

Legend: ``R`` studies, ``G`` runs, ``m`` points of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from coverage import Row
from numpy.typing import NDArray
from scipy.stats import t as t_distribution

from lmscaling.fits import holdout, inference, log_sum_exp, loss_surface, student
from lmscaling.fits.student import Design
from lmscaling.fits.uncertainty import codes

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


Fitter = Callable[["Studies"], tuple[NDArray, NDArray, NDArray]]
"""Estimates and standard errors of ``TARGETS``, ``[R, Q]``, and the quantile of t, ``[R]``."""


@dataclass(frozen=True)
class Studies:
    """Synthetic losses of one family."""

    design: Design
    y_RGm: NDArray
    truth: NDArray
    """``[1, K]``, as ``student.Fit.theta_RK``."""
    star: tuple[NDArray, NDArray]
    """Where the loss is predicted, centred logarithms."""

    @property
    def target_Q(self) -> NDArray:
        """True values of ``TARGETS``, on the scales of ``inference.quantities``."""
        known, _ = inference.quantities(self.truth, self.design.centre)
        loss, _ = student.values(self.truth, *self.star)
        return np.append(known[0, :6], loss[0])


def simulate(family: Family, studies: int, seed: int = 0) -> Studies:
    """Losses of synthetic studies."""
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
    truth = np.array([[
        SURFACE["E"], np.log(SURFACE["A"]) - SURFACE["alpha"] * at_N,
        np.log(SURFACE["B"]) - SURFACE["beta"] * at_D, SURFACE["alpha"], SURFACE["beta"],
        np.log(family.g),
    ]])  # fmt: skip

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
    star = (design.x_Gm.max(keepdims=True)[0] + FARTHER, design.z_Gm[-1:, -1] + FARTHER)
    y_RGm = student.values(truth, design.x_Gm, design.z_Gm)[0] + error
    return Studies(design, y_RGm, truth, star)


def ours(made: Studies) -> tuple[NDArray, NDArray, NDArray]:
    """Estimates, standard errors, both ``[R, Q]`` and NaN where nothing is printed, and t."""
    verdict = inference.judge(made.design, made.y_RGm)
    kept = verdict.kept_R
    if loss_surface.few_runs(made.design):
        kept = np.full_like(kept, 2)
    value = np.full((len(kept), len(TARGETS)), np.nan)
    error, reach = value.copy(), np.full(len(kept), np.nan)
    for form, found in enumerate((verdict.plain, verdict.full)):
        loss, loss_error = found.predict(*made.star)
        use = (kept == form) & found.sound_R
        value[use] = np.concatenate([found.value_RQ[:, :6], loss], axis=1)[use]
        error[use] = np.concatenate([found.error_RQ[:, :6], loss_error], axis=1)[use]
        reach[use] = t_distribution.ppf(0.975, found.degrees)
    return value, error, reach


def squares(made: Studies) -> tuple[NDArray, NDArray, NDArray]:
    """Least squares of points that are taken for independent. The start is a grid of exponents with
    linear coefficients, as in variable projection."""
    design = made.design
    found = student.fit(design, made.y_RGm, robust=False)
    J = found.slope_RGmp[:, design.known_Gm]
    points = J.shape[1]
    covariance = np.linalg.pinv(J.transpose(0, 2, 1) @ J) * found.tau2_R[:, None, None]
    value, gradient = inference.quantities(found.theta_RK, design.centre)
    loss, slope = student.values(found.theta_RK, *made.star)
    gradient = np.concatenate([gradient[:, :6, :5], slope[..., :5]], axis=1)
    variance = np.einsum("rqp,rpk,rqk->rq", gradient, covariance, gradient, optimize=True)
    reach = np.full(len(value), t_distribution.ppf(0.975, points - 5))
    return np.concatenate([value[:, :6], loss], axis=1), np.sqrt(variance), reach


def hoffmann(made: Studies) -> tuple[NDArray, NDArray, NDArray]:
    """The Huber loss of logarithms, from the starts of ours."""
    design, known = made.design, made.design.known_Gm
    x, z, log_L = design.x_Gm[known], design.z_Gm[known], np.log(made.y_RGm[:, known])
    found = []
    for start in student.starts(design, made.y_RGm):
        E, a, b, alpha, beta, _ = start.T
        theta = np.stack([a, b, np.log(np.maximum(E, 0.1)), alpha, beta], axis=1)
        found.append(log_sum_exp.refit(x, z, log_L, theta))
    best = np.argmin([one.cost_R for one in found], axis=0)
    theta = np.array([one.theta_RK for one in found])[best, np.arange(len(best))]
    value, moved = log_sum_exp.estimate(theta, log_L, x, z, np.arange(len(x)))
    loss = np.exp(log_sum_exp.values(theta, *made.star))
    error = np.sqrt((moved**2).sum(axis=1))
    value[:, 1] += theta[:, 3] * design.centre[0]
    value[:, 2] += theta[:, 4] * design.centre[1]
    gap = np.full((len(value), 1), np.nan)  # only parameters have a standard error here
    error[:, 1:3] = np.nan
    reach = np.full(len(value), 1.96)
    return np.concatenate([value, loss], axis=1), np.concatenate([error, gap], axis=1), reach


def approach_2(made: Studies) -> tuple[NDArray, NDArray, NDArray]:
    """Vertices of parabolas at equal compute, of losses interpolated along each run in ln C; a
    power law through the vertices. Only ``a`` has a value."""
    design = made.design
    compute_Gm = design.x_Gm + design.z_Gm
    R, m = len(made.y_RGm), made.y_RGm.shape[2]
    value, error = (np.full((R, len(TARGETS)), np.nan) for _ in range(2))
    reach = np.full(R, np.nan)
    if m == 1:
        return value, error, reach
    budgets = np.quantile(compute_Gm, [0.3, 0.4, 0.5, 0.6, 0.7])
    x = design.x_Gm[:, 0]
    vertices = np.full((R, len(budgets)), np.nan)
    for i, budget in enumerate(budgets):
        spans = (compute_Gm[:, 0] <= budget) & (compute_Gm[:, -1] >= budget)
        if len(np.unique(x[spans])) < 3:
            continue
        rows = np.flatnonzero(spans)
        right = np.array([np.searchsorted(compute_Gm[g], budget) for g in rows]).clip(1, m - 1)
        part = (budget - compute_Gm[rows, right - 1]) / (
            compute_Gm[rows, right] - compute_Gm[rows, right - 1]
        )
        loss = made.y_RGm[:, rows, right - 1] * (1 - part) + made.y_RGm[:, rows, right] * part
        columns = np.stack([np.ones(len(rows)), x[rows], x[rows] ** 2], axis=1)
        _, slope, bend = np.linalg.lstsq(columns, loss.T, rcond=None)[0]
        at = -slope / (2 * bend)
        inside = (bend > 0) & (at > x[rows].min()) & (at < x[rows].max())
        vertices[inside, i] = at[inside]
    enough = np.isfinite(vertices).sum(axis=1) >= 3
    for r in np.flatnonzero(enough):
        known = np.isfinite(vertices[r])
        u = budgets[known] - budgets[known].mean()
        p = u @ vertices[r, known] / (u @ u)
        rest = vertices[r, known] - vertices[r, known].mean() - p * u
        sd = np.sqrt(rest @ rest / (known.sum() - 2) / (u @ u))
        if 0 < p < 1:  # on the scale of the others, the logit
            value[r, 5], error[r, 5] = np.log(p / (1 - p)), sd / (p * (1 - p))
            reach[r] = t_distribution.ppf(0.975, known.sum() - 2)
    return value, error, reach


FORECASTS = {name: FAMILIES[name] for name in ("clean", "heavy", "one blown", "g .7")}
BENT = 0.06
"""Nats by which a misspecified surface lies higher where it was left out."""


def forecasts(studies: int) -> list[Row]:
    """Share of studies whose forecast passes, by what was left out. A bent surface must fail."""
    made = []
    for number, (name, family) in enumerate(FORECASTS.items()):
        drawn = simulate(family, studies, seed=100 + number)
        for bent in (0.0, BENT):
            for by in ("size", "compute"):
                passes, off = _forecast(drawn, by, bent)
                known = np.isfinite(off[:, 0])
                made.append(
                    Row(
                        law="forecast",
                        family=f"{name}, bent by {bent} where left out" if bent else name,
                        fitter="ours, test",
                        quantity=f"passes, by {by}",
                        bias=float(off[known].mean()),
                        rmse=float(np.sqrt((off[known] ** 2).mean())),
                        coverage=float(passes[known].mean()),
                        width=None,
                        refused=float(1 - known.mean()),
                        studies=studies,
                    )
                )
    return made


def _forecast(made: Studies, by: holdout.By, bent: float) -> tuple[NDArray, NDArray]:
    """Whether each study passes, and the errors ``[R, n]``; NaN without a surface."""
    design = made.design
    centre = design.centre
    N, D = (
        np.exp(part[design.row_n, design.column_n] + at)
        for part, at in zip((design.x_Gm, design.z_Gm), centre, strict=True)
    )
    known, _ = holdout.split(N, D, by)
    y = made.y_RGm[:, design.row_n, design.column_n] + bent * ~known
    cell = design.cell_G[design.row_n]
    run = codes(design.row_n[known].tolist())
    part = Design.from_points(N[known], D[known], run, cell[known])
    members = [np.flatnonzero(~known)[i] for i in holdout.places(cell[~known], D[~known])]
    at_N, at_D = (np.array([values[one[0]] for one in members]) for values in (N, D))
    seen = np.stack([np.median(y[:, one], axis=1) for one in members], axis=1)
    seeds = np.array([len(one) for one in members])
    x, z = np.log(at_N) - part.centre[0], np.log(at_D) - part.centre[1]
    verdict = inference.judge(part, part.table(y[:, known]))
    passes, off = np.zeros(len(y), dtype=bool), np.full(seen.shape, np.nan)
    errors = holdout.baselines(N[known], D[known], y[:, known].T, at_N, at_D, seen.T)
    for form, found in enumerate((verdict.plain, verdict.full)):
        use = (verdict.kept_R == form) & found.sound_R
        said, error = holdout.predict(found, x, z, seeds)
        apart = seen - said
        inside = (np.abs(apart) <= holdout.limit(found, len(at_N)) * error).all(axis=1)
        rms = np.sqrt((apart**2).mean(axis=1))
        passes[use] = (inside & (rms < errors.min(axis=0)))[use]
        off[use] = apart[use]
    return passes, off


def rows(studies: int) -> list[Row]:
    """All families and fitters, and forecasts."""
    return surfaces(studies) + forecasts(studies)


def surfaces(
    studies: int,
    fitters: tuple[str, ...] = FITTERS,
    families: dict[str, Family] = FAMILIES | MORE,
) -> list[Row]:
    """One row for each family, fitter and quantity."""
    all_fitters = (ours, hoffmann, approach_2, squares)
    known: dict[str, Fitter] = dict(zip(FITTERS, all_fitters, strict=True))
    made = []
    seeds = {name: number for number, name in enumerate(FAMILIES | MORE)}
    for name, family in families.items():
        drawn = simulate(family, studies, seeds.get(name, 0))
        for fitter in fitters:
            value, error, reach = known[fitter](drawn)
            wanted = ("a",) if fitter == "approach 2" else TARGETS
            for quantity in wanted:
                i = TARGETS.index(quantity)
                off, half = value[:, i] - drawn.target_Q[i], reach * error[:, i]
                use = np.isfinite(off)
                off, half = off[use], half[use]
                covers = len(off) > 0 and bool(np.isfinite(half).all())
                made.append(
                    Row(
                        law="surface",
                        family=name,
                        fitter=fitter,
                        quantity=quantity,
                        bias=float(off.mean()) if len(off) else np.nan,
                        rmse=float(np.sqrt((off**2).mean())) if len(off) else np.nan,
                        coverage=float((np.abs(off) <= half).mean()) if covers else None,
                        width=float(np.median(half)) if covers else None,
                        refused=float(1 - use.mean()),
                        studies=studies,
                    )
                )
    return made
