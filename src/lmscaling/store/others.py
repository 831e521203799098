"""What other runs did on the same text: a text that is hard for all of them is no spike of one.

The excess of a loss is its height above the median of the 127 losses before it, so that runs of
different sizes can be compared. Of a run that shares its text with at least three others, spikes
are looked for in the excess less the median excess of the others at the same update. With three,
the median ignores any single one: neither a spike of another run nor its recovery is taken for one
of this run. A branch is not compared with its trunk, whose weights it shares, and no run with a
branch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

FEWEST = 3
"""Other runs with a loss at the same update."""

BEFORE = 127
"""Losses whose median is the level of a run; an odd number has one in the middle."""

CHUNK = 1 << 20
"""Losses compared at once."""


class Losses(NamedTuple):
    """The losses of one run that are known and finite."""

    update: NDArray[np.int32]
    """Increasing."""
    loss: NDArray[np.float64]
    """Nats per token."""


def differences(runs: Sequence[Losses], trunks: Sequence[int | None]) -> list[NDArray[np.float64]]:
    """The excess of each loss less the median excess of the others; NaN where that is not known.

    Args:
        runs: Runs that read the same tokens in the same update.
        trunks: Of each branch the place of its trunk in ``runs``, -1 if it is not there; None of a
            trunk.

    Cost: 20 million losses take 6 seconds of one core, and three arrays of their size.
    """
    excess = [_excess(losses) for losses in runs]  # at updates 0, 1, 2 and so on
    members = [i for i, trunk in enumerate(trunks) if trunk is None]
    rows = {i: row for row, i in enumerate(members)}
    places = [rows.get(i if trunk is None else trunk) for i, trunk in enumerate(trunks)]
    width = max(1, CHUNK // max(1, len(runs)))
    for start in range(0, max(map(len, excess), default=0), width):
        known = np.full((len(members), width), np.nan)
        for row, i in enumerate(members):
            part = excess[i][start : start + width]
            known[row, : len(part)] = part
        order = np.sort(known, axis=0)  # NaN is last
        n = np.isfinite(known).sum(axis=0)
        for i, place in enumerate(places):
            part = excess[i][start : start + width]
            left_out = np.full(width, np.nan) if place is None else known[place]
            part -= _median_without(order, n, left_out)[: len(part)]
    return [part[losses.update] for part, losses in zip(excess, runs, strict=True)]


def _excess(losses: Losses) -> NDArray[np.float64]:
    """Loss at every update from 0 less the median of those before; NaN where either is missing."""
    update, loss = losses
    excess = np.full(int(update[-1]) + 1 if len(update) else 0, np.nan)
    if not len(update):
        return excess
    first = int(update[0])
    # A missing loss counts as the one before it.
    latest = np.searchsorted(update, np.arange(first, len(excess)), side="right") - 1
    middle = ndimage.median_filter(loss[latest], size=BEFORE)
    late = update >= first + BEFORE
    excess[update[late]] = loss[late] - middle[update[late] - first - BEFORE // 2 - 1]
    return excess


def _median_without(
    order: NDArray[np.float64], n: NDArray[np.int64], left_out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Median of each column without one of its values; NaN if fewer than ``FEWEST`` are left.

    Args:
        order: ``[values, columns]``, sorted.
        n: ``[columns]``: number of values that are not NaN.
        left_out: ``[columns]``: the value that does not count; NaN if all do.
    """
    if len(order) < FEWEST:
        return np.full(order.shape[1], np.nan)
    left = n - np.isfinite(left_out)
    columns = np.arange(order.shape[1])

    def at(rank: NDArray[np.int64]) -> NDArray[np.float64]:
        rank = np.clip(rank, 0, len(order) - 2)
        is_before = left_out <= order[rank, columns]
        return order[rank + is_before, columns]

    return np.where(left >= FEWEST, (at((left - 1) // 2) + at(left // 2)) / 2, np.nan)
