"""Spikes of the training loss: counted, never clipped.

A spike is an update whose loss is more than 7 robust standard deviations (1.4826 x the median
absolute deviation, MAD), and more than 0.05 nats, above the median of the 128 updates before it.
This is the spike score of OLMo 2 (arXiv:2501.00656: 7 standard deviations from the mean of the last
1,000 values) with a median, so that one spike does not hide the next, and a short window, which a
falling loss does not widen. An update with fewer than 32 updates before it is never a spike.

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

    Cost: 20 million updates in 72 runs take 4 seconds of one core, reading included.
    """
    parts = [
        _spike_heights(loss[:i][None], loss[i : i + 1])
        for i in range(FEWEST, min(WINDOW, len(loss)))
    ]
    early = np.arange(FEWEST, FEWEST + len(parts))
    late = _candidates(loss)
    if len(late):
        windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW)
        parts.append(_spike_heights(windows[late - WINDOW], loss[late]))
    heights = np.concatenate([np.empty(0), *parts])
    indices = np.concatenate([early, late])
    return indices[heights > 0], heights[heights > 0]


def recoveries(
    loss: NDArray[np.float64], spikes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First spikes of the upsets of one run, and the updates until each upset was over.

    An upset is over with the first of 8 updates in a row that are no spikes above the median before
    the upset; later medians would include the upset itself. Spikes until then belong to it. The
    number is infinite if the run ends first.
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
        over = i + _first_calm(loss[i:] - middle <= band)
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
