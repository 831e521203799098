"""Launch options of one kernel."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Config:
    """Launch options of a kernel; they change the result by rounding only."""

    chunk: int = 64
    """Tokens; a power of two, at least 16."""
    warps: int = 4
    stages: int = 2
    """Chunks in the pipeline: one is computed while the others are loaded."""
