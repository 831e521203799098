"""How wide the interval of an answer would be, for many designs and truths at once.

Each kind of answer has the estimator of the report, linearised at every truth: the same weights of
runs, points and pairs, the same degrees of freedom, and the same refusals, for which the half-width
is infinite. The guide of the search is finite everywhere: it adds what the prior knows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as t_distribution

from lmscaling.design.asked import PAIRS, Asked, Candidate, Option
from lmscaling.design.draws import GAIN, PAIRED, PRIOR_SD, Draws
from lmscaling.fits import loss_surface, optimum
from lmscaling.fits.multiplier import FRACTIONS
from lmscaling.fits.noise import FEWEST_DEGREES, MOST_DEGREES
from lmscaling.fits.student import FORMS
from lmscaling.fits.uncertainty import LEVEL

PRIOR_HALF = {
    "gap": 0.2, "multiplier": 2 * GAIN, "crossing": 1.4, "beta": 2 * PRIOR_SD[4],
    "a": 2 * np.sqrt(2) * PRIOR_SD[4], "gamma": 0.3, "size": 1.5,
}  # fmt: skip
"""Half-width without any run, for the guide."""
SHORT = 0.05
"""Widening of the guide for each run without which the report gives no interval."""


class Answer(Protocol):
    """The interval of an answer after designs ``[n, C]``."""

    def half_widths(self, counts_nC: NDArray) -> NDArray:
        """``[n, M]``: infinite where the report gives no interval."""
        ...

    def guide(self, counts_nC: NDArray) -> NDArray:
        """``[n, M]``: finite, for the search."""
        ...


def quantile(degrees: NDArray) -> NDArray:
    """Of Student's t; below one degree of freedom that of one."""
    return t_distribution.isf((1 - LEVEL) / 2, np.maximum(degrees, 1))


def joined(half: NDArray, kind: str) -> NDArray:
    """With what the prior knows."""
    return 1 / np.sqrt(1 / np.maximum(half, 1e-12) ** 2 + 1 / PRIOR_HALF[kind] ** 2)


@dataclass(frozen=True)
class Paired:
    """A gap, or what follows from it by the slope of a curve: Student's t of paired differences,
    whose variance is shrunk to that of all cells with seeds (``fits.noise``)."""

    kind: str
    log_place_C: NDArray
    """``[C, 2]``: ln N and ln T."""
    target_C: NDArray[np.bool_]
    """Cells of the answer; of several the mean logarithm of their half-widths counts."""
    sd_M: NDArray
    """Nats."""
    factor_M: NDArray
    """Half-width for one nat; infinite where the curves do not come to the answer."""

    def degrees(self, counts_nC: NDArray) -> NDArray:
        """``[n, C]``; 0 where no seed tells the noise."""
        own = np.maximum(counts_nC - 1, 0)
        total, repeated = own.sum(axis=1), (own > 0).sum(axis=1)
        shared = np.clip(total - 1, 2, MOST_DEGREES)
        shared = np.where((total >= FEWEST_DEGREES) & (repeated > 1), shared, 0)[:, None]
        one = (counts_nC == 1) & (total >= FEWEST_DEGREES)[:, None] & self._within(own > 0)
        pooled = np.clip(total - 1, 2, MOST_DEGREES)[:, None]
        return np.where(own > 0, own + shared, np.where(one, pooled, 0))

    def _within(self, repeated_nC: NDArray) -> NDArray:
        """Whether cells with seeds surround each candidate in size and context."""
        place = np.where(repeated_nC[..., None], self.log_place_C, np.nan)
        with np.errstate(invalid="ignore"):
            low = np.fmin.reduce(place, axis=1)[:, None] - 1e-9
            high = np.fmax.reduce(place, axis=1)[:, None] + 1e-9
            return ((self.log_place_C >= low) & (self.log_place_C <= high)).all(axis=2)

    def _log_half(self, counts_nC: NDArray, degrees_nC: NDArray) -> NDArray:
        """``[n, M]``: mean over the targets."""
        k, degrees = counts_nC[:, self.target_C], degrees_nC[:, self.target_C]
        with np.errstate(divide="ignore"):
            of_cell = np.where(k > 0, np.log(quantile(degrees)) - np.log(k) / 2, np.inf)
        return of_cell.mean(axis=1)[:, None] + np.log(self.sd_M * self.factor_M)

    def half_widths(self, counts_nC: NDArray) -> NDArray:
        degrees = self.degrees(counts_nC)
        unknown = (degrees[:, self.target_C] == 0).any(axis=1)
        half = np.exp(self._log_half(counts_nC, degrees))
        return np.where(unknown[:, None], np.inf, half)

    def guide(self, counts_nC: NDArray) -> NDArray:
        degrees = self.degrees(counts_nC)
        found = []
        for target in np.flatnonzero(self.target_C):
            one = np.arange(len(self.target_C)) == target
            alone = Paired(self.kind, self.log_place_C, one, self.sd_M, self.factor_M)
            found.append(np.log(joined(np.exp(alone._log_half(counts_nC, degrees)), self.kind)))
        return np.exp(np.mean(found, axis=0))


@dataclass(frozen=True)
class Surface:
    """``ln beta`` or ``logit a``: the multivariate t of whole runs with t(G - 5)."""

    kind: str
    info_CMpp: NDArray
    """Of one run of each candidate, by the parameters of ``draws.PRIOR``."""
    gradient_p: NDArray
    log_N_C: NDArray

    def half_widths(self, counts_nC: NDArray) -> NDArray:
        half = self._half(counts_nC, 1e-9)
        return np.where(self._missing(counts_nC, 3)[:, None] > 0, np.inf, half)

    def guide(self, counts_nC: NDArray) -> NDArray:
        """Each run that is still missing widens it a little, so that they are added. A size more
        than the parameters need lets the report test the form."""
        missing = self._missing(counts_nC, min(4, len(np.unique(self.log_N_C))))
        return self._half(counts_nC, 1.0) * (1 + SHORT * missing)[:, None]

    def _half(self, counts_nC: NDArray, prior: float) -> NDArray:
        """With the precision that the prior gives the parameters, times a factor."""
        information = np.tensordot(counts_nC.astype(float), self.info_CMpp, 1)
        information += prior * np.diag(PRIOR_SD**-2)
        size = np.sqrt(np.einsum("nmpp->nmp", information))
        scaled = information / (size[..., :, None] * size[..., None, :])
        wanted = (self.gradient_p / size)[..., None]
        solved = np.linalg.solve(scaled + 1e-13 * np.eye(len(self.gradient_p)), wanted)
        error = np.sqrt((solved * wanted).sum(axis=(2, 3)))
        return error * quantile(counts_nC.sum(axis=1) - FORMS["sum"])[:, None]

    def _missing(self, counts_nC: NDArray, fewest: int) -> NDArray:
        """``[n]``: runs without which ``loss_surface.few_runs`` refuses, and sizes."""
        sizes = np.unique(self.log_N_C.round(9))
        seeds = counts_nC @ (self.log_N_C.round(9)[:, None] == sizes)
        used, single = (seeds > 0).sum(axis=1), (seeds == 1).sum(axis=1)
        alone = np.where(used < loss_surface.MANY_SIZES, single, 0)
        few = np.maximum(loss_surface.FEWEST_RUNS - counts_nC.sum(axis=1), 0)
        return few + 4 * alone + 4 * np.maximum(fewest - used, 0)


@dataclass(frozen=True)
class TimeLaw:
    """``gamma`` of one cell: least squares with an intercept for each run."""

    kind: str
    error_M: NDArray
    """Standard error of one run."""
    points: int
    """Of a run."""

    def half_widths(self, counts_nC: NDArray) -> NDArray:
        runs = counts_nC[:, 0]
        degrees = runs * (self.points - 1) - 2
        with np.errstate(divide="ignore"):
            half = self.error_M * (quantile(degrees) / np.sqrt(runs))[:, None]
        return np.where((degrees > 0)[:, None], half, np.inf)

    def guide(self, counts_nC: NDArray) -> NDArray:
        return joined(self.half_widths(counts_nC), self.kind)


@dataclass(frozen=True)
class BestSize:
    """ln of the best size: a polynomial of degree four with an intercept for each seed."""

    kind: str
    power_CK: NDArray
    """Powers of each size's ln N less the centre."""
    at_M: NDArray
    """The best size, ln N less the centre."""
    inside_M: NDArray[np.bool_]
    """Whether it lies between the smallest and the largest size."""
    bend_M: NDArray
    sd_M: NDArray

    def half_widths(self, counts_nC: NDArray) -> NDArray:
        degrees = self._degrees(counts_nC)
        seen = (self._missing(counts_nC) == 0) & (degrees > 0)[:, None]
        information = self._information(counts_nC)
        scale = np.sqrt(np.maximum(np.einsum("nkk->nk", information), 1e-12))
        scaled = information / (scale[:, :, None] * scale[:, None, :])
        slope_MK = optimum.POWERS * self.at_M[:, None] ** (optimum.POWERS - 1.0)
        wanted = slope_MK / scale[:, None]
        solved = np.linalg.solve(scaled + 1e-10 * np.eye(scaled.shape[1]), wanted.swapaxes(1, 2))
        square = np.maximum((solved.swapaxes(1, 2) * wanted).sum(axis=2), 0)
        half = np.sqrt(square) * self.sd_M / self.bend_M * quantile(degrees)[:, None]
        return np.where(seen & self.inside_M, half, np.inf)

    def guide(self, counts_nC: NDArray) -> NDArray:
        """Each size and seed that is still missing widens it a little, so that they are added."""
        short = self._missing(counts_nC) + (self._degrees(counts_nC) < 1)[:, None]
        return joined(self.half_widths(counts_nC), self.kind) * (1 + SHORT * short)

    def _missing(self, counts_nC: NDArray) -> NDArray:
        """``[n, M]``: sizes that are missing around the best one, or in all."""
        v, used = self.power_CK[:, :1], (counts_nC > 0).astype(float)
        sides = (used @ (v < self.at_M), used @ (v > self.at_M))
        around = sum(np.maximum(optimum.AROUND - side, 0) for side in sides)
        in_all = np.maximum(2 * optimum.AROUND + 1 - used.sum(axis=1), 0)
        return np.maximum(around, in_all[:, None])

    @staticmethod
    def _degrees(counts_nC: NDArray) -> NDArray:
        """Of an additive model of seeds and sizes."""
        return counts_nC.sum(axis=1) - counts_nC.max(axis=1) - (counts_nC > 0).sum(axis=1) + 1

    def _information(self, counts_nC: NDArray) -> NDArray:
        """``[n, K, K]`` of slopes for a variance of 1: products within each seed."""
        found = np.zeros((len(counts_nC), *[self.power_CK.shape[1]] * 2))
        for seed in range(int(counts_nC.max(initial=0))):
            has = (counts_nC > seed).astype(float)
            total = has @ self.power_CK
            found += np.einsum("nc,ck,cl->nkl", has, self.power_CK, self.power_CK)
            found -= (
                total[:, :, None] * total[:, None, :] / np.maximum(has.sum(1), 1)[:, None, None]
            )
        return found


def answer(asked: Asked, candidates: list[Candidate], option: Option, draws: Draws) -> Answer:
    """The interval of an answer as a function of the design."""
    kind = asked.kind
    N = np.array([one.params for one in candidates])
    D = np.array([one.tokens for one in candidates])
    if kind in PAIRS:
        places = np.log([(one.params, one.context) for one in candidates])
        here = [
            one.context == asked.context and asked.size in (None, one.size) for one in candidates
        ]
        factor = _factor(asked, N[here].mean(), D[here].min(), option, draws)
        return Paired(kind, places, np.array(here), PAIRED * draws.run_sd_M, factor)
    if kind == "size":
        return _best_size(candidates, draws)
    share = option.points
    _, slope = draws.surface(N[:, None], D[:, None] * share)
    slope = slope.swapaxes(0, 1)
    mean = slope.mean(axis=2, keepdims=True)
    within = (slope - mean) / draws.point_sd_M[:, None, None]
    info = within.swapaxes(2, 3) @ within
    if kind == "gamma":
        # By ln B and ln beta; the interval is that of gamma itself.
        of_beta = np.linalg.pinv(info[0][:, [[2], [4]], [2, 4]])[:, 1, 1]
        return TimeLaw(kind, draws.theta_MK[:, 4] * np.sqrt(of_beta), len(share))
    m = len(share)
    scale = draws.point_sd_M**2 / m + draws.run_sd_M**2
    info = info + mean.swapaxes(2, 3) @ mean / scale[:, None, None]
    gradient = np.array([0, 0, 0, -1.0 if kind == "a" else 0, 1.0])
    return Surface(kind, info, gradient, np.log(N))


def _factor(asked: Asked, N: float, D: float, option: Option, draws: Draws) -> NDArray:
    """Half-width of an answer for one nat of the gap, by truth."""
    if asked.kind == "gap":
        return np.ones(len(draws.run_sd_M))
    if asked.kind == "crossing":
        seen = draws.crossing_M <= np.log(option.budget)
        return np.where(seen, 1 / draws.slope_M, np.inf)
    assert asked.loss is not None
    reached = comes_to(asked.loss, N, D * option.budget, draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        falls = -draws.theta_MK[:, 4] * (asked.loss - floor(N, draws))
        return np.where(reached, 1 / np.abs(falls), np.inf)


def floor(N: float, draws: Draws) -> NDArray:
    """``[M]``: loss of a size with endless data."""
    E, a, _, alpha = draws.theta_MK[:, :4].T
    return E + np.exp(a - alpha * (np.log(N) - draws.centre[0]))


def spent_for(loss: float, N: float, draws: Draws) -> NDArray:
    """``[M]``: tokens with which the reference comes to a loss; infinite if it never does."""
    b, beta = draws.theta_MK[:, 2], draws.theta_MK[:, 4]
    left = loss - floor(N, draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        log_D = (b - np.log(left)) / beta + draws.centre[1]
    return np.where(left > 0, np.exp(np.minimum(log_D, 200.0)), np.inf)


def comes_to(loss: float, N: float, D: float, draws: Draws) -> NDArray:
    """``[M]``: whether both curves come to a loss, the other one in the range of the report."""
    spent = spent_for(loss, N, draws)
    of_other = spent / np.exp(draws.gain_M)
    return (spent <= D) & (of_other <= D) & (of_other >= D * FRACTIONS[-1])


def _best_size(candidates: list[Candidate], draws: Draws) -> BestSize:
    """With the best size of each truth on a straight line of ln D over ln N."""
    log_N = np.log([one.params for one in candidates])
    log_D = np.log([one.tokens for one in candidates])
    centre = log_N.mean()
    line = np.polynomial.Polynomial.fit(log_N, log_D, 1)
    fine = np.linspace(log_N.min(), log_N.max(), 400)
    loss, _ = draws.surface(np.exp(fine), np.exp(line(fine)))
    best = np.clip(loss.argmin(axis=1), 1, len(fine) - 2)
    row = np.arange(len(loss))
    step = fine[1] - fine[0]
    bend = (loss[row, best - 1] - 2 * loss[row, best] + loss[row, best + 1]) / step**2
    inside = (loss.argmin(axis=1) == best) & (bend > 0)
    return BestSize(
        "size",
        (log_N - centre)[:, None] ** optimum.POWERS,
        fine[best] - centre,
        inside,
        np.where(inside, bend, 1.0),
        draws.run_sd_M,
    )
