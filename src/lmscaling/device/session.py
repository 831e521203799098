"""As many pieces as a call has minutes for; the next call goes on behind the last file.

Each piece is a process of its own with a log of its own, so one that crashes costs nothing but
itself. It is tried twice, by calls or in one, and then left out. When time is up the piece that
runs is asked to stop: training saves, a sweep keeps its points, and what keeps nothing begins anew.
"""

import json
import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lmscaling.bench.checks.passed_checks import faults
from lmscaling.device.tasks import PARTS, Piece, checks_of
from lmscaling.errors import TRY_AGAIN
from lmscaling.formatting import aligned
from lmscaling.records import run as records
from lmscaling.runtime import environment

GRACE_SECONDS = 25.0
"""From being asked to stop until being killed: a checkpoint is written in it."""
TRIES = {"failed": 2, "stopped": 6}
"""Attempts of a piece that end so before it is left out."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A line of ``session.jsonl``: one attempt at one piece."""

    record: ClassVar[str] = "attempt"
    part: str
    name: str
    status: str
    """``done``, ``failed``, or ``stopped`` because the call was over."""
    code: int
    """Exit code, or the negative number of a signal."""
    seconds: float
    started: str
    """UTC, ISO 8601."""


@dataclass
class Session:
    """One call.

    Args:
        out: Folder of the records.
        pieces: All that there is, in order.
        here: ``environment.complete`` of the device.
        seconds: How long the call may take.
    """

    out: Path
    pieces: list[Piece]
    here: dict[str, Any]
    seconds: float
    hindered: dict[Path, str] = field(default_factory=dict)
    """By the file that will not be made, why not."""

    def run(self) -> bool:
        """Do what there is time for; whether nothing is left to do."""
        begun = time.monotonic()
        end, idle = begun + self.seconds - GRACE_SECONDS, True
        for piece in self.pieces:
            if piece.done:
                self._tell_wrong(piece)
                continue
            if why := self._hindrance(piece):
                self.hindered[piece.made] = why
                continue
            left = end - time.monotonic()
            # A call that is shorter than a piece gives it all that it has.
            enough = idle or left >= (piece.least or piece.seconds)
            if not enough or left <= 0 or not all(need.is_file() for need in piece.needs):
                continue
            idle = False
            self._try(piece, left)
        return not self.left()

    def left(self) -> list[Piece]:
        """What can still be done."""
        return [p for p in self.pieces if not p.done and not self._hindrance(p)]

    def _hindrance(self, piece: Piece) -> str:
        """Why a piece cannot be done, ever; empty if it can."""
        for need in piece.needs:
            if need in self.hindered and not need.is_file():
                return f"needs {need.name} of what was left out"
        tried = Counter(a["status"] for a in self._attempts() if _is_of(a, piece))
        for status, most in TRIES.items():
            if tried[status] >= most:
                return f"{status} {most} times; see {self._log(piece)}"
        for name in piece.uses:
            if checks_of(self.out, name).is_file() and (fault := self._fault(name)):
                return f"refused: {fault}"
        return ""

    def _fault(self, name: str) -> str:
        return faults(self.out / "checks", name, self.here)

    def _tell_wrong(self, piece: Piece) -> None:
        if piece.part == "checks" and piece.done and (fault := self._fault(piece.name)):
            print(f"gpu: WRONG: {fault}; it is not timed", flush=True)

    def _attempts(self) -> list[dict[str, Any]]:
        path = self.out / "session.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )

    def _log(self, piece: Piece) -> Path:
        return self.out / "logs" / piece.part / f"{piece.name.replace('/', '.')}.log"

    def _try(self, piece: Piece, left: float) -> None:
        """One attempt, of which a line is written."""
        started, begun = environment.now(), time.monotonic()
        making = self.out / "scratch" / "making" / piece.part / piece.made.name
        making.parent.mkdir(parents=True, exist_ok=True)
        code, stopped = self._process(piece, making, left)
        if code == 0 and making.is_file():
            piece.made.parent.mkdir(parents=True, exist_ok=True)
            making.replace(piece.made)
        status = "done" if piece.done else "stopped" if stopped else "failed"
        attempt = Attempt(
            part=piece.part,
            name=piece.name,
            status=status,
            code=code,
            seconds=round(time.monotonic() - begun, 1),
            started=started,
        )
        with (self.out / "session.jsonl").open("ab") as file:
            file.write(records.line(attempt))
        print(f"gpu: {piece.part} {piece.name}: {status}, {attempt.seconds:.0f} s", flush=True)
        if status == "failed":
            print(f"     {_last_line(self._log(piece))}", flush=True)
        self._tell_wrong(piece)

    def _process(self, piece: Piece, making: Path, left: float) -> tuple[int, bool]:
        """Exit code, and whether it was stopped because time was up."""
        log = self._log(piece)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [argument.format(out=making) for argument in piece.command]
        with log.open("a") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                process.communicate(piece.given, timeout=left)
                return process.returncode, process.returncode == TRY_AGAIN
            except subprocess.TimeoutExpired:
                return _stop(process), True
            finally:
                _stop(process)

    def table(self) -> str:
        """What is done, left and left out, part by part, and how many calls are to come."""
        rest, lines = self.left(), [["part", "done", "left", "left out", ""]]
        for part, what in PARTS.items():
            mine = [p for p in self.pieces if p.part == part]
            if mine:
                done, to_do = sum(p.done for p in mine), sum(p.part == part for p in rest)
                lines.append([part, str(done), str(to_do), str(len(mine) - done - to_do), what])
        said = [f"left out: {p.part} {p.name}: {self.hindered[p.made]}" for p in self._out()]
        calls = math.ceil(sum(p.seconds for p in rest) / max(1.0, self.seconds - GRACE_SECONDS))
        end = f"about {calls} more calls" if rest else "complete"
        return "\n".join([*aligned(lines, left={0, 4}), *said, f"gpu: {end}; records: {self.out}"])

    def _out(self) -> Iterable[Piece]:
        return (p for p in self.pieces if not p.done and p.made in self.hindered)


def _is_of(attempt: dict[str, Any], piece: Piece) -> bool:
    return (attempt["part"], attempt["name"]) == (piece.part, piece.name)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def _stop(process: subprocess.Popen) -> int:
    """Ask a process to stop, then make it; its exit code."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
