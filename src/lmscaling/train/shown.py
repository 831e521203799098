"""What an attempt shows beside its log; no result depends on it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shown:
    """Loggers, and what else of Lightning is wanted."""

    loggers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options by name of a logger."""
    progress_bar: bool = False
    profiler: str | None = None
    """``simple``, ``advanced`` or ``pytorch``."""


NOTHING = Shown()
