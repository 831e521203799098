"""A thread of rank 0 that ends an attempt which cannot end itself.

The main thread may wait inside a library for a rank that has died or hangs, where no exception and
no signal handler reaches it. Signals reach this thread through a pipe.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from lmscaling.train.ranks import REQUESTS, Others

POLL_SECONDS = 0.2

GRACE_SECONDS = 45.0
"""After a request to stop, time without a step of any rank until the attempt counts as hung."""


class Watch:
    """Watches the other ranks and the requests to stop during a block.

    Args:
        others: The other ranks.
        give_up: Called in the thread with a fault and a reason; ends the process.
    """

    def __init__(self, others: Others, give_up: Callable[[str, str], None]) -> None:
        self._others, self._give_up = others, give_up
        self._asked = ""
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._requests, write = os.pipe()
        os.set_blocking(self._requests, False)
        os.set_blocking(write, False)
        self._write = write
        self._previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous)
        self._ended.set()
        self._thread.join()
        os.close(self._requests)
        os.close(self._write)

    def answered(self) -> None:
        """The main thread has seen the request, and what it does now may take its time."""
        self._answered.set()

    def _watch(self) -> None:
        seen, since = b"", time.monotonic()
        while not self._ended.is_set():
            self._read_requests()
            if found := self._others.ended():
                if not self._ended.wait(2 * POLL_SECONDS):  # else all are about to end
                    self._give_up(*found)
                return
            marks = self._others.steps.tobytes()
            if marks != seen or not self._asked or self._answered.is_set():
                seen, since = marks, time.monotonic()
            elif time.monotonic() - since > GRACE_SECONDS:
                self._give_up("rank", self._hang())
                return

    def _read_requests(self) -> None:
        ready, _, _ = select.select([self._requests], [], [], POLL_SECONDS)
        for byte in os.read(self._requests, 64) if ready else b"":
            if byte in REQUESTS and not self._asked:
                self._asked = signal.Signals(byte).name

    def _hang(self) -> str:
        """Which rank hangs; each prints where it is."""
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
        self._others.trace()
        time.sleep(1.0)  # until all have printed
        steps = self._others.steps[:, 0].tolist()
        late = self._others.stopped() or [r for r, step in enumerate(steps) if step < max(steps)]
        names = " and ".join(f"rank {rank}" for rank in late) or "every rank"
        return f"{names} did not answer {self._asked} for {GRACE_SECONDS:.0f} s"
