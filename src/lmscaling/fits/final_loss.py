"""The final training loss of one run: the mean over its last updates without spikes.

Losses above the band of ``spikes`` (7 robust standard deviations, and 0.05 nats, above the median)
are excluded. Losses of adjacent updates are correlated, so the standard error is computed from
block means instead of single updates (Flyvbjerg and Petersen 1989).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lmscaling.store.spikes import LEAST, SIGMAS

STATUSES = {
    "settled": "at most 10 % of the last losses are excluded",
    "spiking": "more than 10 % of the last losses are spikes or non-finite",
    "too_few": "fewer than 20 losses",
}

SHARE = 0.01
"""Fraction of the updates of a run that is averaged."""
BLOCKS = 10
FEWEST = 2 * BLOCKS
SPIKING = 0.1


@dataclass(frozen=True, kw_only=True)
class FinalLoss:
    """The final loss of one run."""

    formula: ClassVar[str] = "mean of the last 1 % of updates within 7 robust sd of their median"
    source: ClassVar[str] = "Flyvbjerg and Petersen 1989, doi:10.1063/1.457480, for the error"
    status: str
    """A key of ``STATUSES``."""
    loss: float | None = None
    """Nats per token."""
    error: float | None = None
    """Standard error of the mean from block means; it does not include the variance of seeds."""
    used: int = 0
    """Number of averaged losses."""
    left_out: int = 0
    """Number of spikes and non-finite losses."""


def fit(train_loss: ArrayLike) -> FinalLoss:
    """The final loss from all losses of a run in order; a missing loss is NaN."""
    loss = np.asarray(train_loss, dtype=float)
    return mean(loss[-max(FEWEST, int(SHARE * len(loss))) :])


def mean(last_losses: ArrayLike) -> FinalLoss:
    """The final loss from the losses of the last updates."""
    last = np.asarray(last_losses, dtype=float)
    finite = last[np.isfinite(last)]
    if len(finite) < FEWEST // 2 or len(last) < FEWEST:
        return FinalLoss(status="too_few")
    median = np.median(finite)
    band = max(LEAST, SIGMAS * np.median(np.abs(finite - median)))
    kept = finite[finite - median <= band]
    means = [block.mean() for block in np.array_split(kept, BLOCKS)]
    left_out = len(last) - len(kept)
    return FinalLoss(
        status="spiking" if left_out > SPIKING * len(last) else "settled",
        loss=float(kept.mean()),
        error=float(np.std(means, ddof=1) / np.sqrt(BLOCKS)),
        used=len(kept),
        left_out=left_out,
    )
