"""What a run may spend, and the clock that counts it.

Productive seconds run from the end of one update to the end of the next, less the brackets of
work that is not training (validation, checkpoints). Compilation and warm-up come before the first.
Waiting for data and writing the log count.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Productive seconds, from those of a checkpoint on; ``now`` is a monotonic time in seconds."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._mark = now()
        self._excluded = 0.0
        self.seconds = seconds

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
