"""The lines of a ledger: what all attempts of a run have spent, and how those that failed ended.

Training writes a ledger; the workflow and the table of progress read it, too. A checkpoint cannot
record the time that is lost after it was written, so the ledger does. Each line has a CRC-32 of the
rest of it, because a damaged number would change an account in silence.
"""

import json
import os
import sys
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

NAME = "ledger.jsonl"
"""Name of the file in the scratch folder of a run."""

FAILED = 2
"""After so many attempts in a row that failed by themselves and without a checkpoint, a run is
held: later attempts would fail, too."""

KILLED = 5
"""The same if some attempts were killed. A queue with preemption kills healthy runs, too, but
seldom as often before the first checkpoint; a run that exhausts its node's memory must end."""

RECENT_BYTES = 65536
"""The last 300 lines, ten attempts of five minutes each. A run is held by its attempts since the
last checkpoint, so these are enough, however long it has been."""

MACHINE = ("device", "network", "disk")
"""Faults of the machine; they never count as failures of the run."""

Kind = Literal["begin", "beat", "checkpoint", "branch", "failed", "freed", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    kind: Kind
    """``failed``: the attempt ended with an error. ``freed``: a user lets a held run go on.
    ``diverged``: the loss was no number, and is to be computed again."""
    attempt: int
    update: int
    train_seconds: float
    """Productive time from the run's first update to this one, lost updates not counted."""
    attempt_seconds: float
    """Wall clock since the attempt began its first update, including validation and checkpoints."""
    end: int | None = None
    """In a ``branch`` entry: the branch's last update."""
    fault: str = ""
    """In a ``failed`` entry: one of ``MACHINE``, ``memory`` (a device ran out of it), ``rank`` (a
    process of the run was killed or hung), or empty if the program may be at fault."""
    reason: str = ""
    """In a ``failed`` entry: one sentence."""
    host: str = ""
    """In a ``failed`` entry: the node."""

    @property
    def place(self) -> str:
        """Reason and node of a ``failed`` entry."""
        return f"{self.reason or 'unknown reason'}, on {self.host or 'an unknown node'}"


@dataclass(frozen=True, kw_only=True)
class Account:
    """What all attempts of a run have spent."""

    attempt_seconds: float
    """Wall clock of all attempts."""
    lost_seconds: float
    """Productive time that was repeated, because an attempt ended after its last checkpoint."""


@dataclass(frozen=True)
class Hold:
    """Why a run is held."""

    reason: str
    needs_release: bool
    """Whether the run goes on only after ``reset --go-on``; otherwise the next job continues it."""


def line(entry: Entry) -> bytes:
    """An entry as one line of JSON with its CRC-32, in hexadecimal."""
    text = json.dumps(asdict(entry))
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def append(path: Path, entry: Entry) -> None:
    """Add an entry and wait until it is on the disk; several threads may. A line that was cut by a
    kill stays by itself."""
    with path.open("a+b", buffering=0) as file:
        data = line(entry)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        os.fsync(file.fileno())


def free(scratch: Path) -> None:
    """Let a held run go on: its earlier failures no longer count."""
    last = max((entry.attempt for entry in entries(scratch / NAME)), default=0)
    freed = Entry(kind="freed", attempt=last, update=0, train_seconds=0.0, attempt_seconds=0.0)
    append(scratch / NAME, freed)


def entries(path: Path, last_bytes: int | None = None) -> list[Entry]:
    """The complete lines of a ledger, or of its last bytes, in order.

    A line that was cut by a kill is left out. Standard error names one that is damaged in a ledger
    that is read from its start.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - last_bytes) if last_bytes else 0)
        lines = file.read().split(b"\n")
    found = []
    for number, text in enumerate(lines, start=1):
        try:
            found.append(_parsed(text))
        except ValueError as error:
            if not last_bytes and text and number < len(lines) and text.endswith(b"}"):
                print(f"{path} line {number} is not used: {error}", file=sys.stderr, flush=True)
    return found


def latest(path: Path) -> list[Entry]:
    """The same, read again only when the file has changed; empty if there is none."""
    try:
        return _unchanged(path, path.stat().st_mtime_ns)
    except OSError:
        return []


@lru_cache(maxsize=1024)
def _unchanged(path: Path, changed: int) -> list[Entry]:
    return entries(path)


def reached(ledger: list[Entry]) -> float:
    """Productive seconds at the last checkpoint, where the next attempt begins."""
    return max((e.train_seconds for e in ledger if e.kind == "checkpoint"), default=0.0)


def _parsed(text: bytes) -> Entry:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it is no entry")
    expected = values.pop("crc32", None)
    if f"{zlib.crc32(json.dumps(values).encode()):08x}" != expected:
        raise ValueError("it is damaged: its CRC-32 differs")
    try:
        return Entry(**values)
    except TypeError:
        raise ValueError("it is damaged, or of another version") from None


def account(ledger: list[Entry]) -> Account:
    """Add up the entries of all attempts."""
    spent: dict[int, float] = {}
    lost, reached = 0.0, 0.0
    for entry in ledger:
        if entry.kind == "begin":
            lost += max(0.0, reached - entry.train_seconds)
            reached = entry.train_seconds
        # The entry of a checkpoint is written when its file is on the disk, after later updates.
        reached = max(reached, entry.train_seconds)
        spent[entry.attempt] = max(spent.get(entry.attempt, 0.0), entry.attempt_seconds)
    return Account(attempt_seconds=sum(spent.values()), lost_seconds=lost)


def hold(ledger: list[Entry]) -> Hold | None:
    """Why a run waits, judged by its attempts since the last checkpoint; None if it does not."""
    last = max((e.attempt for e in ledger if e.kind in ("checkpoint", "freed")), default=0)
    recent = [entry for entry in ledger if entry.attempt > last]
    failures = {entry.attempt: entry for entry in recent if entry.kind == "failed"}
    own = [entry for entry in failures.values() if entry.fault in ("", "memory")]
    attempts = {entry.attempt for entry in recent}
    by_machine = {n for n, entry in failures.items() if entry.fault in MACHINE}
    if len(own) >= FAILED:
        n = len(own)
        return Hold(f"{n} attempts in a row failed without a checkpoint: {own[-1].place}", True)
    if (n := len(attempts - by_machine)) >= KILLED:
        return Hold(f"{n} attempts in a row ended without a checkpoint", True)
    if ledger and ledger[-1].kind == "failed":
        return Hold(ledger[-1].place, False)
    return None


def is_too_large(ledger: list[Entry]) -> bool:
    """Whether a model does not fit: memory was exhausted in two attempts, before any update.

    The devices were empty when these began, or the fault would be one of the device.
    """
    n = sum(entry.kind == "failed" and entry.fault == "memory" for entry in ledger)
    return n >= FAILED and not any(entry.update for entry in ledger)
