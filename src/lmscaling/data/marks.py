"""Which targets of a task count: in the loss, and in the accuracy of a group of targets.

Legend: B sequences, T their length.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lmscaling.data.rows import of_cell
from lmscaling.data.sequences import Sequences

NOT_COUNTED = -1
"""In place of a target that does not count."""

SCORED = 2
"""Marks from here on are of targets whose accuracy counts, in the group of that number."""


class Marks:
    """The targets of a dataset of sequences, which are as long as the context."""

    def __init__(self, row: Sequences, context: int) -> None:
        self._row, self.groups, self.length = row, row.groups, context

    def of(self, x: np.ndarray) -> np.ndarray:
        """Marks of the targets of complete sequences ``[B T]``, uint8 of the same shape."""
        return self._row.marks(x.reshape(-1, self.length)).ravel()

    def counted(self, slab: np.ndarray) -> np.ndarray:
        """Inputs and targets, int64 ``[2, B T]``, with -1 for targets that do not count."""
        tokens = slab.astype("int64")
        tokens[1, self.of(slab[0]) == 0] = NOT_COUNTED
        return tokens


def of(source: Mapping[str, Any], context: int) -> Marks | None:
    """The marks of a cell's dataset, from its identity; None if all targets count, as of text."""
    row = of_cell(source)
    return Marks(row, context) if row else None
