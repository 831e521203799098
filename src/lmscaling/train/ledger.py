"""Writing the ledger: what all attempts of a run have spent, including those that were killed.

A checkpoint cannot record the time that is lost after it was written, so the ledger does. One line
is appended and fsynced when an attempt begins, every few seconds, at every checkpoint and at the
end. If a kill truncates the last line, a few seconds are missing from the account.
"""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from lmscaling.records import ledger
from lmscaling.records.ledger import NAME, Account, Entry, Kind

BEAT_SECONDS = 10.0
"""Time between two entries of a running attempt: the most that a kill can lose."""


class Ledger:
    """The ledger of a run, opened for appending; several threads may write.

    Args:
        scratch: Scratch folder of the run.
        attempt: Number of the new attempt.
    """

    def __init__(self, scratch: Path, attempt: int) -> None:
        self.path = scratch / NAME
        self.attempt = attempt
        self._start = self._last_entry = time.monotonic()
        self._turn = threading.Lock()
        truncated = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("ab", buffering=0)
        if truncated:
            self._file.write(b"\n")

    def write(self, kind: Kind, update: int, train: float, **values: Any) -> None:
        """Append an entry and wait until it is on disk."""
        with self._turn:
            self._last_entry = time.monotonic()
            entry = Entry(
                kind=kind,
                attempt=self.attempt,
                update=update,
                train_seconds=train,
                attempt_seconds=self._last_entry - self._start,
                **values,
            )
            self._file.write(ledger.line(entry))
            os.fsync(self._file.fileno())

    def beat(self, update: int, train: float) -> None:
        """Append an entry if the last one is older than ``BEAT_SECONDS``."""
        if time.monotonic() - self._last_entry >= BEAT_SECONDS:
            self.write("beat", update, train)

    def branch_end(self) -> int | None:
        """The last update of a branch, if an attempt has recorded it."""
        ends = (entry.end for entry in ledger.entries(self.path) if entry.kind == "branch")
        return next(ends, None)

    def account(self) -> Account:
        """What the run has spent up to the last entry."""
        return ledger.account(ledger.entries(self.path))

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def free(scratch: Path) -> None:
    """Let a held run go on: its earlier failures no longer count."""
    last = max((entry.attempt for entry in ledger.entries(scratch / NAME)), default=0)
    with Ledger(scratch, last) as book:
        book.write("freed", 0, 0.0)
