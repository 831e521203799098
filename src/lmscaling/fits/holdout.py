"""Hold-out error of the loss surface: the largest size is excluded from the fit and predicted.

The residuals of a fit through all points do not show how well it extrapolates to larger sizes. An
error within the interval of the surface, which includes the noise of a run, is attributed to
chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lmscaling.fits import loss_surface, uncertainty
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import LEVEL, STATED, Interval, Noise

STATUSES = {
    "predicted": "all points within their prediction intervals",
    "missed": "some points outside their prediction intervals",
    "no_surface": "the smaller sizes do not determine a surface",
}


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Predictions for the largest size from the smaller ones."""

    formula: ClassVar[str] = "error = measured - predicted loss, nats"
    source: ClassVar[str] = (
        "Choshen et al. 2024, arXiv:2410.11840, for judging laws by what is held out"
    )
    status: str
    """A key of ``STATUSES``."""
    size: float
    """The ``N`` that was held out."""
    surface: LossSurface = field(repr=False)
    """Fitted to the other sizes."""
    left_out: tuple[int, ...] = ()
    """Indices of the held-out points."""
    predicted: tuple[float, ...] = ()
    """Nats per token."""
    intervals: tuple[Interval, ...] = ()
    """Prediction intervals of measured losses, simultaneous at 95 %."""
    errors: tuple[float, ...] = ()
    """Measured minus predicted losses."""

    @property
    def rms(self) -> float | None:
        """Root-mean-square error, nats; None without a prediction."""
        return float(np.sqrt(np.mean(np.square(self.errors)))) if self.errors else None


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
) -> Holdout:
    """Predict the losses of the largest ``N``; arguments as for ``loss_surface.fit``."""
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    known = N.max() > N
    surface = loss_surface.fit(
        *(values[known] for values in (N, D, loss)),
        trunk=None if trunk is None else uncertainty.codes(trunk)[known],
        cell=None if cell is None else uncertainty.codes(cell)[known],
        convention=convention,
        noise=noise,
        count=count,
        check=False,
    )
    if not surface.replicates:
        return Holdout(status="no_surface", size=float(N.max()), surface=surface)
    predicted = surface.loss(N[~known], D[~known])
    level = 1 - (1 - LEVEL) / len(predicted)  # Bonferroni
    intervals = surface.band(N[~known], D[~known], level, of_runs=True)
    errors = loss[~known] - predicted
    inside = all(value in one for value, one in zip(loss[~known], intervals, strict=True))
    return Holdout(
        status="predicted" if inside else "missed",
        size=float(N.max()),
        surface=surface,
        left_out=tuple(np.flatnonzero(~known).tolist()),
        predicted=tuple(map(float, predicted)),
        intervals=tuple(intervals),
        errors=tuple(map(float, errors)),
    )


def fit_group(points: Group, count: int = uncertainty.REPLICATES) -> Holdout:
    """The hold-out test of one attention at one context."""
    N, D, loss = (points.column(name) for name in ("params", "tokens", "loss"))
    return fit(N, D, loss, trunk=points.trunks, cell=points.cells, count=count)
