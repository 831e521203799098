"""The final training loss of one run: the mean over its last updates without outliers.

Losses outside a band of 7 robust standard deviations, and 0.05 nats, around the median are
excluded, above and below it: a mean trimmed on one side would be biased. Losses of adjacent updates
are correlated, so the standard error is computed from block means instead of single updates
(Flyvbjerg and Petersen 1989).

A mean over the end is the final loss only if the loss stays at one level there. The updates that
are averaged and as many before them are cut into 20 blocks: the level has changed if the medians of
the last 3, 5 or 10 blocks differ from those before by more than 0.05 nats and at a significance of
1 %, by the rank test of Mann and Whitney (1947), Bonferroni over the three splits. It errs in less
than 1 % of even runs; in 4 % if only 20 updates are averaged and adjacent ones correlate by 0.5.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import mannwhitneyu

STATUSES = {
    "settled": "at one level, and at most 10 % of the last losses are excluded",
    "unsettled": "the level changes by more than 0.05 nats within the last steps",
    "spiking": "more than 10 % of the last losses are outliers or non-finite",
    "too_few": "fewer than 400 steps: a mean over 20 would cover more than 5 % of the run",
}

SIGMAS = 7 * 1.4826
"""Median absolute deviations beyond which a loss is an outlier, or a spike."""
LEAST = 0.05
"""Nats beyond which it is one."""
SHARE = 0.01
"""Fraction of the updates of a run that is averaged."""
BLOCKS = 10
FEWEST = 2 * BLOCKS
"""Updates that are averaged at least."""
MOST = 0.05
"""Largest fraction of a run that is averaged."""
SHORTEST = int(FEWEST / MOST)
"""Updates of the shortest run that has a final loss."""
SPIKING = 0.1
CHANGED = 0.01
"""Significance at which a change of level is one."""
LAST = (3, 5, 10)
"""Blocks at the end that are compared with those before."""


@dataclass(frozen=True, kw_only=True)
class FinalLoss:
    """The final loss of one run."""

    formula: ClassVar[str] = "mean of the last 1 % of steps within 7 robust sd of their median"
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
    """Number of outliers and non-finite losses."""


def fit(train_loss: ArrayLike) -> FinalLoss:
    """The final loss from all losses of a run in order; a missing loss is NaN."""
    loss = np.asarray(train_loss, dtype=float)
    if len(loss) < SHORTEST:
        return FinalLoss(status="too_few")
    return mean(loss[-2 * max(FEWEST, int(SHARE * len(loss))) :])


def mean(last_losses: ArrayLike) -> FinalLoss:
    """The final loss from the losses of the updates that are averaged and of as many before."""
    both = np.asarray(last_losses, dtype=float)
    last = both[len(both) // 2 :]
    finite = last[np.isfinite(last)]
    if len(finite) < FEWEST // 2 or len(last) < FEWEST:
        return FinalLoss(status="too_few")
    away = np.abs(finite - np.median(finite))
    kept = finite[away <= max(LEAST, SIGMAS * np.median(away))]
    means = [block.mean() for block in np.array_split(kept, BLOCKS)]
    left_out = len(last) - len(kept)
    spiking = "spiking" if left_out > SPIKING * len(last) else "settled"
    return FinalLoss(
        status="unsettled" if _has_changed(both) else spiking,
        loss=float(kept.mean()),
        error=float(np.std(means, ddof=1) / np.sqrt(BLOCKS)),
        used=len(kept),
        left_out=left_out,
    )


def _has_changed(loss: NDArray) -> bool:
    """Whether the level of the last blocks differs from that of those before."""
    blocks = [block[np.isfinite(block)] for block in np.array_split(loss, 2 * BLOCKS)]
    medians = np.array([np.median(block) if len(block) else np.nan for block in blocks])
    for n in LAST:
        before, after = (part[np.isfinite(part)] for part in (medians[:-n], medians[-n:]))
        if not len(before) or not len(after):
            continue
        change = abs(np.median(after) - np.median(before))
        if change > LEAST and mannwhitneyu(before, after).pvalue < CHANGED / len(LAST):
            return True
    return False
