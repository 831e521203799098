"""Why jobs failed, read from the ends of their logs, and equal reasons said once.

A verb ends its log with ``error: ...``, Python with ``KeyError: ...``, Slurm with
``slurmstepd: error: ...``. Jobs that fail for one cause differ in names and numbers only, so such
reasons count as equal.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lmscaling.formatting import printable

TAIL_BYTES = 65536
"""How much of the end of a log is read: some hundred lines."""

REASON_CHARACTERS = 300
"""Longest reason that is printed; the log has all of it."""

ERROR = re.compile(r"\S.*error:\s*\S|error:\s*\S|[\w.]+Error$", re.IGNORECASE)
"""A line that reports an error and says which, or Python's error without words; tracebacks are
indented."""

EMPTY_WORDS = "Exited with exit code"
"""What ``srun`` adds to the log of every job that fails."""

NAMED = 3
"""Jobs of a group that are named; the others are counted."""


@dataclass(frozen=True)
class Failure:
    """A job, or a run, that has failed."""

    name: str
    """Of the run, or rule and wildcards."""
    kind: str
    """``failed``, or how a run has ended."""
    reason: str
    log: str = ""
    """Path of the complete log; empty if there is none."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for failures that differ in names and numbers only."""
        words = sorted(self.name.split(), key=len, reverse=True)
        reason = self.reason
        for word in words:
            reason = re.sub(rf"\b{re.escape(word)}(-[0-9a-f]{{8}})?\b", "*", reason)
        return self.kind, re.sub(r"\d+", "#", reason)


def tail(path: Path) -> list[bytes]:
    """The last lines of a file; the first may be incomplete."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        return file.read().split(b"\n")


def last_error(path: Path) -> str:
    """The last line that reports an error of ours, of Python or of Slurm; empty without one."""
    lines = [line for line in lines_of(path) if ERROR.match(line)]
    telling = [line for line in lines if EMPTY_WORDS not in line]
    return telling[-1].strip()[:REASON_CHARACTERS] if telling else ""


def lines_of(path: Path) -> list[str]:
    """The last lines of a log as text; none if there is no such file."""
    try:
        return [printable(line.decode(errors="replace")) for line in tail(path)]
    except OSError:
        return []  # no such file, or one that is being deleted


def grouped(failures: Iterable[Failure]) -> list[str]:
    """A block of lines for each reason: who failed, why, and where the log is."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault(failure.key, []).append(failure)
    lines = []
    for (kind, _), group in groups.items():
        first, others = group[0], [failure.name for failure in group[1:]]
        more = f" and {len(others)} more" if others else ""
        log = f" ({first.log})" if first.log else ""
        lines.append(f"{first.name}{more}  {kind}  {first.reason}{log}")
        if others:
            rest = ", ..." if len(others) > NAMED else ""
            lines.append(f"    also {', '.join(others[:NAMED])}{rest}")
    return [printable(line) for line in lines]
