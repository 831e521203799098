"""What the terminal shows: few lines, each reason of failure once, targets that people name."""

import io
import logging
import os
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import STUDY
from test_store import end, header, log, record, update
from test_workflow import Place, product

from lmscaling.config import grid, study_file
from lmscaling.errors import UserError
from lmscaling.formatting import printable
from lmscaling.records import ledger
from lmscaling.runtime import console
from lmscaling.runtime.console import Console
from lmscaling.workflow import requested

RUN = "softmax-s-ctx16-s{}-0123abcd"
STATUS = "SLURM-job '{}' failed, SLURM status is: '{}'. Detailed failure reason unavailable"


class Screen:
    """A console and what it and Snakemake's handler would show."""

    def __init__(self, condense=True):
        self.stream = io.StringIO()
        self.console = Console(logging.StreamHandler(self.stream), condense)

    def hears(self, message="", event=None, **values):
        entry = logging.makeLogRecord(
            {"msg": message, **values, **({"event": event} if event else {})}
        )
        if self.console.filter(entry):
            self.stream.write(f"{message}\n")

    def submits(self, number, run, logs=(), rule="train", local=False):
        self.hears(
            event="job_info", jobid=number, rule_name=rule, wildcards={"run": run} if run else {},
            log=[str(path) for path in logs], local=local,
        )  # fmt: skip
        if not local:
            self.hears(f"Job {number} has been submitted with SLURM jobid {number + 40} (log: x).")

    def fails(self, number, said=None, logs=(), rule="train"):
        self.hears(
            event="job_error", jobid=number, rule_name=rule, rule_msg=said, indent=False,
            log=[str(path) for path in logs],
        )  # fmt: skip

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()


def reason(tmp_path, said=None, rule_log=None, slurm_log=None):
    """What is shown of a job that fails."""
    screen, logs = Screen(), []
    for name, text in (("rule.log", rule_log), ("slurm.log", slurm_log)):
        if text is not None:
            (tmp_path / name).write_text(text)
            logs.append(tmp_path / name)
    screen.submits(1, RUN.format(0), logs[:1])
    screen.fails(1, said, logs)
    return screen.lines[-1]


@pytest.mark.parametrize("on_slurm", [False, True])
def test_seventy_two_cells_that_fail_four_times_print_fewer_than_a_hundred_lines(
    tmp_path, on_slurm
):
    screen = Screen()
    screen.hears("jobs", "run_info", stats={"train": 72, "total": 72})
    for attempt in range(4):
        for i in range(72):
            path = tmp_path / f"{i}.log"
            path.write_text(f"update 7\nerror: run {RUN.format(i)} is held at update {i}: bug\n")
            screen.submits(i, RUN.format(i), [path], local=not on_slurm)
            screen.fails(i, STATUS.format(4 * i + attempt, "FAILED") if on_slurm else None, [path])
            screen.hears(f"Trying to restart job {i}.")
    assert len(screen.lines) < 60
    assert sum("is held at update" in line for line in screen.lines) <= 5
    assert len(screen.console.failures) == 72


def test_every_reason_is_said_as_soon_as_it_appears(tmp_path):
    screen = Screen()
    for i, why in enumerate(["no tokens", "no tokens", "disk full", "no tokens"]):
        (tmp_path / f"{i}").write_text(f"error: {why}\n")
        screen.submits(i, RUN.format(i), [tmp_path / f"{i}"])
        screen.fails(i, None, [tmp_path / f"{i}"])
    said = [line for line in screen.lines if "has failed" in line]
    assert [line.split()[0] for line in said] == ["softmax-s-ctx16-s0", "softmax-s-ctx16-s2"]
    assert said[1].endswith(f"error: disk full ({tmp_path}/2)")


def test_the_reason_is_the_last_error_of_the_log_of_the_rule(tmp_path):
    text = "error: first\nTraceback:\n  error: within\nKeyError: 'x'\nlater\n"
    assert "KeyError: 'x'" in reason(tmp_path, STATUS.format(5, "FAILED"), text, "error: of Slurm")


def test_a_job_without_an_error_in_its_log_shows_the_last_line(tmp_path):
    assert "stopped after update 8" in reason(
        tmp_path, None, "update 8\nstopped after update 8\n\n"
    )


@pytest.mark.parametrize("state", ["TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL"])
def test_a_job_that_slurm_ended_says_how_and_where_slurms_log_is(tmp_path, state):
    told = reason(tmp_path, STATUS.format(5, state), "update 8\n", "slurmstepd: error: oom_kill\n")
    assert f"Slurm ended the job as {state}; slurmstepd: error: oom_kill" in told
    assert told.endswith("slurm.log)")


def test_a_rejected_submission_shows_what_sbatch_says(tmp_path):
    said = (
        "SLURM sbatch failed. The error message was 'sbatch: error: no partition nowhere\n"
        "sbatch: error: Batch job submission failed'.\n    sbatch call:\n        sbatch --parsable"
    )
    told = reason(tmp_path, said, "error: of the try before\n")
    assert "refuses the job: sbatch: error: no partition nowhere; sbatch: error: Batch" in told
    assert "sbatch call" not in told
    assert "before" not in told


def test_a_job_that_was_never_submitted_shows_no_reason_of_an_earlier_try(tmp_path):
    told = reason(tmp_path, "Slurm will not accept it: no account.", "error: of the try before\n")
    assert told == "softmax-s-ctx16-s0  has failed  Slurm will not accept it: no account."


def test_what_snakemake_says_for_every_step_is_not_shown():
    screen = Screen()
    screen.hears("Select jobs to execute...")
    screen.hears("Execute 1 jobs...", "job_started", jobs=[1])
    screen.hears("Removing temporary output results/tiny/sources/x.gz.")
    screen.hears("Provided cores: 2", "resources_info", cores=2)
    assert not screen.lines


def test_a_local_job_that_is_killed_says_by_which_signal():
    screen = Screen()
    screen.submits(1, RUN.format(0), local=True)
    text = (
        "RuleException:\nCalledProcessError in file x:\nCommand 'y' died with <Signals.SIGKILL: 9>."
    )
    screen.hears(text, "error", exception="RuleException")
    screen.fails(1)
    assert screen.lines[-1] == "softmax-s-ctx16-s0  has failed  killed by SIGKILL"


def test_a_job_whose_output_does_not_appear_has_failed():
    screen = Screen()
    screen.submits(1, "", rule="report")
    text = "MissingOutputException in rule report:\nJob 1  completed successfully, but some output"
    screen.hears(text, "error", exception="MissingOutputException")
    assert "its output is missing" in screen.lines[-1]
    assert list(screen.console.failures) == [1]


def test_a_job_that_succeeds_at_last_has_not_failed():
    screen = Screen()
    screen.submits(1, RUN.format(0))
    screen.fails(1)
    screen.hears(event="job_finished", job_id=1)
    screen.hears(event="progress", done=1, total=1)
    assert not screen.console.failures
    assert screen.lines[-1] == "1 of 1 done: softmax-s-ctx16-s0"


def test_a_message_that_is_not_known_is_shown_and_one_that_returns_for_each_job_is_bounded():
    screen = Screen()
    for i in range(100):
        screen.hears(f"Something new about job {i}")
        screen.hears("The same again")
    assert screen.lines == [
        "Something new about job 0", "The same again", "Something new about job 1",
        "Something new about job 2",
    ]  # fmt: skip


def test_escape_sequences_of_a_log_do_not_reach_the_terminal(tmp_path):
    told = reason(tmp_path, None, "error: \x1b[31mred\x1b[0m \x1b]0;title\x07bell\x9b2J\n")
    assert "error: red" in told
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", told)


def test_with_verbose_or_printshellcmds_snakemakes_own_text_is_shown():
    screen = Screen(condense=False)
    screen.hears("Select jobs to execute...")
    screen.submits(1, RUN.format(0))
    screen.fails(1)
    assert screen.lines[0] == "Select jobs to execute..."
    assert "has failed" not in screen.stream.getvalue()
    assert list(screen.console.failures) == [1]


def test_jobs_of_a_group_that_fails_show_the_reason_in_the_log_of_the_group(tmp_path):
    screen = Screen()
    (tmp_path / "slurm.log").write_text("slurmstepd: error: no space\n")
    for i in (1, 2):
        screen.submits(i, f"lines/train-0000{i}", rule="tokenize", local=True)
    screen.hears("", "group_error", aux_logs=[str(tmp_path / "slurm.log")])
    for i in (1, 2):
        screen.hears(
            event="job_error", jobid=i, rule_name="tokenize", rule_msg=None, indent=True, log=[]
        )
    (line,) = [line for line in screen.lines if "has failed" in line]
    assert line.startswith("tokenize lines/train-00001  has failed  slurmstepd: error: no space")
    assert len(screen.console.failures) == 2


def test_a_record_without_the_values_that_it_had_is_printed_as_snakemake_says_it():
    screen = Screen()
    screen.hears("a job of another version", "job_info", number=1)
    screen.hears("an event of another version", "job_paused")
    assert screen.lines == ["a job of another version", "an event of another version"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True

    def shows(self, text, seconds=20.0):
        """Whether a text appears in time, whatever the colours."""
        end = time.monotonic() + seconds
        while text not in (found := printable(self.getvalue())) and time.monotonic() < end:
            time.sleep(0.02)
        return text in found


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of a workflow of eight cells, two of them done, and its console."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(console, "LOOK_SECONDS", (0.05, 0.1))
    screen = Screen()
    screen.stream = Terminal()
    running = [("softmax-s-ctx16-s3", "7", "12.5%", "2.5000", "")]
    ended = [("softmax-s-ctx16-s2", "8", "done", "", "2.2500")]
    handler = logging.StreamHandler(screen.stream)
    cells = console.Cells(2, 8, 0.25, running, ended)
    screen.console = Console(handler, True, look=lambda: cells)
    screen.hears("jobs", "run_info", stats={"train": 8, "total": 9})
    yield screen
    if screen.console._live:
        screen.console._live.stop()


def test_a_terminal_shows_cells_jobs_and_the_last_losses_in_place(terminal):
    stream = terminal.stream
    assert stream.shows("2 of 8")
    assert stream.shows("softmax-s-ctx16-s3        7  12.5%      2.5000")
    assert stream.shows("softmax-s-ctx16-s2        8   done                2.2500")
    terminal.submits(1, "", rule="report", local=True)
    terminal.submits(2, RUN.format(0), local=True)
    terminal.hears(event="progress", done=3, total=9)
    assert stream.shows("3 of 9")
    assert stream.shows("also report")
    assert "begins" not in stream.getvalue()
    assert "3 of 9 done" not in stream.getvalue()
    terminal.hears(event="progress", done=9, total=9)
    assert stream.shows("9 of 9 done")
    assert terminal.console._live is None


def test_failures_and_messages_stay_above_the_lines_in_place(terminal, tmp_path):
    (tmp_path / "log").write_text("error: [disk] full\n")
    terminal.submits(1, RUN.format(0), [tmp_path / "log"], local=True)
    terminal.fails(1, None, [tmp_path / "log"])
    terminal.hears("Something [new]")
    assert terminal.stream.shows("softmax-s-ctx16-s0  has failed  error: [disk] full")
    assert terminal.stream.shows("Something [new]\n")
    terminal.hears(event="progress", done=1, total=9)
    assert terminal.stream.shows("1 failed")


def test_the_time_left_is_what_the_budgets_took_since_the_first_cell_was_under_way(monkeypatch):
    now = iter([100.0, 170.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(now)))
    live = console.Live(Terminal(), lambda: None)  # pyright: ignore
    first = console.Cells(0, 4, 0.1, [("a", "", "", "", "")], [])
    assert live._seconds_left(first) == ""
    assert live._seconds_left(replace(first, share=0.4)) == "about 2 min left"


@pytest.mark.parametrize("term", ["dumb", None])
def test_no_line_changes_in_place_where_it_cannot_or_is_not_wanted(monkeypatch, term):
    if term:
        monkeypatch.setenv("TERM", term)
    else:
        monkeypatch.setenv("TERM", "xterm")
    screen = Screen(condense=bool(term))
    screen.stream = Terminal()
    screen.console = Console(logging.StreamHandler(screen.stream), bool(term), look=lambda: None)  # pyright: ignore
    screen.hears("jobs", "run_info", stats={"train": 8, "total": 9})
    assert screen.console._live is None
    assert "\x1b" not in screen.stream.getvalue()


def test_states_are_coloured_on_a_terminal_only_and_not_with_no_color(monkeypatch):
    text = "a  done  done\n22 cells: 1 done\nok  done"
    colours = {"done": 32, "ok": 32}
    assert console.painted(text, colours) == text
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    painted = console.painted(text, colours)
    assert painted.splitlines()[0] == "a  \x1b[32mdone\x1b[0m  done"
    assert painted.splitlines()[1] == "22 cells: 1 done"
    assert printable(painted) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.painted(text, colours) == text


def test_a_terminal_of_few_characters_shows_the_reason(tmp_path):
    screen = Screen()
    screen.console._terminal.setStream(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    (tmp_path / "log").write_text("error: größer\n")
    screen.submits(1, RUN.format(0))
    screen.fails(1, None, [tmp_path / "log"])
    stream = screen.console._terminal.stream
    assert b"error: gr\\xf6\\xdfer" in stream.buffer.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    """A study of three cells: two fail for one reason, the third has ended."""
    made = product(tmp_path_factory.mktemp("console") / "x")
    made.study(
        branches=None, evaluate=None, speed=None, calibrate=None, gpus=0, budget="2 hours",
        axes={"attention": ["softmax"], "seed": [0, 1, 2]},
        skip=[{"seed": 2, "context": 16, "reason": "not wanted"}],
    )  # fmt: skip
    made.study(axes={"seed": [0, 1, 2, 3]})
    for run in runs(made)[:2]:
        (made.results / "scratch").mkdir(parents=True, exist_ok=True)
        (made.results / "scratch" / run).write_text("a file where a folder must be")
    record(made.results, runs(made)[2], log(header(runs(made)[2]), update(2), end(2)))
    return made


def runs(place):
    values = study_file.read_study([place.root / "config/study.yaml", place.root / "tiny.yaml"])
    return list(grid.expand(values).cells)


def targets(place):
    return [f"results/tiny/runs/{run}/run.json" for run in runs(place)]


@pytest.fixture(scope="module")
def failed(place):
    done = place.snakemake(
        "--cores", "2", "--keep-going", "--retries", "1", "--", *targets(place), check=False
    )
    assert done.returncode == 1
    return done.stdout + done.stderr


def test_the_last_words_name_what_failed_why_where_the_log_is_and_what_to_type(place, failed):
    lines = failed.splitlines()
    assert len(lines) < 40
    first, second = (run.rpartition("-")[0] for run in runs(place)[:2])
    *_, told, also, advice, complete = lines
    assert told.startswith(f"{first} and 1 more  failed  FileExistsError: ")
    assert told.endswith(f"(results/tiny/logs/train/{runs(place)[0]}.log)")
    assert also == f"    also {second}"
    assert advice == "2 failed; run snakemake again to continue from checkpoints"
    assert complete.startswith("Complete log(s): ")


def test_the_log_file_has_everything_that_snakemake_says(place, failed):
    (path,) = (place.root / ".snakemake" / "log").glob("*.log")
    text = path.read_text()
    assert text.count("Error in rule train:") == 4
    assert text.count("FileExistsError") == 4  # the complete log of every try
    assert "Trying to restart job" in text
    assert "Traceback" not in failed


def test_a_target_that_is_finished_is_said_to_be_and_the_others_are_made(place):
    done = place.snakemake("-n", "--", *targets(place))
    finished = targets(place)[2]
    assert f"{finished} is finished, so it stays as it is; to train it again: " in done.stderr
    assert len(re.findall(r"^  train +(\S+) +missing", done.stdout, re.MULTILINE)) == 2
    alone = place.snakemake("-n", "--", finished)
    assert "is finished, so it stays" in alone.stderr
    assert "jobs are to be done" not in alone.stdout


def test_a_target_that_is_not_known_is_one_sentence_with_the_nearest(place):
    done = place.snakemake("-n", "--", targets(place)[0].replace("ctx16", "ctx61"), check=False)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1
    assert f"is neither a rule nor a file of this study; nearest is {targets(place)[0]}" in said


def test_a_target_after_the_study_files_is_a_target(place):
    done = place.snakemake("-n", "--configfile", "tiny.yaml", targets(place)[0])
    assert len(re.findall(r"^  train ", done.stdout, re.MULTILINE)) == 1, done.stdout


def test_a_dry_run_says_what_is_to_be_done_kept_held_and_skipped(place):
    (held,) = runs(place)[:1]
    scratch = place.results / "scratch" / held
    scratch.unlink(missing_ok=True)
    scratch.mkdir()
    rows = [
        ledger.Entry(
            kind="failed", attempt=i, update=1, train_seconds=1800.0, attempt_seconds=1.0,
            reason="bug", host="node7",
        )
        for i in (1, 2)
    ]  # fmt: skip
    (scratch / ledger.NAME).write_bytes(b"".join(map(ledger.line, rows)))
    said = place.snakemake("-n").stdout
    assert len(said.splitlines()) < 60
    assert re.search(r"^  train +\S+ +missing$", said, re.MULTILINE)
    assert "2 runs and 0 branches are to be trained: at most 3.5 hours" in said
    assert "1 finished run is kept" in said
    (line,) = [line for line in said.splitlines() if line.startswith("1 held")]
    assert line.endswith(f"--study tiny --status held: {held.rpartition('-')[0]}")
    assert "1 skipped: not wanted: softmax-s-ctx16-s2" in said
    assert "snakemake -n -p lists each job" in said
    listed = place.snakemake("-n", "-p")
    assert "rule train:" in listed.stdout


def test_a_dry_run_of_many_jobs_counts_them_by_rule():
    values = dict(STUDY)
    made = grid.expand(values)
    jobs = [("tokenize", f"x/{i}", ["output files have to be generated"]) for i in range(1000)]
    jobs += [("report", "", ["params have changed since last execution"])]
    lines = requested.dry_run(made, [], jobs).splitlines()
    assert lines[0] == "1,001 jobs are to be done; this dry run does nothing"
    assert lines[1].split() == ["tokenize", "1,000", "missing"]
    assert lines[2].split() == ["report", "1", "other", "parameters"]
    assert len(lines) < 10


def test_targets_are_resolved_by_their_path_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "done.json").touch()
    asked = requested.Targets(
        lambda name: name in ("all", "x/new.json"), lambda: ["all", "figures"]
    )
    assert asked.resolve_all(["./x/new.json", "all", f"{tmp_path}/done.json"]) == [
        "x/new.json",
        "all",
    ]
    assert asked.resolve(os.path.join(tmp_path, "x", "new.json")) == "x/new.json"
    with pytest.raises(UserError, match=r"figurs is neither a rule nor .*; nearest is figures"):
        asked.resolve("figurs")
