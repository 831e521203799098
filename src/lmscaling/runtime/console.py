"""What the terminal shows of a workflow: few lines, whatever the number of jobs.

Snakemake prints ten lines or more whenever a job starts, is submitted, ends or fails, and the whole
log of every failed try. This filter of its handler for the terminal prints one line for each of the
first jobs, then a count now and then, and one line for each new reason of failure. On a terminal
that can move its cursor, a few lines that change in place stand for the lines of jobs.
``.snakemake/log/`` has Snakemake's own text; ``--verbose`` and ``--printshellcmds`` show it.

Snakemake's records carry an ``event`` (``snakemake_interface_logger_plugins.common.LogEvent``, of
which this module uses the names only) and the values of that event as attributes.
"""

import atexit
import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmscaling.formatting import duration, printable, some
from lmscaling.runtime import job_logs
from lmscaling.runtime.job_logs import Failure

FIRST = 10
"""So many jobs, messages and reasons have a line of their own."""

SHARES = 20
"""Number of counts afterwards, at equal shares of all jobs."""

ALIKE = 3
"""So many messages of Snakemake and its plugins that differ in numbers only are shown."""

CHATTER = (
    "Select jobs to execute", "Job rate limit reached", "Using shell:", "Trying to restart job",
    "Exiting because a job execution failed", "Removing output files of failed job",
    "Removing temporary output", "Touching output file", "Elapsed time:", "SLURM run ID:",
    "Cleaning up SLURM log files", "Building DAG of jobs", "Conda environments: ignored",
    "Singularity containers: ignored",
    "No SLURM account given", "No account was given", "Group jobs: inactive",
)  # fmt: skip
"""Beginnings of messages that say nothing which the lines of this module do not say."""

SUBMITTED = re.compile(
    r"Job (\d+) has been submitted with SLURM jobid (\S+) \(log: (.*)\)\.$"
    r"|Submitted job (\d+) with external jobid '?(.+?)'?\.$"
)
"""The Slurm plugin says the first (2.8.0, ``run_job``), Snakemake's other executors the second."""

REJECTED = re.compile(r"The error message was '(.*?)'\.\n", re.DOTALL)
"""What the Slurm plugin says of an ``sbatch`` that failed (2.8.0, ``run_job``)."""

UNSUBMITTED = ("Slurm ", "Job submission failed")
"""Beginnings of messages about a job that was never submitted: ours, the plugin's."""

STATE = re.compile(r"SLURM status is:\s*'(\w+)'")
"""What it says of a job that failed (2.8.0, ``check_active_jobs``)."""

SIGNAL = re.compile(r"died with <Signals\.(\w+)")
"""What Python says of a process that a signal ended (``subprocess.CalledProcessError``)."""

MOST_RUNNING, MOST_ENDED = 8, 4
"""Cells that are shown in place: under way, and the last that have ended."""

LOOK_SECONDS = (1.0, 20.0)
"""Shortest and longest time between two looks at the cells."""

LOOK_SHARE = 0.05
"""Share of the time that looking may take, for there may be a thousand cells."""

OF_TRAINING = ("train", "branch")
"""Rules whose jobs are named by their cell alone, as everywhere else."""


@dataclass(frozen=True)
class Job:
    """A job that Snakemake has announced."""

    rule: str
    name: str
    logs: tuple[str, ...]


@dataclass(frozen=True)
class Cells:
    """How far the training of a study has come."""

    done: int
    total: int
    share: float
    """Share of the budgets that is spent, 0 to 1."""
    running: list[tuple[str, ...]]
    """Cells under way: name, updates, share of the budget, training and validation loss."""
    ended: list[tuple[str, ...]]
    """Cells that have ended since the beginning, the last one last: the same, with the status in
    place of the share."""


class Live:
    """Lines at the bottom of a terminal that change in place.

    Args:
        stream: The terminal.
        look: Returns how far the cells have come.
    """

    def __init__(self, stream: Any, look: Callable[[], Cells]) -> None:
        from rich import console, live

        self._look, self.jobs, self.total, self.failed = look, 0, 1, 0
        self.others: list[str] = []
        """Jobs under way that train no cell."""
        self._first: tuple[float, float] | None = None
        self._console = console.Console(file=stream)
        self._live = live.Live(console=self._console, auto_refresh=False, transient=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def start(self) -> None:
        """Show the lines until ``stop``."""
        self._live.start()
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Remove the lines; what was printed above them stays."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join(LOOK_SECONDS[0])
            self._live.stop()

    def print(self, text: str) -> None:
        """Print above the lines."""
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _go_on(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                cells = self._look()
            except Exception:  # a file that is being replaced; the next look sees it
                cells = None
            seconds = (time.monotonic() - began) / LOOK_SHARE
            if cells and not self._over.is_set():
                self._live.update(self._lines(cells), refresh=True)
            shortest, longest = LOOK_SECONDS
            self._over.wait(min(longest, max(shortest, seconds)))

    def _lines(self, cells: Cells) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bars = Table.grid(padding=(0, 2))
        failed = f"[red]{self.failed:,} failed[/]" if self.failed else ""
        left = self._seconds_left(cells)
        for what, done, share, total, note in (
            ("cells", cells.done, cells.share * cells.total, cells.total, left),
            ("jobs", self.jobs, self.jobs, self.total, failed),
        ):
            bar = ProgressBar(max(1, total), share, width=40, complete_style="cyan")
            bars.add_row(what, bar, f"{done:,} of {total:,}", note)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for i, head in enumerate(("", "updates", "", "train loss", "val loss")):
            table.add_column(head, justify="right" if i else "left")
        ended = cells.ended[-MOST_ENDED:]
        for row in ended:
            table.add_row(*row, style="dim")
        for row in cells.running[:MOST_RUNNING]:
            table.add_row(*row)
        more = len(cells.running) - MOST_RUNNING
        parts = [bars, *([table] if ended or cells.running else [])]
        parts += [Text(f"and {more:,} more cells")] if more > 0 else []
        parts += [Text(f"also {some(self.others)}", style="dim")] if self.others else []
        return Group(*parts)

    def _seconds_left(self, cells: Cells) -> str:
        """How long the cells still take at the pace since the first of them was under way."""
        now = time.monotonic()
        if self._first is None and cells.running:
            self._first = now, cells.share
        began, before = self._first or (now, cells.share)
        if not before < cells.share < 1:
            return ""
        left = (now - began) * (1 - cells.share) / (cells.share - before)
        return f"about {duration(left)} left"


class Console(logging.Filter):
    """Condenses what Snakemake's handler for the terminal prints, and collects failures.

    Args:
        terminal: The handler.
        condense: Whether to condense; otherwise Snakemake's text is printed as it is.
        plan: Called in a dry run; returns the text that replaces Snakemake's.
        look: Returns how far the cells have come, for lines that change in place.
    """

    def __init__(
        self,
        terminal: "logging.StreamHandler[Any]",
        condense: bool,
        plan: Callable[[], str] | None = None,
        look: Callable[[], Cells] | None = None,
    ) -> None:
        super().__init__()
        self.failures: dict[int, Failure] = {}
        """The jobs that have failed and not succeeded since, by Snakemake's number."""
        self._terminal, self._condense, self._plan = terminal, condense, plan
        self._look = look
        self._live: Live | None = None
        self._lock = threading.RLock()  # jobs end in threads of their own
        self._jobs: dict[int, Job] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._last = 0
        self._total = 1
        self._alike: Counter[Any] = Counter()
        self._cause: dict[int, str] = {}
        self._group_logs: list[str] = []
        self._digests: dict[str | None, Callable[[Any], bool]] = {
            "workflow_started": _nothing, "resources_info": _nothing, "job_started": _nothing,
            "group_info": _nothing, "shellcmd": lambda record: True, "run_info": self._counts,
            "job_info": self._job, "job_error": self._error, "group_error": self._group_error,
            "job_finished": self._finished, "progress": self._progress, "error": self._exception,
            None: self._message,
        }  # fmt: skip

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake's own text is printed."""
        digest = self._digests.get(getattr(record, "event", None))
        try:
            with self._lock:
                shown = digest is None or digest(record)
        except (AttributeError, KeyError, TypeError, OSError):
            # Another version of Snakemake has other records, or a log cannot be read.
            shown = True
        if shown and self._live:
            others = [each for each in self._terminal.filters if each is not self]
            if all(each.filter(record) for each in others):  # pyright: ignore
                self._say(self._terminal.format(record))
            return False
        return shown or not self._condense

    def _say(self, text: str) -> None:
        if self._condense:
            stream = self._terminal.stream
            encoding = getattr(stream, "encoding", None) or "utf-8"
            shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
            if self._live:
                self._live.print(shown)
            else:
                stream.write(f"{shown}\n")
                stream.flush()

    def _say_step(self, text: str) -> None:
        """Say that a job has begun or ended, unless the lines in place show it."""
        if not self._live:
            self._say(text)

    def _due(self, n: int) -> bool:
        return n <= FIRST or n * SHARES // self._total > (n - 1) * SHARES // self._total

    def _counts(self, record: Any) -> bool:
        if self._plan:
            self._say(self._plan())
            return False
        jobs = {rule: n for rule, n in record.stats.items() if rule not in ("total", "all")}
        self._total = max(1, record.stats.get("total", 1))
        counts = ", ".join(f"{n:,} {rule}" for rule, n in jobs.items())
        self._say(f"{self._total:,} jobs: {counts}")
        if self._condense and self._look and moves_cursor(self._terminal.stream):
            self._live = Live(self._terminal.stream, self._look)
            self._live.total = self._total
            self._live.start()
        return False

    def _job(self, record: Any) -> bool:
        name = " ".join(record.wildcards.values())
        if record.rule_name in OF_TRAINING:
            name = name.rpartition("-")[0]  # without the hash
        else:
            name = f"{record.rule_name} {name}".strip()
        self._jobs[record.jobid] = Job(record.rule_name, name, tuple(record.log))
        if record.local:
            self._begin(record.jobid, "begins")
        return False

    def _begin(self, number: int, how: str) -> None:
        if number in self._begun or number not in self._jobs:
            return
        self._begun.add(number)
        self._tell_others()
        n = len(self._begun)
        if self._due(n):
            job = self._jobs[number]
            count = "" if n <= FIRST else f"; {n:,} of {self._total:,} jobs have begun"
            rule = f"{job.rule} " if job.rule in OF_TRAINING else ""
            self._say_step(f"{rule}{job.name} {how}{count}")

    def _finished(self, record: Any) -> bool:
        self.failures.pop(record.job_id, None)
        self._last = record.job_id
        self._ended.add(record.job_id)
        self._tell_others()
        return False

    def _tell_others(self) -> None:
        if self._live:
            under_way = [
                self._jobs[n] for n in sorted(self._begun - self._ended) if n in self._jobs
            ]
            self._live.others = [job.name for job in under_way if job.rule not in OF_TRAINING]

    def _progress(self, record: Any) -> bool:
        self._total = record.total
        if self._live:
            self._live.jobs, self._live.total = record.done, record.total
            self._live.failed = len(self.failures)
            if record.done == record.total:
                self._live.stop()
                self._live = None
        if self._due(record.done) or record.done == record.total:
            job = self._jobs.get(self._last)
            said = job_logs.last_line(Path(job.logs[0])) if job and job.logs else ""
            failed = f", {len(self.failures):,} failed" if self.failures else ""
            self._say_step(
                f"{record.done:,} of {record.total:,} done{failed}: "
                f"{said or (job.name if job else '')}"
            )
        return False

    def _message(self, record: Any) -> bool:
        text = str(record.msg or "")
        if match := SUBMITTED.match(text):
            number, job, log, other, external = match.groups()
            how = f"is submitted as job {job or external}" + (f" (log: {log})" if log else "")
            self._begin(int(number or other), how)
            return False
        if text.startswith(CHATTER):
            return False
        kind = re.sub(r"[0-9a-f]{8}[0-9a-f-]*|\d+", "#", text[:60])  # numbers, groups of jobs
        self._alike.update({text, kind})
        return self._alike[text] == 1 and self._alike[kind] <= ALIKE

    def _exception(self, record: Any) -> bool:
        text = str(record.msg)
        if record.exception == "RuleException" and "CalledProcessError" in text:
            self._cause[threading.get_ident()] = text  # the record of the job follows
            return False
        if match := re.search(r"Job (\d+)\s+completed successfully, but some output", text):
            self._failed(int(match[1]), "it ended without an error, but its output is missing")
            return False
        return not ("At least one job did not complete" in text and self.failures)

    def _group_error(self, record: Any) -> bool:
        self._group_logs = list(record.aux_logs)  # the records of its jobs follow
        return False

    def _error(self, record: Any) -> bool:
        cause = self._cause.pop(threading.get_ident(), "")
        logs = [*record.log, *(self._group_logs if record.indent else [])]
        reason, log = _reason(str(record.rule_msg or ""), cause, [log for log in logs if log])
        self._jobs.setdefault(record.jobid, Job(record.rule_name, record.rule_name, ()))
        self._failed(record.jobid, reason, log)
        return False

    def _failed(self, number: int, reason: str, log: str = "") -> None:
        """Note a failed try; say a new reason at once, and an old one at a few counts."""
        job = self._jobs[number]
        failure = Failure(job.name, "failed", reason, log)
        self.failures[number] = failure
        new = failure.key not in self._alike
        self._alike[failure.key] += 1
        n = self._alike[failure.key]
        if new:
            self._alike["reasons"] += 1
            if self._alike["reasons"] <= FIRST:
                kind = "has stopped" if reason.startswith("stopped") else "has failed"
                self._say("\n".join(job_logs.grouped([replace(failure, kind=kind)])))
        elif str(n).strip("0") == "1":
            self._say(f"{n:,} tries have ended for the same reason: {reason}")


def _nothing(record: Any) -> bool:
    return False


def _reason(said: str, cause: str, logs: list[str]) -> tuple[str, str]:
    """Why a job failed, and the log that says more.

    Args:
        said: Message of the executor.
        cause: Message of the exception that ended a local job.
        logs: Paths of its logs; that of the rule comes before that of the executor.
    """
    if match := REJECTED.search(f"{said}\n"):
        return f"Slurm refuses the job: {_line(match[1])}", ""
    if said.startswith(UNSUBMITTED):
        return _line(said), ""
    state = match[1] if (match := STATE.search(said)) else ""
    found = [(job_logs.last_error(Path(log)), log) for log in logs]
    reason, log = next((pair for pair in found if pair[0]), ("", logs[0] if logs else ""))
    reason = reason or (job_logs.last_line(Path(logs[0])) if logs else "")
    if logs[1:]:  # the Snakemake inside the job writes to the last
        cause += "\n".join(job_logs.lines_of(Path(logs[-1])))
    if state not in ("", "FAILED"):
        how, log = f"Slurm ended the job as {state}", logs[-1] if logs else ""
    else:
        how = f"killed by {match[1]}" if (match := SIGNAL.search(cause)) else ""
    return "; ".join(filter(None, [how, reason])) or _line(said) or "it has written no reason", log


def _line(text: str) -> str:
    """A message of several lines as one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines)[: job_logs.REASON_CHARACTERS]


def moves_cursor(stream: Any) -> bool:
    """Whether a stream is a terminal that shows colours and can go back to an earlier line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def painted(text: str, colours: Mapping[str, int]) -> str:
    """A table with its states in colour, if standard output shows colours and they are wanted.

    Args:
        text: The table; a state is the first or the second word of a line.
        colours: State and its colour, a number of ECMA-48's "select graphic rendition".
    """
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("NO_COLOUR")
    if unwanted or not moves_cursor(sys.stdout):
        return text
    pattern = rf"^(\S+ +)?({'|'.join(map(re.escape, colours))})\b"
    return re.sub(
        pattern,
        lambda match: f"{match[1] or ''}\x1b[{colours[match[2]]}m{match[2]}\x1b[0m",
        text,
        flags=re.MULTILINE,
    )


def install(
    settings: Any, outside: bool, plan: Callable[[], str], look: Callable[[], Cells]
) -> Console:
    """A console at Snakemake's handler for the terminal, before the filter of Snakemake.

    Args:
        settings: Snakemake's ``OutputSettings``.
        outside: Whether this Snakemake runs outside a job.
        plan: Returns the text of a dry run.
        look: Returns how far the cells have come.
    """
    handlers = logging.getLogger("snakemake.logging").handlers
    streams = [h for h in handlers if isinstance(h, logging.StreamHandler)]
    named = [h for h in streams if h.name == "DefaultStreamHandler"]  # logging.py, 9.20 to 9.27
    quiet = settings.quiet and not settings.dryrun
    asked = settings.verbose or settings.printshellcmds or settings.debug_dag or quiet
    terminal = named[0] if named else logging.StreamHandler()  # a plugin writes to the terminal
    condense = bool(named) and outside and not asked
    console = Console(terminal, condense, plan if condense and settings.dryrun else None, look)
    terminal.filters.insert(0, console)
    return console
