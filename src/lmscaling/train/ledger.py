"""The ledger: what a run has spent, whatever became of its attempts.

A checkpoint cannot know what was lost after it was written, so time is kept beside it: one line of
JSON, appended and fsynced, when an attempt begins, every few seconds, at every checkpoint and at
the end. A cut last line costs a few seconds of the account, never the account.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

BEAT_SECONDS = 10.0
"""Seconds between two entries of a running attempt: the most that a kill can hide."""

FAILED = 2
"""Attempts in a row that failed by themselves, none with a checkpoint, after which a run counts as
crashed: they would fail for ever."""

KILLED = 5
"""The same if some were killed: a queue that preempts kills healthy runs too, but seldom so often
before the first checkpoint, and a run that makes its node kill it must come to an end."""

Kind = Literal["begin", "beat", "checkpoint", "branch", "failed"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    kind: Kind
    attempt: int
    update: int
    train_seconds: float
    """Productive time of the trajectory that this attempt is on."""
    attempt_seconds: float
    """Wall clock since the attempt began its first update, all work included."""
    end: int | None = None
    """Of a ``branch`` entry: the branch's last update, fixed once."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What all attempts of a run have spent."""

    attempt_seconds: float
    """Wall clock of all attempts."""
    lost_seconds: float
    """Productive time that was trained again, because its attempt ended after a checkpoint."""


class Ledger:
    """The ledger of a run, opened to append; ``attempt`` is the number of the new attempt."""

    def __init__(self, scratch: Path, attempt: int) -> None:
        self.path = scratch / "ledger.jsonl"
        self.attempt = attempt
        self._began = self._beat = time.monotonic()
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("ab", buffering=0)
        if torn:
            self._file.write(b"\n")

    def write(
        self,
        kind: Kind,
        update: int,
        train: float,
        end: int | None = None,
    ) -> None:
        """Append an entry; it is on the disk when this returns."""
        self._beat = time.monotonic()
        entry = Entry(
            kind=kind,
            attempt=self.attempt,
            update=update,
            train_seconds=train,
            attempt_seconds=self._beat - self._began,
            end=end,
        )
        self._file.write((json.dumps(asdict(entry)) + "\n").encode())
        os.fsync(self._file.fileno())

    def beat(self, update: int, train: float) -> None:
        """Append an entry if the last one is old."""
        if time.monotonic() - self._beat >= BEAT_SECONDS:
            self.write("beat", update, train)

    def branch_end(self) -> int | None:
        """The last update of a branch, if an attempt has fixed it."""
        fixed = (entry.end for entry in entries(self.path) if entry.kind == "branch")
        return next(fixed, None)

    def account(self) -> Account:
        """What has been spent up to the last entry."""
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
    """The whole lines of a ledger, in order."""
    found: list[Entry] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        values = _parsed(line)
        if values is not None:
            found.append(Entry(**values))
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def account(written: list[Entry]) -> Account:
    """Add up the entries of all attempts."""
    spent: dict[int, float] = {}
    lost, last = 0.0, 0.0
    for entry in written:
        if entry.kind == "begin":
            lost += max(0.0, last - entry.train_seconds)
        last = entry.train_seconds
        spent[entry.attempt] = entry.attempt_seconds
    return Account(attempt_seconds=sum(spent.values()), lost_seconds=lost)


def hopeless(written: list[Entry]) -> str:
    """Why a run will come to no checkpoint any more; empty if it may."""
    fruitful = {entry.attempt for entry in written if entry.kind == "checkpoint"}
    last = max(fruitful, default=0)
    fruitless = {entry.attempt for entry in written if entry.attempt > last}
    failed = {e.attempt for e in written if e.attempt > last and e.kind == "failed"}
    if len(failed) >= FAILED:
        return f"{len(failed)} attempts failed one after another, none with a checkpoint"
    if len(fruitless) >= KILLED:
        return f"{len(fruitless)} attempts ended one after another, none with a checkpoint"
    return ""
