"""Requests to stop an attempt: signals, and the time limit of its job."""

import signal
import sys
import time
from types import TracebackType
from typing import Any

from lmscaling.errors import TRY_AGAIN
from lmscaling.runtime.rank import REQUESTS, number


class Requests:
    """Takes signals as requests to stop during a block. Rank 0 decides; other ranks ignore them.

    Args:
        deadline: When to stop, in seconds since 1970.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reason = ""
        """Why to stop; empty if nobody has asked."""
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
        self._handle()

    def __enter__(self) -> "Requests":
        self._previous = {n: signal.getsignal(n) for n in REQUESTS}
        self._handle()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for n, handler in self._previous.items():
            signal.signal(n, handler)

    def _handle(self) -> None:
        for n in REQUESTS:
            signal.signal(n, signal.SIG_IGN if number() else self._on_signal)

    def _on_signal(self, n: int, frame: Any) -> None:
        self.reason = f"asked to stop by {signal.Signals(n).name}"
        if not self._waits:  # compiling may take minutes
            sys.exit(TRY_AGAIN)
