"""What `status` says of cells that are done, under way, stopped, waiting and skipped."""

import json
import os
import time
from dataclasses import asdict, replace

import pytest
from test_store import end, header, live, log, record, update, validation

from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import write_record
from lmscaling.records import ledger
from lmscaling.runtime import lock
from lmscaling.runtime.console import Cells
from lmscaling.runtime.job_logs import Failure
from lmscaling.status import failures, reset, table
from lmscaling.status.live import Watch


@pytest.fixture
def study(tmp_path, values):
    values["axes"] |= {"context": [16, 32], "seed": [0, 1]}
    values["skip"] = [{"context": 32, "attention": "linear", "reason": "not wanted"}]
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    return tmp_path


def leave(study, run, who):
    (study / "scratch" / run / "lock").write_text(json.dumps(asdict(who)))


def test_every_cell_has_its_line(study):
    runs = list(study_file.read_record(study / "study.json").grid.cells)
    record(study, runs[0], log(header(runs[0]), update(2), end(2)))
    live(study, runs[1], log(header(runs[1]), update(1), update(2, loss=2.5))[:-1] + b'\n{"rec')
    os.utime(study / "scratch" / runs[1] / "attempt-001.jsonl", (0, time.time() - 600))
    live(study, runs[2], log(header(runs[2]), update(7), end(7, status="interrupted")))
    live(study, runs[3], log(header(runs[3])))
    leave(study, runs[1], lock.Holder(host="node7", job="4711"))
    (study / "scratch" / runs[4]).mkdir()
    leave(study, runs[4], lock.this_process())
    leave(study, runs[3], replace(lock.this_process(), born=1.0))
    text = table.progress(study)
    lines = {line.split()[0]: line for line in text.splitlines()}
    names = [run.rpartition("-")[0] for run in runs]
    assert "done" in lines[names[0]]
    assert "running" in lines[names[1]]
    assert lines[names[1]].split()[1:] == ["running", "2", "50.0%", "2.5000", "64", "2", "s"]
    assert "    2 s left; job 4711 on node7; last row 10 min ago" in text.splitlines()
    assert max(map(len, text.splitlines())) <= 100
    assert "interrupted" in lines[names[2]]
    assert "stopped" in lines[names[3]]
    assert "starting" in lines[names[4]]
    assert f"process {os.getpid()} on" in lines[names[4]]
    assert lines[names[5]].endswith("waiting")
    assert lines["linear-s-ctx32-s0"].endswith("not wanted")
    assert lines["8"] == (
        "8 cells: 2 skipped, 1 done, 1 running, 1 interrupted, 1 stopped, 1 starting, 1 waiting"
    )


def test_cells_that_are_done_and_under_way_show_their_last_losses(study):
    old, new, running, *_ = runs = list(study_file.read_record(study / "study.json").grid.cells)
    rows = header(old), update(2), validation(1, loss=9.0), validation(2, loss=2.25), end(2)
    record(study, old, log(*rows))
    record(study, new, log(header(new), end(2)))
    path = study / "runs" / new / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"last_val_loss": 1.5}))
    live(study, running, log(header(running), validation(1, loss=2.75), update(2, loss=2.5)))
    head, *lines = (line.split() for line in table.progress(study).splitlines())
    assert " ".join(head) == "cell status updates budget train loss val loss tokens/s trained"
    names = [run.rpartition("-")[0] for run in runs]
    assert lines[0] == [names[0], "done", "2", "2.2500", "2", "s"]
    assert lines[1] == [names[1], "done", "2", "1.5000", "2", "s"]
    assert lines[2][:6] == [names[2], "stopped", "2", "50.0%", "2.5000", "2.7500"]


def test_a_watch_counts_cells_and_reads_each_record_once(study):
    cells = study_file.read_record(study / "study.json").grid.cells
    before, ended, running, *_ = cells
    record(study, before, log(header(before), end(2)))
    watch = Watch(study, cells, {before})
    assert watch.look() == Cells(1, 6, 1 / 6, [], [])
    record(study, ended, log(header(ended), validation(2, loss=2.25), end(2)))
    live(study, running, log(header(running), update(2, loss=2.5)))
    leave(study, running, lock.this_process())
    name = ended.rpartition("-")[0]
    seen = watch.look()
    assert (seen.done, seen.total, seen.share) == (2, 6, 2.5 / 6)
    assert seen.ended == [(name, "2", "done", "", "2.2500")]
    assert seen.running == [(running.rpartition("-")[0], "2", "50.0%", "2.5000", "")]
    (study / "runs" / ended / "run.json").write_text("{")
    assert watch.look() == seen


def test_a_kernel_that_failed_its_check_is_said_once_for_each_device(study):
    row = {"way": "plain PyTorch", "seconds": 1.0, "started": "a"}
    found = [
        row | {"key": {"device": device, "torch": torch}, "message": message}
        for device, torch, message in (
            ("H100", "1", "dv is wrong"), ("H100", "2", "dv is wrong"),
            ("B200", "1", "dv is wrong"), ("B200", "1", ""),
        )
    ]  # fmt: skip
    assert "kernels" not in table.progress(study)
    write_record(study / "checks" / "linear-d64.json", {"findings": found})
    said = table.progress(study).splitlines()[-2:]
    assert said == ["kernels: dv is wrong, on H100", "kernels: dv is wrong, on B200"]


def test_the_line_of_a_trunk_counts_the_branches_that_are_done(study, values):
    values["branches"] = {"shares": [0.25, 0.5], "context": 16}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(study / "study.json").grid
    trunks = list(laid_out.cells.values())
    first, second, *_ = (run for run, b in laid_out.branches.items() if b.trunk == trunks[0].run)
    record(study, trunks[0].run, log(header(trunks[0].run), update(4), end(4)))
    record(study, first, log(header(first, start=1), update(2), end(2)))
    record(study, second, log(header(second)), "no_trunk")
    text = table.progress(study)
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines[trunks[0].name].endswith(" s  branches 1/2")
    waiting = next(cell for cell in trunks[1:] if cell.context == 16)
    assert lines[waiting.name].split()[1:] == ["waiting", "branches", "0/2"]
    assert "branches" not in lines[next(c.name for c in trunks if c.context == 32)]
    assert len(text.splitlines()) == len(trunks) + len(laid_out.skipped) + 2
    assert text.splitlines()[-1].startswith("8 cells: 5 waiting, 2 skipped, 1 done")


def test_a_loss_that_is_no_number_leaves_its_place_empty(study):
    (run, *_) = study_file.read_record(study / "study.json").grid.cells
    live(study, run, log(header(run), update(1, loss=None)))
    assert "stopped" in table.progress(study)


def test_what_failed_is_named_with_the_reason_and_what_to_do(study, monkeypatch):
    monkeypatch.chdir(study)
    assert failures.listed(study) == ""
    done, oom, ours, slurms, running, unknown = study_file.read_record(
        study / "study.json"
    ).grid.cells
    record(study, done, log(header(done), end(2)))
    record(study, oom, log(header(oom), end(2)), "oom")
    for run in (ours, slurms, running, unknown):
        live(study, run, log(header(run), update(2)))
    leave(study, running, lock.Holder(host="node7"))
    (study / "logs" / "train").mkdir(parents=True)
    colours = "\x1b[31merror: no\ttokens\x1b[0m\x07\x1b]0;title\x07"
    (study / "logs" / "train" / f"{ours}.log").write_text(f"update 7\n{colours}\nbye\n")
    (study / "logs" / "train" / f"{slurms}.log").write_text("update 7\n")
    told = study / ".snakemake" / "slurm_logs" / "rule_train" / slurms / "5.log"
    told.parent.mkdir(parents=True)
    told.write_text("slurmstepd: error: *** JOB 5 CANCELLED DUE TO TIME LIMIT ***\n")
    lines = failures.listed(study).split("\n")
    assert "".join(lines).isprintable()
    said = {line.split()[0]: line for line in lines}
    assert oom.rpartition("-")[0] in said
    assert f"error: no tokens ({study}/logs/train/{ours}.log)" in said[ours.rpartition("-")[0]]
    assert "DUE TO TIME LIMIT ***" in said[slurms.rpartition("-")[0]]
    assert "unknown reason" in said[unknown.rpartition("-")[0]]
    assert f"reset --study {study.name} --status oom" in lines[-2]
    assert lines[-1] == "3 failed; run snakemake again to continue from checkpoints"
    assert len(lines) == 6


def test_a_reason_that_many_runs_share_is_said_once_with_the_first_names(study):
    names = []
    for i, run in enumerate(study_file.read_record(study / "study.json").grid.cells):
        live(study, run, log(header(run), update(2)))
        (study / "logs" / "train").mkdir(parents=True, exist_ok=True)
        told = f"error: run {run} met the disk {i}"
        (study / "logs" / "train" / f"{run}.log").write_text(told)
        names.append(run.rpartition("-")[0])
    head, also, advice = failures.listed(study).splitlines()
    assert head.startswith(f"{names[0]} and 5 more  failed  error: run {names[0]}-")
    assert also == f"    also {', '.join(names[1:4])}, ..."
    assert advice == "6 failed; run snakemake again to continue from checkpoints"


def test_escape_sequences_in_logs_and_records_do_not_reach_the_terminal(study):
    first, second, *_ = study_file.read_record(study / "study.json").grid.cells
    live(study, first, log(header(first), update(2)))
    (study / "logs" / "train").mkdir(parents=True)
    (study / "logs" / "train" / f"{first}.log").write_text("error: \x1b[2Jgone \x1b]0;title\x07\n")
    record(study, second, log(header(second), end(2)), "oom")
    path = study / "runs" / second / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"message": "\x1b[31mred"}))
    told = failures.listed(study) + table.progress(study)
    assert "error: gone" in told
    assert "red" in told
    assert "\x1b" not in told
    assert "\x07" not in told


def test_the_last_words_say_last_what_has_just_failed_and_what_its_kind_asks_for(study, capsys):
    grid = study_file.read_record(study / "study.json").grid
    first, *_ = grid.cells
    failed(study, first, "", "")
    letters = "abcdefghijklmnop"
    told = [Failure(f"figure {c}", "failed", f"KeyError: '{c * 9}'", f"{c}.log") for c in letters]
    told.append(Failure("tokenize x", "failed", "Slurm ended the job as TIMEOUT", "x.log"))
    failures.last_words(study, grid, told)
    lines = capsys.readouterr().err.splitlines()
    assert lines[12] == "tokenize x  failed  Slurm ended the job as TIMEOUT (x.log)"
    assert lines[13].startswith("6 more reasons: lmscaling status ")
    assert "--set-resources RULE:runtime=48h" in lines[14]
    assert lines[15] == "17 jobs failed; mend the cause, then run snakemake again"
    assert "1 held after repeated failures" in lines[16]
    assert len(lines) == 17


def test_what_jobs_tell_is_said_even_if_a_record_cannot_be_read(study, capsys):
    grid = study_file.read_record(study / "study.json").grid
    run = next(iter(grid.cells))
    (study / "runs" / run).mkdir(parents=True)
    (study / "runs" / run / "run.json").write_text("{")
    failures.last_words(study, grid, [Failure("figure x", "failed", "KeyError: 'x'", "x.log")])
    assert "figure x  failed  KeyError: 'x' (x.log)" in capsys.readouterr().err


FAILS: list[ledger.Kind] = ["begin", "failed"]


def failed(study, run, *faults):
    """A run whose attempts have failed with these faults."""
    rows = [
        ledger.Entry(
            kind=kind, attempt=i, update=1, train_seconds=1.0, attempt_seconds=1.0,
            fault=fault, reason=f"{fault or 'bug'} at last", host="node7",
        )
        for i, fault in enumerate(faults, start=1)
        for kind in FAILS
    ]  # fmt: skip
    live(study, run, log(header(run), update(1), end(1, status="held")))
    (study / "scratch" / run / ledger.NAME).write_bytes(b"".join(map(ledger.line, rows)))


def test_held_runs_are_shown_with_their_reason_and_the_command_to_go_on(study):
    bug, sick, *_ = study_file.read_record(study / "study.json").grid.cells
    failed(study, bug, "", "")
    failed(study, sick, "device")
    lines = failures.listed(study).splitlines()
    assert lines[0].split()[1:3] == ["held", "2"]
    assert lines[0].endswith(
        "2 attempts in a row failed without a checkpoint: bug at last, on node7"
    )
    assert lines[1].endswith("device at last, on node7")
    assert lines[2] == "1 failed; run snakemake again to continue from checkpoints"
    assert f"reset --go-on --study {study.name} --status held, then snakemake" in lines[3]
    assert table.progress(study).splitlines()[-1].startswith("8 cells: 4 waiting, 2 held")


def test_held_runs_are_selected_by_status_and_others_are_refused(study):
    bug, sick, other, *_ = study_file.read_record(study / "study.json").grid.cells
    failed(study, bug, "", "")
    failed(study, sick, "device")
    record(study, other, log(header(other), end(2)))
    folder, runs = reset.select(study.parent, study.name, None, "held")
    assert (folder, runs) == (study, sorted([bug, sick]))
    assert reset.held(study, runs) == [study / "scratch" / run for run in runs]
    with pytest.raises(UserError, match=f"{other} is not held.*leave --go-on out"):
        reset.held(study, [other])


def test_a_trunk_of_other_code_takes_its_branches_along(study, values):
    values["branches"] = {"shares": [0.5], "context": 16}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(study / "study.json").grid
    run, branch = next(iter(laid_out.branches.items()))
    for name, cell in ((branch.trunk, laid_out.cells[branch.trunk]), (run, branch)):
        (study / "cells").mkdir(exist_ok=True)
        (study / "cells" / f"{name}.json").write_text(cell.to_json())
        record(study, name, log(header(name), end(2)))
    path = study / "runs" / branch.trunk / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "0123456789ab"}))
    found = reset.select(study.parent, study.name, None, None, stale=True)
    assert found == (study, sorted([branch.trunk, run]))


def test_results_that_cannot_be_changed_are_one_sentence_and_stay(study):
    (run, *_) = study_file.read_record(study / "study.json").grid.cells
    record(study, run, log(header(run), end(2)))
    (study / "attic").touch()  # no permission stops root, but no folder can be made here
    with pytest.raises(UserError, match=r"cannot be changed: .*; reset it as its owner, or make"):
        reset.move(study, [run])
    assert (study / "runs" / run / "run.json").is_file()


def test_a_branch_alone_is_not_reset_once_the_checkpoint_of_its_trunk_is_deleted(study, values):
    values["branches"] = {"shares": [0.5], "context": 16}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(study / "study.json").grid
    run, branch = next(iter(laid_out.branches.items()))
    for name, cell in ((branch.trunk, laid_out.cells[branch.trunk]), (run, branch)):
        (study / "cells").mkdir(exist_ok=True)
        (study / "cells" / f"{name}.json").write_text(cell.to_json())
        record(study, name, log(header(name), end(2)))
    with pytest.raises(UserError, match=f"begins from branch-0.5.*reset {branch.trunk}"):
        reset.move(study, [run])
    assert (study / "runs" / run).exists()
    kept = study / "scratch" / branch.trunk / "branch-0.5.safetensors"
    kept.parent.mkdir(parents=True)
    kept.touch()
    reset.move(study, [run])
    reset.move(study, [branch.trunk])
    assert not (study / "runs" / run).exists()
