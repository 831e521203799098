"""Which tokens share a recurrent state: documents in a sequence, each with a state of its own.

A segment is a part of a sequence; states are numbered in the order of the segments, sequence by
sequence. The tables are built once for a batch and serve all layers.

Legend: P segments, N chunks of all segments; a chunk does not cross the end of its segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 32
"""Tokens of every chunk but the last of a segment."""


@dataclass(frozen=True)
class Segments:
    """The segments of a batch."""

    shape: tuple[int, int]
    """Sequences, and tokens of each."""
    lengths: tuple[tuple[int, ...], ...]
    """Of each sequence, the tokens of its segments."""
    table_P4: Tensor
    """Rows (sequence, start, length, first chunk), int32."""
    chunks_N3: Tensor
    """Rows (sequence, start, length), int32."""


def cut(lengths: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Segments:
    """The segments with these lengths, with tables on a device.

    Args:
        lengths: Of each sequence, the tokens of its segments, whose sum is the same for all.
        device: That of the queries.

    Raises:
        ValueError: A segment is empty, or the sequences differ in length.
    """
    if not lengths or not all(lengths) or any(n < 1 for row in lengths for n in row):
        raise ValueError(f"segments have {lengths} tokens; allowed: at least one sequence and 1")
    totals = sorted({sum(row) for row in lengths})
    if len(totals) > 1:
        raise ValueError(f"sequences have {totals} tokens in their segments; allowed: one number")
    table, chunks = [], []
    for sequence, row in enumerate(lengths):
        start = 0
        for length in row:
            table.append((sequence, start, length, len(chunks)))
            for first in range(0, length, CHUNK):
                chunks.append((sequence, start + first, min(CHUNK, length - first)))
            start += length
    table_P4, chunks_N3 = (torch.tensor(x, dtype=torch.int32) for x in (table, chunks))
    kept = tuple(tuple(row) for row in lengths)
    return Segments((len(kept), totals[0]), kept, table_P4.to(device), chunks_N3.to(device))
