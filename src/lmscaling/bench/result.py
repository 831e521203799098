"""What measuring one point gives back."""

from dataclasses import dataclass
from typing import Self

import torch

from lmscaling.bench.clock import Timing


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Times of a point that could be measured, and what was computed for them."""

    seconds: list[float]
    """Of each repeat, the device waited for."""
    warm_up: int
    """Repeats before these."""
    dtype: str
    """Of the products."""
    peak_memory_bytes: int | None
    compiled: bool = False
    captured: bool = False
    chunk: int | None = None
    """The chunk size in use, where there is one to choose."""
    params: int | None = None
    """Parameters without embeddings; None of a layer alone."""
    flops_per_token: float | None = None
    """Forward and backward FLOPs per token of a step of a model; None elsewhere."""
    loss: float | None = None
    accuracy: float | None = None

    @classmethod
    def of(cls, timing: Timing, dtype: torch.dtype) -> Self:
        """What the clock says; the rest is for the caller to fill."""
        return cls(
            seconds=timing.seconds,
            warm_up=timing.warm_up,
            dtype=str(dtype).removeprefix("torch."),
            peak_memory_bytes=timing.peak_memory_bytes,
            captured=timing.captured,
        )
