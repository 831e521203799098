"""A design trained in simulation, and judged by the estimators of the report.

A study is a truth with noise: runs scatter as the truth says, over cells by a further factor of
e^0.3 where a question compares pairs, and runs of one seed of two attentions correlate. Noise is
drawn for every run that any design could have, so all designs of a study meet the same luck.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.design import questions
from lmscaling.design.asked import PAIRS, Asked, Candidate, Option
from lmscaling.design.draws import CORRELATION, Draws
from lmscaling.fits import gaps, loss_surface, multiplier, optimum, paired_losses, power_law
from lmscaling.fits.multiplier import Multipliers
from lmscaling.fits.noise import Place
from lmscaling.fits.uncertainty import Interval

BY_CHANCE = 0.3
"""Standard deviation of the logarithm of a cell's noise, over cells."""
OF_POINTS = 0.2
"""Share of single points in the variance of a curve."""
CURVE = np.geomspace(1 / 400, 1, 40)
"""Shares of the budget at which curves have losses."""


class World(Protocol):
    """What is true of a study."""

    @property
    def sd(self) -> float:
        """Nats between runs."""
        ...

    @property
    def point_sd(self) -> float:
        """Nats between points of a run."""
        ...

    def loss(self, attention: str, candidate: Candidate, share: ArrayLike) -> NDArray:
        """Expected losses at shares of the study's budget."""
        ...

    def truth(self, asked: Asked, candidates: Sequence[Candidate]) -> float:
        """The answer, on the scale of ``asked.KINDS``; NaN if it is not known."""
        ...


@dataclass(frozen=True)
class Drawn:
    """The world of one truth."""

    draws: Draws
    """Of one row."""
    asked: Asked

    @property
    def sd(self) -> float:
        return float(self.draws.run_sd_M[0])

    @property
    def point_sd(self) -> float:
        return float(self.draws.point_sd_M[0])

    def loss(self, attention: str, candidate: Candidate, share: ArrayLike) -> NDArray:
        share = np.asarray(share, dtype=float)
        is_other = self.asked.kind in PAIRS and attention == self.asked.attention
        if is_other and self.asked.kind == "crossing":
            far = np.log(share) - self.draws.crossing_M[0]
            return self._surface(candidate, share) + self.draws.slope_M[0] * far
        gain = np.exp(self.draws.gain_M[0]) if is_other else 1.0
        return self._surface(candidate, share * gain)

    def _surface(self, candidate: Candidate, share: NDArray) -> NDArray:
        return self.draws.surface(candidate.params, candidate.tokens * share)[0][0]

    def truth(self, asked: Asked, candidates: Sequence[Candidate]) -> float:
        beta, alpha = self.draws.theta_MK[0, 4], self.draws.theta_MK[0, 3]
        if asked.kind == "size":
            found = questions.answer(asked, list(candidates), Option(), self.draws)
            assert isinstance(found, questions.BestSize)
            mean = np.mean([np.log(one.params) for one in candidates])
            return float(found.at_M[0] + mean) if found.inside_M[0] else np.nan
        if asked.kind == "gap":
            here = _here(asked, candidates)
            both = [self.loss(name, here, 1.0) for name in (asked.attention, asked.reference)]
            return float(both[0] - both[1])
        return float({
            "multiplier": self.draws.gain_M[0], "crossing": self.draws.crossing_M[0],
            "beta": np.log(beta), "a": np.log(beta / alpha), "gamma": beta,
        }[asked.kind])  # fmt: skip


def worlds(asked: Asked, draws: Draws, number: int) -> Iterator[Drawn]:
    """The first truths, each as a world."""
    for i in range(min(number, len(draws.run_sd_M))):
        yield Drawn(draws.rows(np.array([i])), asked)


class Outcome(NamedTuple):
    """What the report says of one simulated study."""

    half: float
    """Infinite without an interval."""
    covers: bool | None
    """None without an interval, or if the truth is not known."""


def simulate(
    asked: Asked,
    candidates: Sequence[Candidate],
    counts: NDArray,
    option: Option,
    world: World,
    seed: int,
    most: int = 24,
) -> Outcome:
    """One study of a design, from noise to the interval of the report. Of a gap at all sizes, the
    mean logarithm of their half-widths, and whether one of the intervals holds the truth.

    Raises:
        ValueError: A candidate has more than ``most`` seeds.
    """
    if counts.max() > most:
        raise ValueError(f"a candidate has {counts.max()} seeds; allowed: up to {most}")
    if not counts.any():
        return Outcome(np.inf, None)
    sizes = [one.size for one in candidates if one.context == asked.context]
    if asked.kind == "gap" and asked.size is None:
        parts = [
            simulate(replace(asked, size=size), candidates, counts, option, world, seed, most)
            for size in sizes
        ]
        mean = float(np.exp(np.mean([np.log(part.half) for part in parts])))
        return Outcome(mean, parts[seed % len(parts)].covers)
    rng = np.random.default_rng(seed)
    interval = ESTIMATORS[asked.kind](_Study(asked, candidates, counts, option, world, rng, most))
    if interval is None or interval.assumed is not None or not np.isfinite(interval.width):
        return Outcome(np.inf, None)
    truth = world.truth(asked, candidates)
    return Outcome(interval.width / 2, None if np.isnan(truth) else truth in interval)


class Checked(NamedTuple):
    """Of several simulated studies."""

    studies: int
    half_width: float
    """Median, of the studies with an interval too."""
    coverage: float
    """NaN without intervals."""
    without: float
    """Share of the studies for which the report has no interval."""


def check(
    asked: Asked,
    candidates: Sequence[Candidate],
    counts: NDArray,
    option: Option,
    draws: Draws,
    number: int,
    seconds: float = np.inf,
) -> Checked:
    """A design in so many studies, or in as many as a time allows."""
    start, found = time.monotonic(), []
    for i, world in enumerate(worlds(asked, draws, number)):
        if i and time.monotonic() - start > seconds:
            break
        found.append(simulate(asked, candidates, counts, option, world, i, int(counts.max())))
    return summary(found)


def summary(found: Iterable[Outcome]) -> Checked:
    """Medians and shares of simulated studies."""
    found = list(found)
    half = np.array([one.half for one in found])
    covers = [one.covers for one in found if one.covers is not None]
    return Checked(
        len(found),
        float(np.median(half)),
        float(np.mean(covers)) if covers else np.nan,
        float(np.mean(np.isinf(half))),
    )


@dataclass
class _Study:
    """A study that is being simulated."""

    asked: Asked
    candidates: Sequence[Candidate]
    counts: NDArray
    option: Option
    world: World
    rng: np.random.Generator
    most: int

    def used(self) -> Iterator[tuple[int, Candidate, int]]:
        """Candidates of the design with their number and their seeds."""
        for c, (one, k) in enumerate(zip(self.candidates, self.counts, strict=True)):
            if k:
                yield c, one, int(k)

    def normal(self, *shape: int) -> NDArray:
        """Noise for every seed of every candidate, ``[C, most, ...]``."""
        return self.rng.standard_normal((len(self.candidates), self.most, *shape))


def _here(asked: Asked, candidates: Sequence[Candidate]) -> Candidate:
    return next(o for o in candidates if (o.size, o.context) == (asked.size, asked.context))


def _pairs(study: _Study, points: int) -> Iterator[tuple[Candidate, str, int, NDArray]]:
    """Noise ``[points]`` of every run of a study of pairs, nats."""
    sd = study.world.sd * np.exp(BY_CHANCE * study.rng.standard_normal(len(study.candidates)))
    run, point = study.normal(3), study.normal(3, points)
    single = OF_POINTS if points > 1 else 0.0
    noise = np.sqrt(1 - single) * run[..., None] + np.sqrt(single) * point
    own, both = np.sqrt(1 - CORRELATION), np.sqrt(CORRELATION)
    for c, one, k in study.used():
        for a, name in enumerate((study.asked.reference, study.asked.attention)):
            for seed in range(k):
                of_run = both * noise[c, seed, 2] + own * noise[c, seed, a]
                yield one, name, seed, sd[c] * of_run


def _gap(study: _Study) -> Interval | None:
    asked = study.asked
    found = gaps.compare(
        (
            "measured", one.size, one.params, one.context, name == asked.reference, name, seed,
            float(study.world.loss(name, one, study.option.budget) + noise[0]), None,
        )
        for one, name, seed, noise in _pairs(study, 1)
    )  # fmt: skip
    here = _here(asked, study.candidates)
    return next(
        (one.interval for one in found if (one.size, one.context) == (here.size, here.context)),
        None,
    )


def _curves(study: _Study) -> Multipliers | None:
    rows = []
    share = CURVE[study.option.budget * (1 + 1e-9) >= CURVE]
    for one, name, seed, noise in _pairs(study, len(share)):
        loss = study.world.loss(name, one, share) + noise
        head = ("measured", one.size, one.params, one.context, name == study.asked.reference)
        rows += [(*head, name, seed, 1e6 * x, x, None, y) for x, y in zip(share, loss, strict=True)]
    here = _here(study.asked, study.candidates)
    pairs = multiplier.compare(rows)
    return next((p.result for p in pairs if (p.size, p.context) == (here.size, here.context)), None)


def _multiplier(study: _Study) -> Interval | None:
    found, loss = _curves(study), study.asked.loss
    assert loss is not None
    if found is None or not found.levels:
        return None
    level = min(found.levels, key=lambda one: abs(one.loss - loss))
    if abs(level.loss - loss) > 0.1 * loss:  # the curves did not come to it
        return None
    return _logs(level.intervals["updates"], 1.0)


def _crossing(study: _Study) -> Interval | None:
    found = _curves(study)
    points = found.crossings["updates"].points if found else ()
    return _logs(points[-1].interval, 1e6) if points else None


def _logs(interval: Interval, unit: float) -> Interval:
    return _mapped(interval, lambda end: np.log(end / unit))


def _mapped(interval: Interval, function: Callable[[float], float]) -> Interval:
    """Both ends by an increasing function; an open end stays open."""
    low, high = (
        None if end is None else float(function(end)) for end in (interval.low, interval.high)
    )
    return Interval(low, high, interval.assumed)


def _runs(study: _Study) -> tuple[NDArray, ...]:
    """Columns N, D, share, loss, run and cell of the points of single runs."""
    share = study.option.points
    run, point = study.normal(), study.normal(len(share))
    rows = []
    for c, one, k in study.used():
        loss = study.world.loss(study.asked.attention, one, share)
        for seed in range(k):
            noise = study.world.sd * run[c, seed] + study.world.point_sd * point[c, seed]
            label = c * study.most + seed
            rows += [
                (one.params, one.tokens * s, s, y, label, c)
                for s, y in zip(share, loss + noise, strict=True)
            ]
    return tuple(np.array(rows).T)


def _surface(study: _Study) -> Interval | None:
    N, D, _, loss, run, cell = _runs(study)
    law = loss_surface.fit(N, D, loss, trunk=run, cell=cell, check=False)
    interval = law.intervals.get(study.asked.kind)
    if interval is None or study.asked.kind == "beta":
        return interval and _logs(interval, 1.0)
    return _mapped(interval, lambda end: np.log(end / (1 - end)))


def _gamma(study: _Study) -> Interval | None:
    _, _, share, loss, run, _ = _runs(study)
    curve = power_law.Curve.from_points(share, loss, run, share)
    law = power_law.fit_curves({0: curve}, {0: Place(1.0, 1.0)})[0]
    return law.intervals.get("gamma")


def _size(study: _Study) -> Interval | None:
    noise = study.world.sd * study.normal()
    known = [(c, one, seed) for c, one, k in study.used() for seed in range(k)]
    loss = [
        float(study.world.loss(study.asked.attention, one, 1.0)) + noise[c, seed]
        for c, one, seed in known
    ]
    table = paired_losses.Table.from_losses(
        [one.params for _, one, _ in known], loss, [seed for _, _, seed in known]
    )
    table = table.without(table.deviating())
    scatter = paired_losses.measure({0: table}, {0: Place(1.0, 1.0)})[0]
    found = optimum.fit(table, scatter).interval
    return found and _logs(found, 1.0)


ESTIMATORS = {
    "gap": _gap, "multiplier": _multiplier, "crossing": _crossing, "beta": _surface,
    "a": _surface, "gamma": _gamma, "size": _size,
}  # fmt: skip
