"""The ledger: what all attempts of a run have spent, including those that were killed.

A checkpoint cannot record the time that is lost after it was written, so the ledger does. One line
of JSON is appended and fsynced when an attempt begins, every few seconds, at every checkpoint and
at the end. If a kill truncates the last line, a few seconds are missing from the account.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

BEAT_SECONDS = 10.0
"""Time between two entries of a running attempt: the most that a kill can lose."""

FAILED = 2
"""After so many attempts in a row that failed with an error and without a checkpoint, a run counts
as crashed: later attempts would fail, too."""

KILLED = 5
"""The same if some attempts were killed. A queue with preemption kills healthy runs, too, but
seldom as often before the first checkpoint; a run that exhausts its node's memory must end."""

Kind = Literal["begin", "beat", "checkpoint", "branch", "failed"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    kind: Kind
    attempt: int
    update: int
    train_seconds: float
    """Productive time from the run's first update to this one, lost updates not counted."""
    attempt_seconds: float
    """Wall clock since the attempt began its first update, including validation and checkpoints."""
    end: int | None = None
    """In a ``branch`` entry: the branch's last update."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What all attempts of a run have spent."""

    attempt_seconds: float
    """Wall clock of all attempts."""
    lost_seconds: float
    """Productive time that was repeated, because an attempt ended after its last checkpoint."""


class Ledger:
    """The ledger of a run, opened for appending.

    Args:
        scratch: Scratch folder of the run.
        attempt: Number of the new attempt.
    """

    def __init__(self, scratch: Path, attempt: int) -> None:
        self.path = scratch / "ledger.jsonl"
        self.attempt = attempt
        self._start = self._last_entry = time.monotonic()
        truncated = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("ab", buffering=0)
        if truncated:
            self._file.write(b"\n")

    def write(
        self,
        kind: Kind,
        update: int,
        train: float,
        end: int | None = None,
    ) -> None:
        """Append an entry and wait until it is on disk."""
        self._last_entry = time.monotonic()
        entry = Entry(
            kind=kind,
            attempt=self.attempt,
            update=update,
            train_seconds=train,
            attempt_seconds=self._last_entry - self._start,
            end=end,
        )
        self._file.write((json.dumps(asdict(entry)) + "\n").encode())
        os.fsync(self._file.fileno())

    def beat(self, update: int, train: float) -> None:
        """Append an entry if the last one is older than ``BEAT_SECONDS``."""
        if time.monotonic() - self._last_entry >= BEAT_SECONDS:
            self.write("beat", update, train)

    def branch_end(self) -> int | None:
        """The last update of a branch, if an attempt has recorded it."""
        ends = (entry.end for entry in entries(self.path) if entry.kind == "branch")
        return next(ends, None)

    def account(self) -> Account:
        """What the run has spent up to the last entry."""
        return account(entries(self.path))

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def entries(path: Path) -> list[Entry]:
    """The complete lines of a ledger, in order."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    return [Entry(**values) for line in lines if (values := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def account(ledger: list[Entry]) -> Account:
    """Add up the entries of all attempts."""
    spent: dict[int, float] = {}
    lost, last = 0.0, 0.0
    for entry in ledger:
        if entry.kind == "begin":
            lost += max(0.0, last - entry.train_seconds)
        last = entry.train_seconds
        spent[entry.attempt] = entry.attempt_seconds
    return Account(attempt_seconds=sum(spent.values()), lost_seconds=lost)


def reason_to_give_up(ledger: list[Entry]) -> str:
    """Why another attempt is unlikely to reach a checkpoint; empty if it may."""
    last = max((entry.attempt for entry in ledger if entry.kind == "checkpoint"), default=0)
    later = [entry for entry in ledger if entry.attempt > last]
    failed = {entry.attempt for entry in later if entry.kind == "failed"}
    ended = {entry.attempt for entry in later}
    if len(failed) >= FAILED:
        return f"{len(failed)} attempts in a row failed without a checkpoint"
    if len(ended) >= KILLED:
        return f"{len(ended)} attempts in a row ended without a checkpoint"
    return ""
