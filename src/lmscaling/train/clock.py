"""The clock that measures productive time, which is what a budget in hours counts.

Productive time runs from the end of one update to the end of the next, without the work that is
not training (validation, checkpoints). Compilation and the first use of libraries happen before
it starts. Waiting for data and writing the log count, unless the seconds are those of the processor
(``Study.clock``).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Productive seconds, starting from those of a checkpoint.

    Args:
        seconds: Productive seconds so far.
        now: Returns a monotonic time in seconds, or that of the processor.
    """

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._mark = now()
        self._excluded = 0.0
        self.seconds = seconds

    def start(self) -> None:
        """Start the clock; the time before was preparation."""
        self._mark, self._excluded = self._now(), 0.0

    def tick(self) -> float:
        """End an update: add its productive time and return the new total."""
        now = self._now()
        self.seconds += now - self._mark - self._excluded
        self._mark, self._excluded = now, 0.0
        return self.seconds

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """A context for work that is not training; its time is not counted."""
        before = self._now()
        try:
            yield
        finally:
            self._excluded += self._now() - before
