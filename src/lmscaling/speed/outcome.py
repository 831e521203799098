"""What measuring one point gives back."""

from dataclasses import dataclass


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
    loss: float | None = None
    accuracy: float | None = None
