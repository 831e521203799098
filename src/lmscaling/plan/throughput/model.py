"""Coefficients of a software stack: what is known of them, and what measurements add.

    log seconds = log sum_k exp(theta_k) x_k + b + noise

``x_k`` are counts (``terms.py``), ``theta`` the logarithms of the coefficients and ``b`` that of a
factor of the stack for what no term has, such as input and clocks. Both have a Gaussian prior. As
all unknowns are logarithms, the posterior is found by Gauss and Newton, and its Gaussian
approximation gives intervals and their causes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.config.devices import Device
from lmscaling.files import read_json
from lmscaling.plan.throughput.terms import TERMS, Work, counts

NAMES = tuple(TERMS)
REDUCTION = "reduction"
"""The term that a single device does not have."""
STACK_SD = 0.12
"""Standard deviation of ``b``."""
TIMED, SPREAD = 0.03, 0.05
"""Standard deviation of the logarithm of a timed step, as it is weighed and as an interval has it:
what the terms leave out is larger than what repeats of a step scatter."""
TRAINED = 0.10
"""The same of the mean update of a run, of a stack of which no run is known."""
RUNS = 0.5
"""How many runs ``TRAINED`` counts for beside measured ones: published clusters differ fivefold."""
DEVICE_SD = 0.25
"""The same of the factor of a device of which only the peak and the memory are known: the stacks of
A100s are 0.25 faster than those of H100s predict them if nothing else is known of an A100, and
those of H100s 0.23 slower than those of A100s predict."""
STEPS, RESPREAD = 60, 3

SHIPPED = Path(__file__).with_name("coefficients.json")
"""Logarithms of the coefficients of a software stack that nobody has measured, their covariance,
and the published times behind them, which ``benchmarks/fit_throughput.py`` writes."""

QUANTILES = {0.8: 1.2816, 0.95: 1.9600}


class Timing(NamedTuple):
    """A measured update."""

    x_K: NDArray
    """Counts, s."""
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """Seconds of an update."""

    seconds: float
    sd: float
    """Standard deviation of the logarithm."""
    shares: dict[str, float]
    """Share of each term in the time."""

    def interval(self, level: float = 0.8) -> tuple[float, float]:
        """Seconds between which an update takes with a probability of 80 or 95 %."""
        factor = np.exp(QUANTILES[level] * self.sd)
        return float(self.seconds / factor), float(self.seconds * factor)


def vector(work: Work, device: Device) -> NDArray:
    """``[K]``: the counts of an update in the order of ``NAMES``."""
    found = counts(work, device)
    return np.array([found.get(name, 0.0) for name in NAMES])


@dataclass(frozen=True)
class Coefficients:
    """Gaussian of the logarithms of all coefficients and of ``b``, the last."""

    mean_K: NDArray
    cov_KK: NDArray
    trained: float = TRAINED
    """Standard deviation of the logarithm of the mean update of a run."""

    @classmethod
    def counted(cls) -> "Coefficients":
        """What is known of a stack before any measurement."""
        centre, wide, between = prior()
        return cls(centre, np.diag(wide**2 + between**2))

    def measured(self, timings: Sequence[Timing], sd: float = TIMED) -> "Coefficients":
        """The same once updates of this stack are measured (Levenberg and Marquardt).

        Args:
            timings: The updates.
            sd: Standard deviation of the logarithm of one.
        """
        if not timings:
            return self
        x_iK, y_i = np.array([t.x_K for t in timings]), np.log([t.seconds for t in timings])
        precision = np.linalg.inv(self.cov_KK)
        theta, damping, least = self.mean_K.copy(), 1e-3, np.inf
        for _ in range(STEPS):
            f_i, j_iK = log_seconds(theta, x_iK)
            hessian = j_iK.T @ j_iK / sd**2 + precision
            slope = j_iK.T @ (f_i - y_i) / sd**2 + precision @ (theta - self.mean_K)
            new = theta - np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), slope)
            away = new - self.mean_K
            cost = ((log_seconds(new, x_iK)[0] - y_i) ** 2).sum() / sd**2 + away @ precision @ away
            if cost > least:
                damping *= 8
                continue
            theta, damping, last, least = new, damping / 6, least, cost
            if last - least < 1e-9 * (1 + least):
                break
        j_iK = log_seconds(theta, x_iK)[1]
        cov_KK = np.linalg.inv(j_iK.T @ j_iK / sd**2 + precision)
        return replace(self, mean_K=theta, cov_KK=cov_KK)

    def trained_on(self, runs: Sequence[Timing]) -> "Coefficients":
        """The same once runs of this stack are measured, and the spread of runs: ``TRAINED``,
        drawn to what is left of the measured ones. Runs of one shape, as seeds are, count once.
        """
        alike: dict[bytes, list[Timing]] = {}
        for run in runs:
            alike.setdefault(run.x_K.tobytes(), []).append(run)
        shapes = [
            Timing(same[0].x_K, float(np.exp(np.mean([np.log(run.seconds) for run in same]))))
            for same in alike.values()
        ]
        known = self
        for _ in range(RESPREAD if shapes else 0):
            fitted = self.measured(shapes, known.trained)
            left_i = [np.log(one.seconds / fitted.predict(one.x_K).seconds) for one in shapes]
            variance = (RUNS * TRAINED**2 + np.square(left_i).sum()) / (RUNS + len(shapes))
            known = replace(fitted, trained=float(np.sqrt(variance)))
        return known

    def predict(self, x_K: NDArray, spread: float = SPREAD) -> Prediction:
        """The time of an update with counts ``x_K``; ``spread`` is what repeats of it scatter."""
        f_i, j_iK = log_seconds(self.mean_K, x_K[None])
        variance = j_iK[0] @ self.cov_KK @ j_iK[0] + spread**2
        shares = {name: float(share) for name, share in zip(NAMES, j_iK[0], strict=False) if share}
        return Prediction(float(np.exp(f_i[0])), float(np.sqrt(variance)), shares)

    def of_unpublished(self) -> "Coefficients":
        """The same on a device that no published time is of."""
        cov_KK = self.cov_KK.copy()
        cov_KK[-1, -1] += DEVICE_SD**2
        return replace(self, cov_KK=cov_KK)


@cache
def shipped() -> Coefficients:
    """The coefficients that come with the package."""
    known = read_json(SHIPPED, "coefficients of the throughput model")
    cov = np.zeros((len(NAMES) + 1, len(NAMES) + 1))
    cov[np.tril_indices_from(cov)] = [value for row in known["covariance"] for value in row]
    return Coefficients(np.array(known["mean"]), cov + np.tril(cov, -1).T)


def known_of(device: Device) -> Coefficients:
    """The shipped coefficients, less certain of a device that no published time is of."""
    return shipped() if device.published else shipped().of_unpublished()


def prior() -> tuple[NDArray, NDArray, NDArray]:
    """``[K + 1]`` each: centres, what is not known of them, and spreads between stacks."""
    terms = TERMS.values()
    return (
        np.array([*np.log([term.centre for term in terms]), 0.0]),
        np.array([*(term.sd for term in terms), 1e-6]),
        np.array([*(term.between for term in terms), STACK_SD]),
    )


def log_seconds(theta_K: NDArray, x_iK: ArrayLike) -> tuple[NDArray, NDArray]:
    """``[i]`` logarithms of seconds, and ``[i, K + 1]`` their derivatives: the shares of the terms,
    and 1 for ``b``."""
    parts_iK = np.exp(theta_K[:-1]) * np.asarray(x_iK)
    total_i = parts_iK.sum(1)
    ones = np.ones((len(parts_iK), 1))
    return np.log(total_i) + theta_K[-1], np.hstack([parts_iK / total_i[:, None], ones])
