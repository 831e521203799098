"""Segments: the runs of tokens that separate programs process, for all recurrences.

A sequence is a row of a batch, or a part of one if lengths are given. It is one segment or several,
all but the last a multiple of the chunk. The state before a segment is that of the tokens before it
in its sequence, and before a sequence the given one, or zero.

Legend: B rows of the batch, T tokens of a row, N sequences, S segments, C chunks of all segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The segments of one call; int32 tables."""

    table: Tensor
    """``[S, 4]``: row of the batch, first token, number of tokens, first chunk of all."""
    ranges: Tensor
    """``[N, 2]``: first segment of each sequence, number of its segments."""
    chunks: Tensor
    """``[C, 3]``: row of the batch, first token, number of tokens."""

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


@lru_cache(maxsize=8)  # of one batch; documents of the next one have other lengths
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
    lengths_N = torch.tensor(lengths or (T,) * B)
    starts_N = lengths_N.cumsum(0) - lengths_N
    starts_S, tokens_S, segments_N = _parts(starts_N, lengths_N, tokens)
    starts_C, tokens_C, chunks_S = _parts(starts_S, tokens_S, chunk)
    table = (starts_S // T, starts_S % T, tokens_S, chunks_S.cumsum(0) - chunks_S)
    ranges = (segments_N.cumsum(0) - segments_N, segments_N)
    chunks = (starts_C // T, starts_C % T, tokens_C)
    made = [torch.stack(x, 1).int().to(device) for x in (table, ranges, chunks)]
    return Segments(table=made[0], ranges=made[1], chunks=made[2])


def _parts(starts: Tensor, tokens: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Start and tokens of each part of up to ``size`` tokens, and the parts of each run."""
    count = (tokens + size - 1) // size
    run = torch.arange(len(count)).repeat_interleave(count)
    before = (torch.arange(len(run)) - (count.cumsum(0) - count)[run]) * size
    return starts[run] + before, (tokens[run] - before).clamp(max=size), count


def check(B: int, T: int, lengths: Sequence[int]) -> None:
    """Raise ValueError unless lengths divide the rows of a batch; none do, too."""
    at = 0
    for length in lengths:
        if length < 1 or at % T + length > T:
            raise ValueError(
                f"lengths has a sequence of {length} tokens at token {at % T} of a row of {T}; "
                "allowed: at least one token, none beyond the end of the row"
            )
        at += length
    if lengths and at != B * T:
        raise ValueError(f"lengths sum to {at} tokens; allowed: {B * T}, all of the {B} rows")
