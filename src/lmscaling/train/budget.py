"""What a run may spend, and the clock that counts it.

Productive seconds run from the end of one update to the end of the next, less the brackets of
work that is not training (validation). Waiting for data and writing the log count.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lmscaling.fields import SECONDS, parse_budget


class Budget:
    """A budget such as ``24 hours``, ``200 updates`` or ``1e9 tokens``."""

    def __init__(self, text: str) -> None:
        self.amount, self.unit = parse_budget(text)

    def spent(self, *, updates: int, tokens: int, seconds: float) -> bool:
        """Whether nothing is left."""
        if self.unit in SECONDS:
            return seconds >= self.amount * SECONDS[self.unit]
        return {"updates": updates, "tokens": tokens}[self.unit] >= self.amount


class Clock:
    """Productive seconds; ``now`` is a monotonic time in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._mark = now()
        self._excluded = 0.0
        self.seconds = 0.0

    def start(self) -> None:
        """Begin to count; everything before was preparation."""
        self._mark, self._excluded = self._now(), 0.0

    def tick(self) -> float:
        """End an update: its productive time is added; returns the new total."""
        now = self._now()
        self.seconds += now - self._mark - self._excluded
        self._mark, self._excluded = now, 0.0
        return self.seconds

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """A bracket around work that is not training."""
        before = self._now()
        try:
            yield
        finally:
            self._excluded += self._now() - before
