"""The noise of losses from run to run, measured from seeds.

Runs of a cell differ in their seed only, so the scatter of their losses is the noise. Few cells
have several seeds and few seeds scatter by chance, so a variance below the level of all cells is
raised towards it (Smyth 2004, doi:10.2202/1544-6115.1027). A variance above the level is not: an
attention that becomes unstable at one context would get the variance of its calm contexts. What
other cells contribute counts as at most ``MOST_DEGREES`` degrees of freedom, as fewer the more
their variances differ, and as no more than their runs leave: gaps with one baseline share its runs,
and what a seed does to all contexts alike is seen once. Where all cells scatter alike the intervals
are therefore too wide: they cover 98 to 99 %.

The same estimate serves differences of two attentions with the same seed, which share data and
order and therefore scatter less: give it the differences.

Without seeds nothing is known about noise. A range then assumes the standard deviation of the
nearest measured study, says so (``Interval.assumed``), and is no confidence interval.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, polygamma
from scipy.stats import nct, norm, t

from lmscaling.fits.uncertainty import LEVEL, Interval

MOST_DEGREES = 6.0
"""Most degrees of freedom that other cells contribute to the variance of one cell. Without this
limit the smallest of many p-values is wrong in 11 to 15 % of studies instead of 5 %."""
PRIOR_DEGREES = np.linspace(0.1, MOST_DEGREES, 200)
"""The fewer, the more the true variances of cells differ: by trigamma(d / 2), in ln."""
FEWEST_DEGREES = 3
"""With fewer degrees of freedom in all cells together, the variance of one cell says nothing about
another."""
MOST_SEEDS = 1000
LEAST = 1e-20
"""Square nats. A smaller variance is rounding: equal losses have no logarithm of theirs."""


class Place(NamedTuple):
    """Where a loss was measured."""

    params: float
    """Parameters without embeddings."""
    context: float
    """Tokens."""
    attention: str = ""


class Measured(NamedTuple):
    """Scatter of seeds in one measured cell of another study."""

    place: Place
    sd: float
    """Nats."""
    seeds: int
    source: str


OWN = "five seeds trained with this package"
ELSEWHERE = (
    Measured(Place(25e3, 256, "linear"), 0.010, 5, OWN),
    Measured(Place(25e3, 256, "softmax"), 0.017, 5, OWN),
    Measured(Place(2e3, 64, "linear"), 0.032, 5, OWN),
    Measured(Place(2e3, 64, "softmax"), 0.026, 5, OWN),
    Measured(Place(2e3, 1024, "linear"), 0.054, 5, OWN),
    Measured(Place(85e6, 1024, "softmax"), 0.0019, 80, "GPT-2 124M in modded-nanogpt"),
)
"""What other studies have measured, for ranges of a study without seeds."""


@dataclass(frozen=True)
class Spread:
    """Scatter of the runs of one cell, or of the differences of paired runs."""

    sd: float
    """Standard deviation of one run, nats."""
    degrees: float
    """Degrees of freedom of ``sd``; infinite if it is assumed."""
    seeds: int
    """Runs that were averaged."""
    basis: str
    """``measured`` with seeds of the cell, ``pooled`` from other cells, or ``assumed``."""
    said: str
    """Origin of ``sd``, for captions and notes."""

    @property
    def assumed(self) -> float | None:
        """``sd`` if it is assumed, nats."""
        return self.sd if self.basis == "assumed" else None

    @property
    def error(self) -> float:
        """Standard error of the mean over the seeds of the cell, nats."""
        return self.sd / np.sqrt(self.seeds)

    def quantile(self, level: float = LEVEL) -> float:
        """Half-width of an interval in standard errors."""
        tail = (1 - level) / 2
        return float(norm.isf(tail) if np.isinf(self.degrees) else t.isf(tail, self.degrees))

    def interval(self, mean: float, level: float = LEVEL) -> Interval:
        """Interval of the expected loss, or the range that an assumed ``sd`` gives."""
        half = self.quantile(level) * self.error
        return Interval(mean - half, mean + half, self.assumed)

    def p_value(self, mean: float) -> float:
        """Two-sided p-value of a difference, under the hypothesis that it is 0; NaN if assumed."""
        if self.assumed is not None:
            return float("nan")
        return float(2 * t.sf(abs(mean) / self.error, self.degrees))


class Noise:
    """Scatter of seeds in the cells of a study."""

    def __init__(self, spreads: Mapping[Any, Spread]) -> None:
        self._spreads = dict(spreads)

    def at(self, cell: Hashable) -> Spread:
        """The scatter in one of the cells that were given."""
        return self._spreads[cell]

    @classmethod
    def measure(
        cls,
        samples: Mapping[Any, Mapping[int, float]],
        places: Mapping[Any, Place],
        paired: bool = False,
    ) -> "Noise":
        """Scatter in every cell of ``samples``: by seed the losses of runs that have finished, or
        differences of paired losses, nats. Without seeds the runs of a pair are assumed to be
        independent, which makes the range of a difference too wide rather than too narrow."""
        variances = {}
        for cell, sample in samples.items():
            values = np.array(list(sample.values()), dtype=float)
            known = len(values) > 1 and np.ptp(values) > 0
            variance = float(values.var(ddof=1)) if known else 0.0
            variances[cell] = variance, len(values) - 1 if known else 0, len(values)
        shared = {cell: places[cell][:2] if paired else cell for cell in samples}
        return cls.from_variances(variances, places, paired, _independent(samples, shared))

    @classmethod
    def from_variances(
        cls,
        variances: Mapping[Any, tuple[float, int, int]],
        places: Mapping[Any, Place],
        paired: bool = False,
        independent: float = np.inf,
    ) -> "Noise":
        """Scatter in every cell from its variance (nats squared), degrees of freedom (0 if it is
        unknown) and number of seeds. All variances together have at most ``independent`` degrees
        of freedom."""
        repeated = [cell for cell, (_, degrees, _) in variances.items() if degrees]
        variance = np.array([variances[cell][0] for cell in repeated])
        degrees = np.array([variances[cell][1] for cell in repeated], dtype=float)
        known = [places[cell] for cell in repeated]
        level = _Level.from_cells(variance, degrees, independent)
        return cls(
            {
                cell: _spread(own, places[cell], level, known, variance, paired)
                for cell, own in variances.items()
            }
        )


def _independent(samples: Mapping[Any, Mapping[int, float]], shared: Mapping[Any, Any]) -> float:
    """Degrees of freedom of all variances together.

    Cells that share runs count once. What a seed does to all cells alike is measured by the mean
    correlation ``rho`` of their deviations: ``G`` groups then count as ``G / (1 + (G - 1) rho^2)``.
    """
    groups = {group: i for i, group in enumerate(dict.fromkeys(shared.values()))}
    seeds = {seed: i for i, seed in enumerate({seed for of in samples.values() for seed in of})}
    total_gs, cells_gs = np.zeros((2, len(groups), len(seeds)))
    for cell, sample in samples.items():
        values = np.array(list(sample.values()), dtype=float)
        if len(values) > 1 and np.ptp(values) > 0:
            place = groups[shared[cell]], [seeds[seed] for seed in sample]
            total_gs[place] += (values - values.mean()) / values.std(ddof=1)
            cells_gs[place] += 1
    mean_gs, known_gs = total_gs / np.maximum(cells_gs, 1), cells_gs > 0
    squares_s = (mean_gs**2).sum(axis=0)
    possible = float(squares_s @ np.maximum(known_gs.sum(axis=0) - 1, 0))
    products = float((mean_gs.sum(axis=0) ** 2 - squares_s).sum())
    rho = min(max(products / possible, 0.0), 1.0) if possible else 0.0
    known = int(known_gs.any(axis=1).sum())
    return float(known_gs.sum() - known) / (1 + max(known - 1, 0) * rho**2)


@dataclass(frozen=True)
class _Level:
    """What all cells together say about the variance of one."""

    variance: float
    degrees: float
    """What they count as."""
    total: float
    """Degrees of freedom of all cells."""
    cells: int

    @classmethod
    def from_cells(
        cls, variance_c: NDArray, degrees_c: NDArray, independent: float
    ) -> "_Level | None":
        total = min(float(degrees_c.sum()), independent)
        if total < FEWEST_DEGREES:
            return None
        # Logarithms of variances from few seeds are too low on average and scatter by a known
        # amount; what they scatter beyond it is the true difference between cells.
        half = degrees_c / 2
        log = np.log(np.maximum(variance_c, LEAST)) - digamma(half) + np.log(half)
        known = polygamma(1, half)
        mean = float(np.average(log, weights=1 / known))
        beyond = ((log - mean) ** 2).sum() / max(len(log) - 1, 1) - float(known.mean())
        degrees = float(np.interp(-beyond, -polygamma(1, PRIOR_DEGREES / 2), PRIOR_DEGREES))
        return cls(
            float(np.exp(mean - digamma(degrees / 2) + np.log(degrees / 2))),
            degrees, total, len(log),
        )  # fmt: skip


def _spread(
    own: tuple[float, int, int],
    place: Place,
    level: _Level | None,
    known: list[Place],
    variance_c: NDArray,
    paired: bool,
) -> Spread:
    variance, degrees, seeds = own
    if degrees:
        others = min(level.degrees, max(level.total - degrees, 0.0)) if level else 0.0
        if level is None or not others or variance >= level.variance:
            said = f"sd of its own {seeds} seeds"
            return Spread(float(np.sqrt(variance)), degrees, seeds, "measured", said)
        raised = (others * level.variance + degrees * variance) / (others + degrees)
        said = f"sd of its own {seeds} seeds, raised towards that of {level.cells} cells"
        return Spread(float(np.sqrt(raised)), others + degrees, seeds, "measured", said)
    if level is not None and _within(place, known):
        said = (
            f"sd pooled over {level.cells} cells with seeds, {level.total:.0f} degrees of freedom"
        )
        sd = float(np.sqrt(level.variance))
        return Spread(sd, min(level.degrees, level.total), seeds, "pooled", said)
    near = nearest(
        place,
        [
            Measured(place, float(np.sqrt(s2)), 0, "the nearest cell with seeds")
            for place, s2 in zip(known, variance_c, strict=True)
        ]
        or ELSEWHERE,
    )
    sd = near.sd * np.sqrt(2) if paired and not known else near.sd
    return Spread(float(sd), np.inf, seeds, "assumed", f"if seeds differ as in {near.source}")


def _within(place: Place, known: list[Place]) -> bool:
    """Whether cells with seeds surround a place in size and context, one of them of its attention:
    an attention may have noise of its own."""
    if place.attention not in {one.attention for one in known}:
        return False
    logs = np.log([(one.params, one.context) for one in known])
    at = np.log([place.params, place.context])
    return bool(((at >= logs.min(axis=0) - 1e-9) & (at <= logs.max(axis=0) + 1e-9)).all())


def nearest(place: Place, measured: Iterable[Measured] = ELSEWHERE) -> Measured:
    """The measured cell that is nearest in ln N and ln T, preferably of the same attention."""

    def distance(one: Measured) -> tuple[float, bool]:
        ratio = np.log([one.place.params / place.params, one.place.context / place.context])
        return round(float(ratio @ ratio), 9), one.place.attention != place.attention

    return min(measured, key=distance)


def holm(p_values: ArrayLike) -> NDArray:
    """p-values corrected for their number (Holm 1979); NaN is not a test and stays NaN."""
    p = np.asarray(p_values, dtype=float)
    corrected = np.full(len(p), np.nan)
    order = np.argsort(p)[: int(np.isfinite(p).sum())]
    steps = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    corrected[order] = np.minimum(steps, 1)
    return corrected


def seeds_needed(
    gap: float, sd: float, level: float = LEVEL, power: float = 0.8, pooled: float = MOST_DEGREES
) -> int | None:
    """Fewest seeds with which a true gap is found with a probability of ``power``.

    ``sd`` is that of the difference of two runs, paired if they share seeds. The variance has
    ``pooled`` degrees of freedom besides those of the seeds. None above ``MOST_SEEDS``.
    """

    def is_enough(seeds: int) -> bool:
        degrees = pooled + seeds - 1
        if not degrees:
            return False
        limit = t.isf((1 - level) / 2, degrees)
        shift = abs(gap) / sd * np.sqrt(seeds)
        # Far beyond the limit the power is 1, and the noncentral t of SciPy inexact.
        return bool(shift > 3 * limit + 10 or nct.sf(limit, degrees, shift) >= power)

    found = bisect_left(range(1, MOST_SEEDS + 1), True, key=is_enough) + 1
    return found if found <= MOST_SEEDS else None
