"""Coverage of the time law, the best context and the best size on synthetic studies.

A study has four tables or six curves, which share what they know about noise; one of them is
judged. Runs of one seed share a part of their noise. The previous way, as a baseline, fits a
parabola or a curve by squares and takes a noise of 0.002 nats, or that of the residuals, for
independent.
"""

from collections.abc import Callable

import numpy as np
from coverage import OURS, WIDE, Row
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import norm

from lmscaling.fits import isotime, optimum, paired_losses, power_law
from lmscaling.fits.noise import Place, Spread
from lmscaling.fits.paired_losses import Table
from lmscaling.fits.power_law import Curve, Fit
from lmscaling.fits.uncertainty import Interval

SQUARES, ONE_SEED = "plain squares", "ours: range of one seed"
FAMILIES = ("clean", "heavy", "heteroscedastic", "one run blown up", "misspecified")
SHAPES: dict[str, Callable[[NDArray], NDArray]] = {
    "9 minutes lost at the start": lambda t: 2.5 + (t - 0.15) ** -0.3,
    "half an hour ahead": lambda t: 2.5 + (t + 0.5) ** -0.3,
    "sum of two powers": lambda t: 2.5 + 0.8 * t**-0.3 + 0.2 * t**-0.8,
    "slow tail": lambda t: 2.5 + 0.7 * t**-0.5 + 0.3 * t**-0.1,
}
"""Laws over time, in hours, that a power is not, and that its tests seldom refuse."""
DIPS: dict[str, Callable[[NDArray], NDArray]] = {
    "a kink": lambda u: 3 + 0.3 * np.exp(-1.2 * u) + 0.03 * np.maximum(u - np.log(16), 0),
    "two dips": lambda u: 3 + 0.01 * np.cos(2 * u) * np.exp(-0.2 * u) + 0.004 * (u - 2.5) ** 2,
}
"""Losses over ln T that no polynomial of degree four describes."""
DESIGNS = ((1, 0.01), (2, 0.01), (3, 0.002), (3, 0.01), (3, 0.03))
"""Seeds, and the standard deviation of a run in nats."""
BUDGETS = 24 * 2.0 ** np.arange(-4, 1)
"""Hours."""
SHARED = 0.85
"""Part of the variance of runs that all runs of a seed share."""
POINT = 0.3
"""Standard deviation of a point relative to that of a run."""
BLOWN = 0.15
PLACE = Place(1e8, 4096, "softmax")

Ends = list[tuple[float, Interval | None]]
"""Errors of the estimates of a quantity, and intervals of the error; NaN where refused."""


def rows(studies: int) -> list[Row]:
    """All rows, in the order of the table."""
    found = []
    for law in (time_law, best_context, best_size):
        for family in FAMILIES:
            for seeds, sd in DESIGNS:
                found += law(family, seeds, sd, studies)
    for law, families, seeds_of in ((time_law, SHAPES, (1, 3)), (best_context, DIPS, (3,))):
        for family in families:
            for seeds in seeds_of:
                found += law(family, seeds, 0.01, studies)
    return found


def time_law(family: str, seeds: int, sd: float, studies: int, seed: int = 0) -> list[Row]:
    """The loss half way between the last two budgets, from five points of each run; a wave of 0.02
    nats is no power."""
    rng = np.random.default_rng(seed)
    middle = float(np.sqrt(BUDGETS[-2] * BUDGETS[-1]))
    truth = float(_true_loss(family, np.array(middle)))
    ends: dict[tuple[str, str], Ends] = {}
    for _ in range(studies):
        curves = [_curve(family, seeds, sd, rng)]
        others = family if family in SHAPES or family == "heavy" else "clean"
        curves += [_curve(others, 3 if i < 2 else seeds, sd, rng) for i in range(5)]
        places = dict.fromkeys(range(len(curves)), PLACE)
        law = power_law.fit_curves(dict(enumerate(curves)), places)[0]
        plain = Fit.of(Curve.from_points(curves[0].x_n, curves[0].loss_n))
        free = plain.curve.degrees
        points = Spread(float(np.sqrt(plain.square / free)), free, 1, "measured", "")
        known = Spread(0.0, np.inf, 1, "measured", "")
        name = "loss between budgets"
        fitted = law.E is not None
        # The variance between runs comes from few seeds.
        _add(ends, (WIDE, name), float(law.loss(middle)) if fitted else None,
             law.band(middle)[0] if fitted else None, truth)  # fmt: skip
        by_squares = plain.E + plain.k * middle**-plain.gamma
        _add(ends, (SQUARES, name), by_squares, plain.loss_interval(middle, points, known), truth)
    return _rows("time law", _named(family, seeds, sd), ends, studies)


def _true_loss(family: str, t: NDArray) -> NDArray:
    loss = SHAPES[family](t) if family in SHAPES else 2.5 + t**-0.3
    return loss + 0.02 * np.sin(2 * np.log(t)) * (family == "misspecified")


def _curve(family: str, seeds: int, sd: float, rng: Generator) -> Curve:
    run, point = sd * _draw(family, (seeds, 1), rng), 0.1 * sd * _draw(family, (seeds, 5), rng)
    if family == "heteroscedastic":
        point *= np.geomspace(2.5, 1, 5) / 1.6
    loss = _true_loss(family, BUDGETS) + run + point
    if family == "one run blown up":
        loss[rng.integers(seeds)] += BLOWN
    return Curve.from_points(
        np.tile(BUDGETS, seeds), loss.ravel(), np.repeat(np.arange(seeds), len(BUDGETS))
    )


def best_context(family: str, seeds: int, sd: float, studies: int, seed: int = 0) -> list[Row]:
    """``ln T`` from eight contexts; a cubic term misspecifies a parabola."""
    u = np.log(2) * np.arange(8)
    if family in DIPS:
        fine = np.append(np.linspace(0, u[-1], 20_001), u)
        lowest = float(fine[DIPS[family](fine).argmin()])
        fixed = DIPS[family](u), lowest
        return _tables("best context", "ln T", u, lambda _: fixed, family, seeds, sd, studies, seed)

    def truth(rng: Generator) -> tuple[NDArray, float]:
        best = np.log(2) * rng.uniform(3, 4)
        v = u - best
        return 3 + 0.02 * v**2 + 0.003 * v**3 * (family == "misspecified"), best

    return _tables("best context", "ln T", u, truth, family, seeds, sd, studies, seed)


def best_size(family: str, seeds: int, sd: float, studies: int, seed: int = 0) -> list[Row]:
    """``ln N*`` at the middle of five budgets and its exponent, from nine sizes that follow the
    published Chinchilla surface, which is no parabola; misspecified with a wave of 0.03 nats."""
    u, exponent = np.log(2) * np.arange(9) + np.log(2e7), 0.3658 / (0.3478 + 0.3658)

    def truth(rng: Generator) -> tuple[NDArray, float]:
        at = u[4] + np.log(2) * rng.uniform(-0.3, 0.3)
        # Tokens at which this size is the best of the middle budget, and their product.
        ratio = 0.3478 * 482.01 / (0.3658 * 2085.43)
        compute = np.exp(at) ** (1 / exponent) / ratio ** (1 / 0.3658)
        tokens = compute * (BUDGETS / BUDGETS[2]) / np.exp(u)[:, None]
        loss = 1.82 + 482.01 * np.exp(-0.3478 * u)[:, None] + 2085.43 * tokens**-0.3658
        if family == "misspecified":
            loss = loss + 0.03 * np.sin(2.2 * u)[:, None]
        return loss, at

    return _tables("best size", "ln N*", u, truth, family, seeds, sd, studies, seed, exponent)


def _tables(
    law: str, name: str, u: NDArray, truth: Callable, family: str, seeds: int, sd: float,
    studies: int, seed: int, exponent: float | None = None,
) -> list[Row]:  # fmt: skip
    rng = np.random.default_rng(seed)
    ends: dict[tuple[str, str], Ends] = {}
    for _ in range(studies):
        mean, best = truth(rng)
        mean = mean.reshape(len(u), -1)
        noise = "heavy" if family == "heavy" else "clean"
        tables = [_table(u, mean, family, seeds, sd, rng)]
        tables += [_table(u, mean, noise, max(seeds, 2), sd, rng) for _ in range(3)]
        kept = {i: table.without(table.deviating()) for i, table in enumerate(tables)}
        scatter = paired_losses.measure(kept, dict.fromkeys(kept, PLACE))[0]
        middle = mean.shape[1] // 2
        of_sizes = exponent is not None
        found = (
            optimum.fit_moves(kept[0], scatter, middle)[0]
            if of_sizes
            else optimum.fit(kept[0], scatter)
        )
        fitter = (OURS if of_sizes else WIDE) if seeds > 1 else ONE_SEED
        fitter = WIDE if seeds == 2 and family == "one run blown up" else fitter
        at = None if found.at is None else float(np.log(found.at))
        _add(ends, (fitter, name), at, _logs(found.interval), best)
        _add(ends, (SQUARES, name), *_parabola(tables[0], middle, seeds), best)
        if exponent is not None:
            growth = isotime.fit(kept[0], BUDGETS.tolist(), scatter)
            _add(ends, (fitter, "p"), growth.p, growth.interval, exponent)
    return _rows(law, _named(family, seeds, sd), ends, studies)


def _table(u: NDArray, mean: NDArray, family: str, seeds: int, sd: float, rng: Generator) -> Table:
    values, budgets = mean.shape
    shared = np.sqrt(SHARED) * _draw(family, (seeds, 1, 1), rng)
    run = np.sqrt(1 - SHARED) * _draw(family, (seeds, values, 1), rng)
    point = POINT * _draw(family, (seeds, values, budgets), rng) * (budgets > 1)
    if family == "heteroscedastic":
        run, point = (part * np.geomspace(2.5, 1, values)[:, None] / 1.6 for part in (run, point))
    loss = mean + sd * (shared + run + point)
    if family == "one run blown up":
        loss[rng.integers(seeds), rng.integers(values)] += BLOWN
    runs = np.arange(seeds * values)
    return Table.from_losses(
        np.tile(np.exp(u), seeds), loss.reshape(len(runs), -1), runs // values, runs
    )


def _parabola(table: Table, budget: int, seeds: int) -> tuple[float | None, Interval | None]:
    """Vertex of a parabola through the lowest mean and two values on each side, if it is bracketed,
    with its standard error for independent seeds that differ by 0.002 nats."""
    values = np.unique(table.log_x_r)
    mean = table.loss_rT[:, budget].reshape(seeds, -1).mean(axis=0)
    best = int(mean.argmin())
    near = slice(max(best - 2, 0), best + 3)
    v = values[near] - values[best]
    (bend, slope, _), covariance = np.polyfit(v, mean[near], 2, cov="unscaled")
    at = -slope / (2 * bend)
    if best in (0, len(values) - 1) or bend <= 0 or not v[0] < at < v[-1]:
        return None, None
    gradient = np.array([-at / bend, -1 / (2 * bend), 0])
    half = norm.isf(0.025) * 0.002 * np.sqrt(gradient @ covariance @ gradient / seeds)
    at += values[best]
    return at, Interval(at - half, at + half)


def _draw(family: str, shape: tuple[int, ...], rng: Generator) -> NDArray:
    if family == "heavy":
        return rng.standard_t(3, shape) / np.sqrt(3)
    return rng.standard_normal(shape)


def _logs(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    ends = (None if e is None else float(np.log(e)) for e in (interval.low, interval.high))
    return Interval(*ends)


def _named(family: str, seeds: int, sd: float) -> str:
    return f"{family}, {seeds} seed{'s' * (seeds > 1)}, sd {sd:g}"


def _add(
    ends: dict[tuple[str, str], Ends],
    key: tuple[str, str],
    estimate: float | None,
    interval: Interval | None,
    truth: float,
) -> None:
    error = np.nan if estimate is None else estimate - truth
    away = None
    if interval is not None:
        low, high = (None if e is None else e - truth for e in (interval.low, interval.high))
        away = Interval(low, high, interval.assumed)
    ends.setdefault(key, []).append((error, away))


def _rows(law: str, family: str, ends: dict[tuple[str, str], Ends], studies: int) -> list[Row]:
    found = []
    for (fitter, quantity), known in ends.items():
        given = [(error, interval) for error, interval in known if not np.isnan(error)]
        error = np.array([value for value, _ in given])
        ranges = [one for _, one in given if one is not None]
        is_range = fitter == WIDE and any(one.assumed is not None for one in ranges)
        label = ONE_SEED if is_range else fitter
        found.append(
            Row(law, family, label, quantity,
                float(error.mean()) if given else 0.0,
                float(np.sqrt((error**2).mean())) if given else 0.0,
                float(np.mean([0 in one for one in ranges])) if ranges else None,
                float(np.median([one.width / 2 for one in ranges])) if ranges else None,
                1 - len(given) / len(known), studies)
        )  # fmt: skip
    return found
