"""Requests to stop an attempt: signals, and the time limit of its job."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmscaling.errors import TRY_AGAIN
from lmscaling.runtime.rank import REQUESTS, number


@contextmanager
def handled(handler: Any, *signals: int) -> Iterator[None]:
    """Handle signals in this way during the block."""
    previous = {n: signal.signal(n, handler) for n in signals}
    try:
        yield
    finally:
        for n, before in previous.items():
            signal.signal(n, before)


class Requests:
    """Takes signals as requests to stop. Rank 0 decides; other ranks ignore them.

    Args:
        deadline: When to stop, in seconds since 1970.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reason = ""
        """Why to stop; empty if nobody has asked."""
        self.handler = signal.SIG_IGN if number() else self._on_signal
        self._waits = False

    def has_come(self) -> bool:
        """Whether a signal has arrived or the time limit of the job is near."""
        if time.time() > self.deadline:
            self.reason = self.reason or "the time limit of the job is near"
        return bool(self.reason)

    def wait_for_updates(self) -> None:
        """From now on a request waits for the end of an update, when there is something to save.

        Lightning has put its own handler beside this one by now; this one comes alone.
        """
        self._waits = True
        for n in REQUESTS:
            signal.signal(n, self.handler)

    def _on_signal(self, n: int, frame: Any) -> None:
        self.reason = f"asked to stop by {signal.Signals(n).name}"
        if not self._waits:  # compiling may take minutes
            sys.exit(TRY_AGAIN)
