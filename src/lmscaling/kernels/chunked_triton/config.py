"""How one kernel is built."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Config:
    """How a kernel runs; but for rounding none of it changes the result."""

    chunk: int = 64
    """Tokens; a power of two, at least 16."""
    warps: int = 4
    stages: int = 2
    """Chunks in flight: one is computed, the others are loaded."""
