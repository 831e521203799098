"""Spikes of the training loss: counted, never clipped.

A spike is an update whose loss is more than 7 robust standard deviations (1.4826 x the median
absolute deviation, MAD), and more than 0.05 nats, above the median of the 128 updates before it.
This is the spike score of OLMo 2 (arXiv:2501.00656: 7 standard deviations from the mean of the last
1,000 values) with a median, so that one spike does not hide the next, and a short window, which a
falling loss does not widen. An update with fewer than 32 updates before it is never a spike.
Where other runs have read the same tokens in the same update, the same is asked of differences from
them (``others``) and not of losses, because text that is hard for every run is no spike of one.
"""

import numpy as np
from numpy.typing import NDArray
from pandas import Series

from lmscaling.fits.final_loss import LEAST, SIGMAS

WINDOW = 128
FEWEST = 32
CALM = 8
"""Updates in a row that end an upset; a single low one may be chance."""


def find(loss: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices and heights above the median of the spikes in the losses of one run, in order.

    Cost: 20,000 updates take 10 ms of one core.
    """
    middle = Series(loss).rolling(WINDOW, min_periods=FEWEST).median().shift().to_numpy()
    high = np.flatnonzero(loss - middle > LEAST)
    height = loss[high] - middle[high]
    padded = np.concatenate([np.full(WINDOW, np.nan), loss])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[high]
    mad = np.nanmedian(np.abs(before - middle[high, None]), axis=1)
    is_spike = height > SIGMAS * mad
    return high[is_spike], height[is_spike]


def judge(
    loss: NDArray[np.float64], difference: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Indices and heights of the spikes of one run, and how many losses were judged by differences.

    Args:
        loss: The losses that are known and finite.
        difference: The same less those of other runs (``others.differences``), NaN where there are
            too few others. There a loss is judged by itself.
    """
    if difference is None:
        return *find(loss), 0
    compared = np.isfinite(difference)
    place = np.flatnonzero(compared)
    compared[place[:FEWEST]] = False
    itself = np.flatnonzero(~compared)
    indices, heights = find(loss[: itself[-1] + 1] if len(itself) else loss[:0])
    alone = ~compared[indices]
    found, above = find(difference[place])
    indices = np.concatenate([indices[alone], place[found]])
    order = np.argsort(indices)
    return indices[order], np.concatenate([heights[alone], above])[order], int(compared.sum())


def recoveries(
    loss: NDArray[np.float64], spikes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First spikes of the upsets of one run, and the updates until each upset was over.

    Recovery is judged by the losses of the run itself. An upset is over with the first of 8 updates
    in a row that are no spikes above the median before the upset; later medians would include the
    upset itself. Spikes until then belong to it. The number is infinite if the run ends first.
    """
    first, lasted = [], []
    over = -1.0
    for i in spikes.tolist():
        if i < over:
            continue
        before = loss[max(0, i - WINDOW) : i]
        before = before[np.isfinite(before)]
        middle = np.median(before)
        band = max(LEAST, SIGMAS * np.median(np.abs(before - middle)))
        over = i + 1 + _first_calm(loss[i + 1 :] - middle <= band)
        first.append(i)
        lasted.append(over - i)
    return np.array(first, dtype=np.int64), np.array(lasted, dtype=np.float64)


def _first_calm(calm: NDArray[np.bool_]) -> float:
    """Start of the first ``CALM`` true values in a row."""
    rows = np.convolve(calm, np.ones(CALM), "valid") == CALM if len(calm) >= CALM else calm[:0]
    return float(rows.argmax()) if rows.any() else np.inf
