"""The noise of losses from run to run, measured from seeds.

Runs of a cell differ in their seed only, so the scatter of their losses is the noise. Few cells
have several seeds and few seeds scatter by chance, so the variance of a cell is shrunk to that of
the others: to a log-linear trend over size, context and attention if enough seeds determine it,
otherwise to one level (Smyth 2004, doi:10.2202/1544-6115.1027). What the others contribute counts
as at most ``MOST_DEGREES`` degrees of freedom; without this limit the smallest of many p-values is
wrong in 11 to 15 % of studies instead of 5 %. Where all cells scatter alike the intervals are
therefore too wide: they cover 98 to 99 %.

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
"""Most degrees of freedom that other cells contribute to the variance of one cell."""
PRIOR_DEGREES = np.linspace(2, MOST_DEGREES, 200)
"""The fewer, the more the true variances of cells differ: by trigamma(d / 2), in ln."""
FEWEST_DEGREES = 3
"""With fewer degrees of freedom in all cells together, the variance of one cell says nothing about
another."""
MOST_SEEDS = 1000
LEAST = 1e-20
"""Square nats. A smaller variance is rounding: equal losses have no logarithm of theirs."""
TREND_DEGREES = 20
"""Degrees of freedom from which a trend is estimated; a trend from fewer misses at the ends."""


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
        samples: Mapping[Any, ArrayLike],
        places: Mapping[Any, Place],
        paired: bool = False,
    ) -> "Noise":
        """Scatter in every cell of ``samples``: losses in nats, one for each seed that has
        finished, or differences of paired losses. Without seeds the runs of a pair are assumed to
        be independent, which makes the range of a difference too wide rather than too narrow."""
        values = {cell: np.asarray(sample, dtype=float) for cell, sample in samples.items()}
        return cls.from_variances(
            {
                cell: (float(sample.var(ddof=1)), len(sample) - 1, len(sample))
                if len(sample) > 1 and np.ptp(sample)
                else (0.0, 0, len(sample))
                for cell, sample in values.items()
            },
            places,
            paired,
        )

    @classmethod
    def from_variances(
        cls,
        variances: Mapping[Any, tuple[float, int, int]],
        places: Mapping[Any, Place],
        paired: bool = False,
    ) -> "Noise":
        """Scatter in every cell from its variance (nats squared), degrees of freedom (0 if it is
        unknown) and number of seeds."""
        repeated = [cell for cell, (_, degrees, _) in variances.items() if degrees]
        variance = np.array([variances[cell][0] for cell in repeated])
        degrees = np.array([variances[cell][1] for cell in repeated], dtype=float)
        known = [places[cell] for cell in repeated]
        prior = _Prior.from_cells(variance, degrees, known)
        return cls(
            {
                cell: _spread(own, places[cell], prior, known, variance, paired)
                for cell, own in variances.items()
            }
        )


@dataclass(frozen=True)
class _Prior:
    """What all cells together say about the variance of one."""

    degrees: float
    total: int
    """Degrees of freedom of all cells."""
    cells: int
    slope_K: NDArray
    """Log variance by the columns of ``_columns``."""
    attentions: tuple[str, ...]
    centre: NDArray

    @classmethod
    def from_cells(
        cls, variance_c: NDArray, degrees_c: NDArray, places: list[Place]
    ) -> "_Prior | None":
        total = int(degrees_c.sum())
        if total < FEWEST_DEGREES:
            return None
        s2, d = variance_c, degrees_c
        attentions = tuple(sorted({place.attention for place in places}))
        centre = np.log([(place.params, place.context) for place in places]).mean(axis=0)
        columns = _columns(places, attentions, centre)
        rank = np.linalg.matrix_rank(columns)
        if total < TREND_DEGREES or len(s2) < rank + 3:
            columns, rank, attentions = np.ones((len(s2), 1)), 1, ()
        # Logarithms of variances from few seeds are too low on average and scatter by a known
        # amount; what they scatter beyond it is the true difference between cells.
        corrected = np.log(np.maximum(s2, LEAST)) - digamma(d / 2) + np.log(d / 2)
        weight = np.sqrt(1 / polygamma(1, d / 2))
        slope = np.linalg.lstsq(columns * weight[:, None], corrected * weight, rcond=None)[0]
        left = ((corrected - columns @ slope) ** 2).sum() / max(len(s2) - rank, 1)
        scatter = left - float(polygamma(1, d / 2).mean())
        d0 = float(np.interp(-scatter, -polygamma(1, PRIOR_DEGREES / 2), PRIOR_DEGREES))
        d0 = min(d0, max(total - rank, 2))
        return cls(d0, total, len(s2), slope, attentions, centre)

    def variance(self, place: Place) -> float:
        columns = _columns([place], self.attentions, self.centre)[0, : len(self.slope_K)]
        log = float(columns @ self.slope_K)
        return float(np.exp(log - digamma(self.degrees / 2) + np.log(self.degrees / 2)))


def _columns(places: list[Place], attentions: tuple[str, ...], centre: NDArray) -> NDArray:
    """``[c, K]``: 1, ln N and ln T, and one indicator for each attention but the first."""
    logs = np.log([(place.params, place.context) for place in places]) - centre
    own = [[float(place.attention == name) for name in attentions[1:]] for place in places]
    return np.column_stack([np.ones(len(places)), logs, np.array(own).reshape(len(places), -1)])


def _spread(
    own: tuple[float, int, int],
    place: Place,
    prior: _Prior | None,
    known: list[Place],
    variance_c: NDArray,
    paired: bool,
) -> Spread:
    variance, degrees, seeds = own
    if degrees and (prior is None or prior.cells == 1):
        said = f"sd of its own {seeds} seeds"
        return Spread(float(np.sqrt(variance)), degrees, seeds, "measured", said)
    if degrees and prior is not None:
        total = prior.degrees + degrees
        shrunk = (prior.degrees * prior.variance(place) + degrees * variance) / total
        said = f"sd of its own {seeds} seeds, shrunk to that of {prior.cells} cells"
        return Spread(float(np.sqrt(shrunk)), total, seeds, "measured", said)
    if prior is not None and _within(place, known):
        trend = "trend over" if len(prior.slope_K) > 1 else "pooled over"
        said = f"sd {trend} {prior.cells} cells with seeds, {prior.total} degrees of freedom"
        return Spread(float(np.sqrt(prior.variance(place))), prior.degrees, seeds, "pooled", said)
    others = [
        Measured(place, float(np.sqrt(s2)), 0, "the nearest cell with seeds")
        for place, s2 in zip(known, variance_c, strict=True)
    ]
    near = nearest(place, others or list(ELSEWHERE))
    sd = near.sd * np.sqrt(2) if paired and not others else near.sd
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
