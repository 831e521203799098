"""Spikes of the training loss: counted, never clipped.

A spike is an update whose loss is more than 7 robust standard deviations (1.4826 x the median
absolute deviation, MAD), and more than 0.05 nats, above the median of the 128 updates before it.
This is the spike score of OLMo 2 (arXiv:2501.00656: 7 standard deviations from the mean of the last
1,000 values) with a median, so that one spike does not hide the next, and a short window, which a
falling loss does not widen. An update with fewer than 32 updates before it is never a spike.
Where other runs have read the same tokens in the same update, the same is asked of differences from
them (``others``) and not of losses, because text that is hard for every run is no spike of one.

Windowed medians are slow, so bounds that cannot miss a spike rule out most updates first.
"""

import numpy as np
from numpy.typing import NDArray

WINDOW = 128
FEWEST = 32
SIGMAS = 7 * 1.4826
LEAST = 0.05
"""Nats."""
CALM = 8
"""Updates in a row that end an upset; a single low one may be chance."""

BLOCK = 32
LOW = 10
"""See ``_candidates``."""


def find(loss: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices and heights above the median of the spikes in the losses of one run, in order.

    Cost: 20,000 updates take 2 ms of one core, 1,000 updates 0.4 ms.
    """
    early = np.arange(FEWEST, min(WINDOW, len(loss)))
    late = _candidates(loss)
    parts = [_early_heights(loss[:WINDOW], early)]
    if len(late):
        windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW)
        parts.append(_spike_heights(windows[late - WINDOW], loss[late]))
    heights = np.concatenate(parts)
    indices = np.concatenate([early, late])
    return indices[heights > 0], heights[heights > 0]


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


def _spike_heights(before: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Heights of the losses above the medians of the rows before them; 0 if not a spike."""
    middle = np.median(before, axis=1)
    height = np.where(loss - middle > LEAST, loss - middle, 0)
    high = np.flatnonzero(height)
    mad = np.median(np.abs(before[high] - middle[high, None]), axis=1)
    height[high[height[high] <= SIGMAS * mad]] = 0
    return height


def _early_heights(loss: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same of updates with less than a full window before them, which infinities fill."""
    shorter = np.arange(len(loss)) >= at[:, None]
    before = np.sort(np.where(shorter, np.inf, loss), axis=1)
    middle = _middle(before, at)
    height = np.where(loss[at] - middle > LEAST, loss[at] - middle, 0)
    high = np.flatnonzero(height)
    away = np.sort(np.abs(before[high] - middle[high, None]), axis=1)
    height[high[height[high] <= SIGMAS * _middle(away, at[high])]] = 0
    return height


def _middle(rows: NDArray[np.float64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """Medians of the first ``n`` values of sorted rows."""
    k = np.arange(len(rows))
    return (rows[k, (n - 1) // 2] + rows[k, n // 2]) / 2


def _candidates(loss: NDArray[np.float64]) -> NDArray[np.int64]:
    """Updates with a full window before them, without most of those that cannot be spikes.

    Every window holds three complete blocks of 32. In each sorted block 22 values are not below the
    11th: 66 of the window's 128 are not below the lowest of three such values, so the median is not
    either. And no open interval as wide as the narrowest run of 11 sorted values holds more than 10
    of a block: at most 30 + 32 of the window lie within half that width of the median, so the MAD
    is not smaller than the half.
    """
    late = np.arange(WINDOW, len(loss))
    if not len(late):
        return late
    blocks = np.sort(loss[: len(loss) // BLOCK * BLOCK].reshape(-1, BLOCK), axis=1)
    median = _least_of_three(blocks[:, LOW])
    mad = _least_of_three((blocks[:, LOW:] - blocks[:, :-LOW]).min(axis=1) / 2)
    first = -(-(late - WINDOW) // BLOCK)  # the first complete block of each window
    limit = np.maximum(LEAST, SIGMAS * mad[first])
    return late[loss[late] - median[first] > limit - 1e-9]


def _least_of_three(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(np.minimum(values[:-2], values[1:-1]), values[2:])
