"""Segments: the runs of tokens that separate programs process.

A sequence is a row of a batch, or a part of one if lengths are given. It is one segment or several,
all but the last a multiple of the chunk. The state before a segment is that of the tokens before it
in its sequence, and before a sequence the given one, or zero.
"""

# Triton compiles one of these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = tl.constexpr(4)


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The segments of one call."""

    table: Tensor
    """int32 ``[S, 4]``: row of the batch, first token, number of tokens, first chunk of all."""
    ranges: Tensor
    """int32 ``[N, 2]``: first segment of each sequence, number of its segments."""
    chunks: int
    """Of all segments."""

    @property
    def count(self) -> int:
        return self.table.shape[0]

    @property
    def sequences(self) -> int:
        return self.ranges.shape[0]

    @property
    def is_split(self) -> bool:
        """Whether any sequence has several segments."""
        return self.count > self.sequences

    @property
    def first(self) -> Tensor:
        """Index of the first segment of each sequence, ``[N]``."""
        return self.ranges[:, 0]

    @property
    def last(self) -> Tensor:
        """Index of the last segment of each sequence, ``[N]``."""
        return self.ranges.sum(1) - 1


@lru_cache(maxsize=256)
def cut(
    B: int, T: int, lengths: tuple[int, ...], tokens: int, chunk: int, device: torch.device
) -> Segments:
    """Cut sequences into segments.

    Args:
        B: Rows of the batch.
        T: Tokens of a row.
        lengths: Tokens of each sequence, which follow one another in a row; empty if each row is a
            sequence.
        tokens: Longest segment, a multiple of the chunk.
        chunk: Tokens of a chunk.
        device: Where the kernels run.
    """
    table, ranges, slot, at = [], [], 0, 0
    for length in lengths or (T,) * B:
        row, start = divmod(at, T)
        ranges.append((len(table), -(-length // tokens)))
        for offset in range(0, length, tokens):
            n = min(tokens, length - offset)
            table.append((row, start + offset, n, slot))
            slot += -(-n // chunk)
        at += length
    made = [torch.tensor(x, dtype=torch.int32).to(device) for x in (table, ranges)]
    return Segments(table=made[0], ranges=made[1], chunks=slot)


@triton.jit
def segment(table_ptr, H: tl.constexpr):
    """Head, index of the state, row, first token and number of tokens of a program."""
    row_ptr = table_ptr + COLUMNS * (tl.program_id(0) // H)
    i_h, i_state = tl.program_id(0) % H, tl.program_id(0).to(tl.int64)
    return i_h, i_state, tl.load(row_ptr).to(tl.int64), tl.load(row_ptr + 1), tl.load(row_ptr + 2)


@triton.jit
def first_chunk(table_ptr, H: tl.constexpr):
    """Index of a program's first chunk, among those of all segments."""
    return tl.load(table_ptr + COLUMNS * (tl.program_id(0) // H) + 3).to(tl.int64)
