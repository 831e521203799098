"""What the terminal shows: few lines, each reason of failure once, what failed at the end."""

import io
import logging
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import STUDY, sentence
from product import Place, without_verbs
from test_store import end, header, log, record, update

from lmscaling.config import grid, study_file
from lmscaling.formatting import printable
from lmscaling.records import ledger
from lmscaling.runtime import console
from lmscaling.runtime.console import Console
from lmscaling.workflow import requested

RUN = "softmax-s-ctx16-s{}-0123abcd"
STATUS = "SLURM-job '{}' failed, SLURM status is: '{}'. Detailed failure reason unavailable"


class Screen:
    """A console and what it and Snakemake's handler would show."""

    def __init__(self, stream=None, condense=True, look=None):
        self.stream: Any = stream or io.StringIO()
        self.console = Console(logging.StreamHandler(self.stream), condense, look=look)
        self.begins = lambda **stats: self.hears("jobs", "run_info", stats=stats)

    def hears(self, message="", event=None, **values):
        values |= {"msg": message} | ({"event": event} if event else {})
        if self.console.filter(logging.makeLogRecord(values)):
            self.stream.write(f"{message}\n")

    def submits(self, number, run, logs=(), rule="train", local=False):
        names = {"run": run} if run else {}
        values = {"jobid": number, "rule_name": rule, "wildcards": names, "local": local}
        self.hears(event="job_info", log=list(logs), **values)
        if not local:
            self.hears(f"Job {number} has been submitted with SLURM jobid {number + 40} (log: x).")

    def fails(self, number, said=None, logs=(), rule="train", indent=False):
        values = {"jobid": number, "rule_name": rule, "rule_msg": said, "indent": indent}
        self.hears(event="job_error", log=list(logs), **values)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty one, and a terminal that is soon looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(console, "LOOK_SECONDS", (0.05, 0.1))


def logs(name, rule=None, slurm=None):
    """Logs of a job, by the kinds that it has."""
    found = {f"{name}.{k}.log": text for k, text in (("rule", rule), ("slurm", slurm)) if text}
    for path, text in found.items():
        Path(path).write_text(text)
    return list(found)


REJECTED = (
    "SLURM sbatch failed. The error message was 'sbatch: error: no partition nowhere\n"
    "sbatch: error: Batch job submission failed'.\n    sbatch call:\n        sbatch --parsable"
)
OLD = "error: of the try before\n"
WITHIN = "error: first\nTraceback:\n  error: within\nKeyError: 'x'\nlater\n"
FAILURES = [
    # What the executor says, the log of the rule and that of Slurm.
    (STATUS.format(5, "FAILED"), WITHIN, "error: of Slurm"),  # the last error of the rule
    (None, "update 8\nstopped after update 8\n\n", None),
    *(
        (STATUS.format(5, state), f"update {n}\n", f"slurmstepd: error: oom_kill {n}\n")
        for n, state in enumerate(["TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL"])
    ),
    (REJECTED, OLD, None),
    ("Slurm will not accept it: no account.", OLD, None),
    (None, "error: \x1b[31mred\x1b[0m \x1b]0;title\x07bell\x9b2J\n", None),
]


def test_the_lines_of_a_session(golden):
    """One with every kind of line; a reason is said once, and what is not known is shown."""
    screen = Screen()
    screen.begins(train=12, report=1, total=14, all=1)
    screen.hears("Provided cores: 2", "resources_info", cores=2)
    screen.hears("Select jobs to execute...")
    screen.hears("Removing temporary output results/tiny/sources/x.gz.")
    for number, (said, rule, slurm) in enumerate(FAILURES):
        found = logs(f"{number}", rule, slurm)
        screen.submits(number, RUN.format(number), found[:1])
        screen.fails(number, said, found)
    first, screen = screen, Screen()  # so many reasons have lines in one session
    screen.begins(total=14)
    for number in (20, 21):  # for one reason
        found = logs("again", "error: disk full\n")
        screen.submits(number, RUN.format(number), found, local=True)
        screen.fails(number, None, found)
    screen.submits(30, RUN.format(30), local=True)
    killed = "CalledProcessError in file x:\nCommand 'y' died with <Signals.SIGKILL: 9>."
    screen.hears(f"RuleException:\n{killed}", "error", exception="RuleException")
    screen.fails(30)
    screen.submits(31, "", rule="report")
    missing = "MissingOutputException:\nJob 31  completed successfully, but some output"
    screen.hears(missing, "error", exception="MissingOutputException")
    group = logs("group", slurm="slurmstepd: error: no space\n")
    for number in (32, 33):
        screen.submits(number, f"lines/train-0000{number}", rule="tokenize", local=True)
    screen.hears("", "group_error", aux_logs=group)
    for number in (32, 33):
        screen.fails(number, rule="tokenize", indent=True)
    screen.hears("a job of another version", "job_info", number=1)
    screen.hears("an event of another version", "job_paused")
    for i in range(100):
        screen.hears(f"Something new about job {i}")
        screen.hears("The same again")
    assert list(screen.console.failures) == [20, 21, 30, 31, 32, 33]
    screen.hears(event="job_finished", job_id=30)  # at last
    screen.hears(event="progress", done=14, total=14)
    assert list(screen.console.failures) == [20, 21, 31, 32, 33]
    shown = first.stream.getvalue() + screen.stream.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    golden("console.txt", shown)


@pytest.mark.parametrize("on_slurm", [False, True])
def test_seventy_two_cells_that_fail_four_times_print_fewer_than_sixty_lines(on_slurm):
    screen = Screen()
    screen.begins(train=72, total=72)
    for attempt in range(4):
        for i in range(72):
            found = logs(f"{i}", f"update 7\nerror: run {RUN.format(i)} is held at update {i}\n")
            screen.submits(i, RUN.format(i), found, local=not on_slurm)
            said = STATUS.format(4 * i + attempt, "FAILED") if on_slurm else None
            screen.fails(i, said, found)
            screen.hears(f"Trying to restart job {i}.")
    shown = screen.stream.getvalue()
    assert shown.count("\n") < 60
    assert shown.count("is held at") <= 5
    assert len(screen.console.failures) == 72


def test_a_terminal_of_few_characters_shows_the_reason():
    bytes_ = io.BytesIO()
    screen = Screen(io.TextIOWrapper(bytes_, encoding="ascii"))
    screen.submits(1, RUN.format(0))
    screen.fails(1, None, logs("1", "error: größer\n"))
    assert b"gr\\xf6\\xdfer" in bytes_.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def shows(self, text):
        """Whether a text appears at last, whatever the colours."""
        end = time.monotonic() + 60
        while text not in (found := printable(self.getvalue())) and time.monotonic() < end:
            time.sleep(0.02)
        return text in found


@pytest.fixture
def terminal():
    """A terminal of a workflow of eight cells, two of them done, and its console."""
    running, ended = [("a-s3", "7", "12.5%", "2.5000", "")], [("a-s2", "8", "done", "", "2.2500")]
    cells = console.Cells(2, 8, 0.25, running, ended)
    screen = Screen(Terminal(), look=lambda: cells)
    screen.begins(train=8, total=9)
    yield screen
    screen.hears(event="progress", done=9, total=9)  # ends the lines in place


@pytest.mark.race
def test_a_terminal_shows_cells_and_jobs_in_place_and_failures_above(terminal):
    stream = terminal.stream
    for text in ("a-s3        7  12.5%", "a-s2        8   done", "2 of 8"):
        assert stream.shows(text)
    terminal.submits(1, "", rule="report", local=True)
    terminal.submits(2, RUN.format(0), local=True)
    terminal.hears(event="progress", done=3, total=9)
    assert stream.shows("3 of 9")
    assert stream.shows("also report")
    terminal.fails(2, None, logs("2", "error: [disk] full\n"))
    terminal.hears("Something [new]")
    terminal.hears(event="progress", done=4, total=9)
    for text in ("error: [disk] full", "Something [new]\n", "1 failed"):
        assert stream.shows(text)
    assert not re.search("begins|of 9 done", stream.getvalue())
    terminal.hears(event="progress", done=9, total=9)
    assert stream.shows("9 of 9 done")


@pytest.mark.race
def test_the_time_left_is_what_the_budgets_took_since_the_first_cell_was_under_way(monkeypatch):
    now = {"seconds": 100.0, "share": 0.1}
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now["seconds"]))
    stream, running = Terminal(), [("a", "", "", "", "")]
    live = console.Live(stream, lambda: console.Cells(0, 4, now["share"], running, []))
    live.start()
    try:
        assert stream.shows("0 of 4")
        assert "left" not in stream.getvalue()
        now.update(seconds=170.0, share=0.4)
        assert stream.shows("2 min left")  # 70 s for 0.3, so 140 s for 0.6
    finally:
        live.stop()


def test_no_line_changes_in_place_where_it_cannot_or_is_not_wanted(monkeypatch):
    for term, condense in (("dumb", True), ("xterm", False)):
        monkeypatch.setenv("TERM", term)
        screen = Screen(Terminal(), condense, look=lambda: pytest.fail("looked"))
        screen.begins(train=8, total=9)
        assert "\x1b" not in screen.stream.getvalue()


def test_states_are_coloured_on_a_terminal_only_and_not_with_no_color(monkeypatch):
    text = "a  done  done\n22 cells: 1 done\nok  done"
    colours = {"done": 32, "ok": 32}
    assert console.painted(text, colours) == text
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    painted = console.painted(text, colours)
    assert painted.splitlines()[:2] == ["a  \x1b[32mdone\x1b[0m  done", text.splitlines()[1]]
    assert printable(painted) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.painted(text, colours) == text


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    """A study of three cells: two fail for one reason, the third has ended."""
    made = without_verbs(tmp_path_factory.mktemp("console") / "x")
    made.study(
        branches=None, evaluate=None, speed=None, calibrate=None, gpus=0, budget="2 hours",
        axes={"attention": ["softmax"], "seed": [0, 1, 2, 3]},
        skip=[{"seed": 2, "context": 16, "reason": "not wanted"}],
    )  # fmt: skip
    (made.results / "scratch").mkdir(parents=True)
    *broken, ended = runs(made)
    for run in broken:  # a file where a folder must be
        (made.results / "scratch" / run).touch()
    record(made.results, ended, log(header(ended), update(2), end(2)))
    return made


def runs(place):
    values = study_file.read_study([place.root / "config/study.yaml", place.root / "tiny.yaml"])
    return list(grid.expand(values).cells)


def test_the_last_words_name_what_failed_and_a_target_that_is_finished_stays(place):
    targets = [f"results/tiny/runs/{run}/run.json" for run in runs(place)]
    words = ("--cores", "2", "--keep-going", "--retries", "1", "--", *targets)
    done = place.snakemake(*words, check=False)
    assert done.returncode == 1
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) < 40
    assert targets[2] in next(line for line in lines if "is finished" in line)
    *_, told, also, advice, _ = lines
    first, second, _ = (run.rpartition("-")[0] for run in runs(place))
    log = f"results/tiny/logs/train/{runs(place)[0]}.log"
    assert re.fullmatch(rf"{first} .*FileExistsError.* \({log}\)", told.strip())
    assert also.split() == ["also", second]
    sentence("snakemake", advice)
    (path,) = (place.root / ".snakemake" / "log").glob("*.log")
    for what in ("in rule train:", "FileExistsError:"):  # the complete log of every try
        assert path.read_text().count(what) == 4
    assert not [line for line in lines if "Traceback" in line]


def test_a_dry_run_says_what_is_to_be_done_kept_held_and_skipped(place, golden):
    scratch = place.results / "scratch" / runs(place)[0]
    scratch.unlink()
    scratch.mkdir()
    for attempt in (1, 2):
        entry = ledger.Entry(
            kind="failed", attempt=attempt, update=1, train_seconds=1800.0, attempt_seconds=1.0,
            reason="bug", host="node7",
        )  # fmt: skip
        ledger.append(scratch / ledger.NAME, entry)
    said = place.snakemake("-n").stdout
    said = re.sub(r"-[0-9a-f]{8}\b *", " ", said)
    jobs = re.search(r"(^  .*\n)+", said, re.MULTILINE)
    assert jobs  # Snakemake lists them in an order that changes
    golden("dry_run.txt", said.replace(jobs[0], "".join(sorted(jobs[0].splitlines(True)))))


def test_a_dry_run_of_many_jobs_counts_them_by_rule():
    jobs = [("tokenize", f"x/{i}", ["output files have to be generated"]) for i in range(1000)]
    jobs += [("report", "", ["params have changed since last execution"])]
    first, *rows = requested.dry_run(grid.expand(STUDY), [], jobs).splitlines()
    assert first.startswith("1,001 ")
    assert rows[0].split() == ["tokenize", "1,000", "missing"]
    assert rows[1].split() == ["report", "1", "other", "parameters"]
    assert len(rows) < 9
