"""The launch options of every kernel, by shape and device, and the segments of sequences.

Nothing is tuned at run time: the plan depends on the call alone, so that all runs of a study use
the same kernels.

A segment is the run of tokens that a program processes. A sequence is a row of a batch, or a part
of one if lengths are given. It is one segment or several, all but the last a multiple of the chunk.

Legend: B rows of the batch, T tokens of a row, N sequences, S segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

PROGRAMS_PER_PROCESSOR = 2
"""Programs of 128 threads with up to 255 registers each that fit on one multiprocessor."""
SEGMENT_TOKENS = 512
"""Minimum length of a segment, whose float32 state is as large as 128 rows of k and v in bf16."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Launch options of a kernel."""

    warps: int = 4
    stages: int = 2
    """Chunks in the pipeline: one is computed while the others are loaded."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes and options of the function to compute."""

    heads: int
    key: int
    """Width of a query or key."""
    value: int
    """Width of a value."""
    feature_map: str
    normalize: bool
    gate: str = "none"
    """``"none"``, ``"head"`` or ``"token"``."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The launch options of all kernels of one call; they change the result by rounding only."""

    chunk: int = 64
    """Tokens; a power of two, at least 16. The forward pass keeps a state before each chunk."""
    forward: Config = Config()
    """Also of the sums over segments."""
    backward: Config = Config()
    segments: int = 1
    """Parts of a sequence that separate programs process."""

    def segment_tokens(self, T: int) -> int:
        """Tokens of every segment except the last: a multiple of the chunk."""
        return -(-T // (self.segments * self.chunk)) * self.chunk


SLOW = Config(warps=8, stages=1)
SAFE = Plan(chunk=16, forward=SLOW, backward=SLOW)
"""Compiles for every width, dtype and architecture, but is slow if registers spill."""

_WIDE = Plan(chunk=32, forward=SLOW, backward=SLOW)
_ONE_STAGE = Config(stages=1)
TABLE = {
    # tensor cores: up to width 64, and 128
    "warpgroup": (Plan(), _WIDE),
    "tensor memory": (Plan(forward=_ONE_STAGE, backward=_ONE_STAGE), _WIDE),
    "warp": (
        Plan(chunk=32, backward=_ONE_STAGE),
        Plan(chunk=16, forward=Config(warps=8), backward=_ONE_STAGE),
    ),
}
"""For bfloat16. Chosen by compiling for absent devices with Triton 3.6, 3.7 and 3.9, not by timing.
Up to width 64 nothing spills much on ``sm_90``; the backward pass takes 700 bytes of stack on
``sm_80`` and 3,100 at width 128 there. float32 does not use tensor cores and uses ``SAFE``."""

GATED = Plan(chunk=64, backward=_ONE_STAGE)
"""With gates, on warpgroups at keys up to 32: at K 32, V 64 0.8 of the instructions of the next."""
GATED_ELSEWHERE = Plan(chunk=32, backward=_ONE_STAGE)
"""Chunks of 64 tokens need more registers: on sm_90 at K 64, and without warpgroups, they take 400
to 1,000 bytes of stack and hardly fewer instructions, if any."""


def choose(qkv_BTW: Tensor, shape: Shape) -> Plan:
    """The plan for the device of a tensor."""
    if not qkv_BTW.is_cuda:
        return Plan()
    B, T, _ = qkv_BTW.shape
    device = torch.cuda.get_device_properties(qkv_BTW.device)
    parts = segments(B * shape.heads, T, device.multi_processor_count)
    return configured(numbered(device.major, device.minor), qkv_BTW.dtype, shape, parts)


def segments(sequences: int, T: int, processors: int) -> int:
    """Parts of each sequence, one for each head: as many as let all programs run at once.

    One part more would add a second, nearly empty wave, which takes as long as the first.
    """
    return max(1, min(PROGRAMS_PER_PROCESSOR * processors // sequences, T // SEGMENT_TOKENS))


def numbered(major: int, minor: int) -> int:
    """A device's architecture as in ``sm_90``; 0 for AMD, whose numbers mean other devices."""
    return 0 if torch.version.hip else 10 * major + minor


def configured(architecture: int, dtype: torch.dtype, shape: Shape, segments: int = 1) -> Plan:
    """The plan for an architecture, numbered as in ``sm_90``."""
    cores = {9: "warpgroup", 10: "tensor memory"}.get(architecture // 10, "warp")
    plan = TABLE[cores][max(shape.key, shape.value) > 64]
    if shape.gate != "none":
        plan = GATED if cores == "warpgroup" and shape.key <= 32 else GATED_ELSEWHERE
    return replace(SAFE if dtype == torch.float32 else plan, segments=segments)


def compiles_gates(architecture: int) -> bool:
    """Whether the backward pass with gates compiles; not for sm_10x by Triton 3.6 and 3.7."""
    return architecture // 10 != 10


def block(width: int) -> int:
    """The smallest power of two that is not below a width; products need at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def state_width(shape: Shape) -> int:
    """Elements of the state of a head, with widths padded as in registers."""
    return block(shape.key) * (block(shape.value) + 1)


class Segments(NamedTuple):
    """The segments of one call; int32 tables."""

    table: Tensor
    """``[S, 4]``: row of the batch, first token, number of tokens, first chunk of all."""
    ranges: Tensor
    """``[N, 2]``: first segment of each sequence, number of its segments."""

    @property
    def is_split(self) -> bool:
        """Whether any sequence has several segments."""
        return len(self.table) > len(self.ranges)


@lru_cache(maxsize=8)  # of one batch; documents of the next one have other lengths
def cut(
    B: int, T: int, lengths: tuple[int, ...], tokens: int, chunk: int, device: torch.device
) -> Segments:
    """Segments of at most ``tokens`` tokens, a multiple of the chunk, on the device of the kernels.

    ``lengths`` are the tokens of each sequence, which follow one another in the B rows of T tokens;
    empty if each row is a sequence.
    """
    lengths_N = torch.tensor(lengths or (T,) * B)
    starts_N = lengths_N.cumsum(0) - lengths_N
    segments_N = (lengths_N + tokens - 1) // tokens
    sequence_S = torch.arange(len(lengths_N)).repeat_interleave(segments_N)
    first_S = (segments_N.cumsum(0) - segments_N)[sequence_S]
    before_S = (torch.arange(len(sequence_S)) - first_S) * tokens
    starts_S = starts_N[sequence_S] + before_S
    tokens_S = (lengths_N[sequence_S] - before_S).clamp(max=tokens)
    chunks_S = (tokens_S + chunk - 1) // chunk
    table = (starts_S // T, starts_S % T, tokens_S, chunks_S.cumsum(0) - chunks_S)
    ranges = (segments_N.cumsum(0) - segments_N, segments_N)
    return Segments(*(torch.stack(x, 1).int().to(device) for x in (table, ranges)))


def check_lengths(B: int, T: int, lengths: Sequence[int]) -> None:
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
