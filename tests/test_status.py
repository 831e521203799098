"""What `status` says of cells that are done, under way, stopped, waiting and skipped."""

import json
import os
import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import refused, sentence
from test_store import end, header, live, log, record, update, validation

from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import write_record
from lmscaling.records import ledger
from lmscaling.runtime import lock
from lmscaling.status import failures, reset, table


@pytest.fixture
def study(tmp_path, values):
    values["axes"] |= {"context": [16, 32], "seed": [0, 1]}
    values["skip"] = [{"context": 32, "attention": "linear", "reason": "not wanted"}]
    folder = tmp_path / "tiny"
    lay_out(folder, values)
    return folder


def lay_out(folder, values):
    return study_file.write_record(folder / "study.json", {"command": "", "study": values})


def leave(study, run, who):
    (study / "scratch" / run / "lock").write_text(json.dumps(asdict(who)))


def told(path, text):
    """What a job has left in its log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def every_state(study, values):
    """A study with cells in every state, in the order of the cells, and its laid out grid."""
    values["axes"] |= {"seed": [0, 1, 2, 3, 4, 5]}
    values["branches"] = {"shares": [0.25, 0.5], "context": 16, "attention": "softmax"}
    grid = lay_out(study, values)
    (done, other, oom, diverged, crashed, damaged, running, starting, interrupted, stopped, held,
     slow, lost, *_) = grid.cells  # fmt: skip
    record(study, done, log(header(done), validation(2, loss=1.5), end(2)), last_val_loss=1.5)
    record(study, other, log(header(other), validation(2, loss=2.25), end(2)), last_val_loss=2.25)
    for run, status in ((oom, "oom"), (diverged, "diverged"), (crashed, "crashed")):
        record(study, run, log(header(run), end(2)), status, message=f"the reason of {status}")
    record(study, damaged, log(header(damaged), end(2)))
    (study / "runs" / damaged / "run.json").write_text("{")
    first = header(running), update(1), validation(1, loss=2.75), update(2, loss=2.5)
    live(study, running, log(*first)[:-1] + b'\n{"rec')
    leave(study, running, lock.Holder(host="node7", job="4711"))
    (study / "scratch" / starting).mkdir()
    leave(study, starting, lock.this_process())
    live(study, interrupted, log(header(interrupted), update(7), end(7, status="interrupted")))
    live(study, stopped, log(header(stopped), update(1, loss=None)))  # no number
    leave(study, stopped, replace(lock.this_process(), born=1.0))
    failed(study, held, "", "")
    for run in (slow, lost):
        live(study, run, log(header(run), update(2)))
    logs = study / "logs" / "train"
    coloured = "\x1b[31merror: no\ttokens\x1b[0m\x07\x1b]0;title\x07"
    told(logs / f"{stopped}.log", f"update 7\n{coloured}\nbye\n")
    told(logs / f"{slow}.log", "update 7\n")
    path = study.parent / ".snakemake" / "slurm_logs" / "rule_train" / slow / "5.log"
    told(path, "slurmstepd: error: *** JOB 5 CANCELLED DUE TO TIME LIMIT ***\n")
    first, second, *_ = (run for run, branch in grid.branches.items() if branch.trunk == done)
    record(study, first, log(header(first, start=1), update(2), end(2)))
    record(study, second, log(header(second)), "no_trunk")
    row = {"way": "linear attention", "seconds": 1.0, "started": "a"}
    wrong = ("H100", "1"), ("H100", "2"), ("B200", "1"), ("B200", "1")
    found = [row | {"key": {"device": device, "torch": torch}, "message": "dv is wrong"}
             for device, torch in wrong]  # fmt: skip
    found[-1]["message"] = ""
    write_record(study / "checks" / "linear-d64.json", {"findings": found})
    for path in study.glob("scratch/*/attempt-*.jsonl"):
        os.utime(path, (0, time.time() - 600))
    return study


def test_status_and_failures_read_as_reviewed(every_state, golden, monkeypatch):
    monkeypatch.chdir(every_state.parent)
    folder = Path(every_state.name)
    texts = table.progress(folder), failures.listed(folder)
    assert max(map(len, texts[0].splitlines())) <= 100
    assert "".join("".join(texts).split("\n")).isprintable()
    text = "\n\n".join(texts).replace(lock.this_process().description, "process 1 on node1")
    golden("status.txt", text + "\n")


def test_a_reason_that_many_runs_share_is_said_once_with_the_first_names(study):
    assert failures.listed(study) == ""
    names = []
    for i, run in enumerate(study_file.read_record(study / "study.json").grid.cells):
        live(study, run, log(header(run), update(2)))
        told(study / "logs" / "train" / f"{run}.log", f"error: run {run} met the disk {i}")
        names.append(run.rpartition("-")[0])
    head, also, advice = failures.listed(study).splitlines()
    assert re.match(rf"{names[0]} and 5 .* failed .* {names[0]}-", head)
    assert also.split(maxsplit=1)[1] == f"{', '.join(names[1:4])}, ..."
    assert advice.startswith("6 failed; ")


def test_the_last_words_are_few_and_say_what_slurm_asks_for(tmp_path, values, capsys):
    values["axes"]["seed"] = [*range(8)]
    study = tmp_path / "many"
    lay_out(study, values)
    grid = study_file.read_record(study / "study.json").grid
    limit = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED DUE TO TIME LIMIT ***"
    reasons = [*(f"error: {letter * 9}" for letter in "abcdefghijklmn"), "AssertionError", limit]
    for run, reason in zip(grid.cells, reasons, strict=True):
        live(study, run, log(header(run), update(2)))
        told(study / "logs" / "train" / f"{run}.log", reason)
    failures.last_words(study, grid)
    _, *shown, more, remedy, last = capsys.readouterr().err.splitlines()
    assert (len(shown), more.split()[0], last.split()[0]) == (12, "4", "16")
    assert "TIME LIMIT" in "".join(shown)
    assert "AssertionError" in "".join(shown)
    assert "--set-resources" in remedy
    for line in (shown[-1], more, remedy, last):
        sentence("last words", line)
    told(study / "runs" / next(iter(grid.cells)) / "run.json", "{")  # a record that cannot be read
    failures.last_words(study, grid)
    assert "1 with a damaged record" in capsys.readouterr().err


def failed(study, run, *faults):
    """A run whose attempts have failed with these faults."""
    kinds: list[ledger.Kind] = ["begin", "failed"]
    rows = [
        ledger.Entry(
            kind=kind, attempt=i, update=1, train_seconds=1.0, attempt_seconds=1.0,
            fault=fault, reason=f"{fault or 'bug'} at last", host="node7",
        )
        for i, fault in enumerate(faults, start=1)
        for kind in kinds
    ]  # fmt: skip
    live(study, run, log(header(run), update(1), end(1, status="held")))
    (study / "scratch" / run / ledger.NAME).write_bytes(b"".join(map(ledger.line, rows)))


def test_held_runs_are_selected_by_status_and_others_are_refused(study):
    bug, sick, other, *_ = study_file.read_record(study / "study.json").grid.cells
    failed(study, bug, "", "")
    failed(study, sick, "device")
    record(study, other, log(header(other), end(2)))
    folder, runs = reset.select(study.parent, study.name, None, "held")
    assert (folder, runs) == (study, sorted([bug, sick]))
    assert reset.held(study, runs) == [study / "scratch" / run for run in runs]
    with refused(UserError, other, "--go-on"):
        reset.held(study, [other])


@pytest.fixture
def branched(study, values):
    """A branch and its trunk, both done."""
    values["branches"] = {"shares": [0.5], "context": 16}
    run, branch = next(iter(lay_out(study, values).branches.items()))
    for name in (branch.trunk, run):
        record(study, name, log(header(name), end(2)))
    return run, branch.trunk


def test_a_trunk_of_other_code_takes_its_branches_along(study, branched):
    run, trunk = branched
    path = study / "runs" / trunk / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "0123456789ab"}))
    found = reset.select(study.parent, study.name, None, None, stale=True)
    assert found == (study, sorted([trunk, run]))


def test_results_that_cannot_be_changed_are_one_sentence_and_stay(study):
    (run, *_) = study_file.read_record(study / "study.json").grid.cells
    record(study, run, log(header(run), end(2)))
    (study / "attic").touch()  # no permission stops root, but no folder can be made here
    with refused(UserError, study):
        reset.move(study, [run])
    assert (study / "runs" / run / "run.json").is_file()


def test_a_branch_alone_is_not_reset_once_the_checkpoint_of_its_trunk_is_deleted(study, branched):
    run, trunk = branched
    with refused(UserError, run, "branch-0.5", f"reset {trunk}"):
        reset.move(study, [run])
    assert (study / "runs" / run).exists()
    kept = study / "scratch" / trunk / "branch-0.5.safetensors"
    kept.parent.mkdir(parents=True)
    kept.touch()
    reset.move(study, [run])
    reset.move(study, [trunk])
    assert not (study / "runs" / run).exists()


def test_the_last_words_name_the_report_that_has_all_records(study, capsys):
    grid, report = study_file.read_record(study / "study.json").grid, study / "report.html"
    for run in grid.cells:
        record(study, run, log(header(run), update(2), end(2)))
    report.touch()
    for is_old in (False, True):
        if is_old:
            os.utime(report, (0, 0))
        failures.last_words(study, grid)
        assert (str(report) in capsys.readouterr().err) != is_old
