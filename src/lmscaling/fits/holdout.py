"""Does the surface predict what it has not seen? The largest size is left out and predicted.

A fit through all points says nothing of sizes beyond; this does, with the one size it can afford to
lose. The error counts as chance where it lies within the band of the surface and the noise of runs.
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
    "predicted": "every point lies within its interval",
    "missed": "some point lies outside its interval",
    "no_surface": "the smaller sizes alone tell no surface",
}


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The largest size as the smaller ones foresee it."""

    formula: ClassVar[str] = "error = measured - predicted loss, nats"
    source: ClassVar[str] = (
        "Choshen et al. 2024, arXiv:2410.11840, for judging laws by what is held out"
    )
    status: str
    """A key of ``STATUSES``."""
    size: float
    """The ``N`` that was left out."""
    surface: LossSurface = field(repr=False)
    """Through the others."""
    left_out: tuple[int, ...] = ()
    """Places of its points among all."""
    predicted: tuple[float, ...] = ()
    intervals: tuple[Interval, ...] = ()
    """Of what a run would measure there; all hold together with 95 % confidence."""
    errors: tuple[float, ...] = ()

    @property
    def rms(self) -> float | None:
        """Typical error, nats; None without a prediction."""
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
    """The prediction for the largest ``N``; arguments as for ``loss_surface.fit``."""
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
    if not surface.drawn:
        return Holdout(status="no_surface", size=float(N.max()), surface=surface)
    predicted = surface.loss(N[~known], D[~known])
    level = 1 - (1 - LEVEL) / len(predicted)  # Bonferroni
    intervals = surface.band(N[~known], D[~known], level, of_runs=True)
    errors = loss[~known] - predicted
    inside = all(value in span for value, span in zip(loss[~known], intervals, strict=True))
    return Holdout(
        status="predicted" if inside else "missed",
        size=float(N.max()),
        surface=surface,
        left_out=tuple(np.flatnonzero(~known).tolist()),
        predicted=tuple(map(float, predicted)),
        intervals=tuple(intervals),
        errors=tuple(map(float, errors)),
    )


def of(points: Group, count: int = uncertainty.REPLICATES) -> Holdout:
    """The largest size of an attention at a context, foreseen by the others."""
    N, D, loss = (points.column(name) for name in ("params", "tokens", "loss"))
    return fit(N, D, loss, trunk=points.trunks, cell=points.cells, count=count)
