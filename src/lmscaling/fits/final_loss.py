"""The training loss at the end of one run: a mean of its last updates that spikes do not move.

Losses above the band of ``spikes`` (7 robust standard deviations, and 0.05 nats, above the median)
are left out, the rest is averaged. Neighbours err together, so the error comes from the means of
blocks and not from single updates (Flyvbjerg and Petersen 1989).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lmscaling.store.spikes import LEAST, SIGMAS

STATUSES = {
    "settled": "nearly all of the last updates count",
    "spiking": "more than a tenth of the last updates are spikes or no numbers",
    "too_few": "fewer than 20 losses",
}

SHARE = 0.01
"""Of the run, at its end."""
BLOCKS = 10
FEWEST = 2 * BLOCKS
SPIKING = 0.1


@dataclass(frozen=True, kw_only=True)
class FinalLoss:
    """The end of one run."""

    formula: ClassVar[str] = "mean of the last 1 % of updates within 7 robust sd of their median"
    source: ClassVar[str] = "Flyvbjerg and Petersen 1989, doi:10.1063/1.457480, for the error"
    status: str
    """A key of ``STATUSES``."""
    loss: float | None = None
    """Nats per token."""
    error: float | None = None
    """Standard error of the mean by blocks; says nothing of other seeds."""
    used: int = 0
    """Losses in the mean."""
    left_out: int = 0
    """Spikes, and losses that are no number."""


def fit(train_loss: ArrayLike) -> FinalLoss:
    """The end of a run from its losses in order, one an update or means over some; NaN is none."""
    loss = np.asarray(train_loss, dtype=float)
    return mean(loss[-max(FEWEST, int(SHARE * len(loss))) :])


def mean(last_losses: ArrayLike) -> FinalLoss:
    """The same from the last losses alone, all of which belong to the end."""
    last = np.asarray(last_losses, dtype=float)
    known = last[np.isfinite(last)]
    if len(known) < FEWEST // 2 or len(last) < FEWEST:
        return FinalLoss(status="too_few")
    middle = np.median(known)
    band = max(LEAST, SIGMAS * np.median(np.abs(known - middle)))
    kept = known[known - middle <= band]
    means = [block.mean() for block in np.array_split(kept, BLOCKS)]
    left_out = len(last) - len(kept)
    return FinalLoss(
        status="spiking" if left_out > SPIKING * len(last) else "settled",
        loss=float(kept.mean()),
        error=float(np.std(means, ddof=1) / np.sqrt(BLOCKS)),
        used=len(kept),
        left_out=left_out,
    )
