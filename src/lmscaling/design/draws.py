"""Truths that a design must serve: drawn from a stated prior, or from the runs that are there.

The loss of one attention and context is the sum of ``fits.loss_surface``. Its prior is wide: at the
centre of the candidates each term is 0.6 nats within a factor of 4, each exponent 0.35 within a
factor of 1.8, and ``E`` 1.8 within 0.6 nats (95 %). Finished runs narrow it: the truths are then
drawn from the normal distribution around the most probable surface. Noise is that of
``noise.Noise`` where the study has seeds, otherwise 0.015 nats between runs and 0.004 between
points of a run, each within a factor of 2.7. Runs of one seed correlate by 0.85 over attentions.
All designs meet the same truths.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.fits import student

PRIOR = np.array([1.8, np.log(0.6), np.log(0.6), np.log(0.35), np.log(0.35)])
"""Of ``E``, ``ln A`` and ``ln B`` at the centre, ``ln alpha`` and ``ln beta``."""
PRIOR_SD = np.array([0.3, 0.7, 0.7, 0.3, 0.3])
RUN_SD = 0.015
"""Nats between runs that differ in their seed."""
POINT_SD = 0.004
"""Nats between points of a run."""
NOISE_SPREAD = 0.5
"""Standard deviation of the logarithm of either."""
CORRELATION = 0.85
"""Of the losses of two attentions with the same seed."""
PAIRED = float(np.sqrt(2 * (1 - CORRELATION)))
"""Standard deviation of their difference over that of a run."""
CROSSING_SLOPE = 0.03
"""Nats by which the gap of crossing curves changes for each e-fold of updates; spread as noise."""
EARLIEST = np.log(1 / 16)
"""Crossings are drawn evenly in ln updates, from here to the end of the budget."""
GAIN = 0.4
"""Standard deviation of the logarithm of a multiplier."""
STEPS = 30


class Known(NamedTuple):
    """Losses of finished runs of one attention and context."""

    log_N: NDArray
    log_D: NDArray
    loss: NDArray
    run: NDArray[np.intp]


class Noise(NamedTuple):
    """What seeds of the study say of its noise."""

    sd: float
    """Nats between runs, or between paired differences of a question about a pair."""
    degrees: float


@dataclass(frozen=True)
class Draws:
    """Truths, one row each."""

    theta_MK: NDArray
    """As ``student.values`` takes them."""
    centre: tuple[float, float]
    """ln N and ln D."""
    run_sd_M: NDArray
    point_sd_M: NDArray
    slope_M: NDArray
    """Of the gap at a crossing, nats per e-fold of updates."""
    crossing_M: NDArray
    """ln of the updates at the crossing over those of the budget."""
    gain_M: NDArray
    """ln of the multiplier."""

    def surface(self, N: ArrayLike, D: ArrayLike) -> tuple[NDArray, NDArray]:
        """Losses ``[M, ...]`` and their derivatives by the parameters of ``PRIOR``."""
        x, z = np.log(N) - self.centre[0], np.log(D) - self.centre[1]
        loss, slope = student.values(self.theta_MK, *np.broadcast_arrays(x, z))
        exponents = self.theta_MK[:, 3:5].reshape(len(loss), *(1,) * (loss.ndim - 1), 2)
        slope[..., 3:5] *= exponents
        return loss, slope[..., :5]

    def rows(self, chosen: NDArray) -> "Draws":
        """Some of the truths."""
        each = {
            name: getattr(self, name)[chosen]
            for name in self.__dataclass_fields__
            if name != "centre"
        }
        return Draws(**each, centre=self.centre)


def draw(
    number: int,
    centre: tuple[float, float],
    seed: int,
    known: Known | None = None,
    noise: Noise | None = None,
    paired: bool = False,
) -> Draws:
    """So many truths; the same for the same seed.

    Args:
        number: ``M``.
        centre: Mean ln N and ln D of the candidates.
        seed: Of the random numbers.
        known: Losses of finished runs.
        noise: Measured scatter of seeds.
        paired: Whether ``noise`` is that of paired differences.
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((number, 9))
    # Half of the truths mirror the others, so that medians settle with fewer.
    normal[number // 2 : 2 * (number // 2)] = -normal[: number // 2]
    mean, precision = PRIOR, np.diag(PRIOR_SD**-2)
    run_sd = RUN_SD * np.exp(NOISE_SPREAD * normal[:, 5])
    if noise is not None:
        chance = rng.chisquare(noise.degrees, number) / noise.degrees
        run_sd = noise.sd / (PAIRED if paired else 1) / np.sqrt(chance)
    if known is not None and len(known.loss):
        mean, precision = _posterior(known, centre, float(np.median(run_sd)))
    root = np.linalg.cholesky(np.linalg.inv(precision))
    found = mean + normal[:, :5] @ root.T
    theta = np.column_stack([found[:, :3], np.exp(found[:, 3:]), np.zeros(number)])
    theta[:, 3:5] = np.clip(theta[:, 3:5], *student.EXPONENTS)
    return Draws(
        theta_MK=theta,
        centre=centre,
        run_sd_M=run_sd,
        point_sd_M=POINT_SD * np.exp(NOISE_SPREAD * normal[:, 6]),
        slope_M=CROSSING_SLOPE * np.exp(NOISE_SPREAD * normal[:, 7]),
        crossing_M=rng.uniform(EARLIEST, 0, number),
        gain_M=GAIN * normal[:, 8],
    )


def _posterior(known: Known, centre: tuple[float, float], run_sd: float) -> tuple[NDArray, NDArray]:
    """The most probable surface and its precision, by damped Gauss-Newton steps from the prior."""
    same = known.run[:, None] == known.run
    weight = np.linalg.inv(POINT_SD**2 * np.eye(len(same)) + run_sd**2 * same)
    prior, mean = np.diag(PRIOR_SD**-2), PRIOR.copy()
    x, z = known.log_N - centre[0], known.log_D - centre[1]

    def at(value: NDArray) -> tuple[NDArray, NDArray, float]:
        theta = np.array([[*value[:3], *np.exp(value[3:]), 0.0]])
        loss, slope = (part[0] for part in student.values(theta, x, z))
        slope = np.concatenate([slope[:, :3], slope[:, 3:5] * theta[0, 3:5]], axis=1)
        rest, away = known.loss - loss, value - PRIOR
        return rest, slope, float(rest @ weight @ rest + away @ prior @ away)

    rest, slope, cost = at(mean)
    damping = 1e-3
    for _ in range(STEPS):
        precision = slope.T @ weight @ slope + prior
        wanted = slope.T @ weight @ rest - prior @ (mean - PRIOR)
        tried = mean + np.linalg.solve(precision + damping * np.diag(precision.diagonal()), wanted)
        new = at(tried)
        better = new[2] <= cost
        damping *= 0.2 if better else 8
        if better:
            mean, (rest, slope, cost) = tried, new
    return mean, slope.T @ weight @ slope + prior
