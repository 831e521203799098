"""Training: every way in which a run can end or be refused, and what it then leaves."""

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import strangers
import torch
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from test_train import record, rows_of, run, scratch

from lmscaling.bench.checks import variant
from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.model.gpt import GPT
from lmscaling.records.checks import findings
from lmscaling.records.ledger import NAME, Entry, append
from lmscaling.records.run import End, finite, line
from lmscaling.runtime import environment, lock, planned, rank
from lmscaling.train import checkpoint
from lmscaling.train.budget import Budget, Clock
from lmscaling.train.outcome import run_record

__all__ = ["record", "run", "scratch"]

MINE = strangers.file(more=strangers.COUNTED)


def test_a_loss_that_is_no_number_is_a_result_and_valid_json(run, cell, monkeypatch):
    plain = GPT.loss

    def explode(self, x, y):
        return plain(self, x, y) * (float("nan") if self.training else 1)

    monkeypatch.setattr(GPT, "loss", explode)
    made, rows = run(cell)
    assert (made.status, made.updates) == ("diverged", 1)
    assert made.message.endswith("is nan")
    assert rows_of(rows, "update")[0]["train_loss"] is None


def test_what_cannot_run_is_refused_and_writes_nothing(run, cell, scratch, record, monkeypatch):
    with pytest.raises(UserError, match="64 gpus"):
        run(replace(cell, gpus=64))
    with refused(UserError, "update_tokens", 2**20, 3700):
        run(replace(cell, update_tokens=2**20))
    with refused(UserError, "validation.tokens", 4096, 1000, 992):
        run(replace(cell, validation=replace(cell.validation, tokens=4096)))
    monkeypatch.setenv("WORLD_SIZE", "8")
    with refused(UserError, "WORLD_SIZE is 8"):
        run(cell)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun does
    with refused(UserError, "torchrun"):
        run(cell)
    assert not scratch.exists()
    assert not record.parent.exists()


def test_a_job_of_a_workflow_that_a_launcher_has_started_is_none_of_its_ranks(
    run, cell, monkeypatch
):
    for name, value in {"WORLD_SIZE": "8", "LOCAL_RANK": "1", rank.PLAN: "plan"}.items():
        monkeypatch.setenv(name, value)
    rank.settle()
    assert run(cell)[0].status == "done"


def test_a_record_stays_until_its_run_is_asked_for_again_and_then_moves_aside(
    run, cell, scratch, record, capfd, monkeypatch
):
    first, _ = run(cell)
    before, written = record.read_bytes(), record.stat().st_mtime_ns
    plan = record.parents[2] / "plan.json"
    monkeypatch.setenv(rank.PLAN, str(plan))

    def ask(stamp, *runs):
        planned.write(plan, planned.Plan("results", {}, {record.parent.name: stamp}, [*runs]))

    for stamp, asked, reason in (
        (None, [], "it had ended"),
        (written, [], "nobody has asked for it again"),
        (written - 1, [record.parent.name], "another job has ended it since it was planned"),
    ):
        if stamp:
            ask(stamp, *asked)
        assert run(cell)[0] == first
        assert reason in capfd.readouterr().err
        assert (record.read_bytes(), record.stat().st_mtime_ns) == (before, written)
    assert not scratch.exists()  # a late job touches nothing
    ask(written, record.parent.name)
    again, _ = run(cell)
    assert again.started >= first.ended
    (aside,) = (record.parent / planned.EARLIER).iterdir()
    assert (aside / "run.json").read_bytes() == before
    assert {"log.jsonl", "model.safetensors"} <= {path.name for path in aside.iterdir()}
    assert record.read_bytes() != before
    assert run(cell)[0] == again  # a job that is tried again after its end


def test_a_damaged_record_is_replaced_by_its_copy_or_named(run, cell, record, capfd):
    first, _ = run(cell)
    planned.copy([record], Path(f"{record.parent}.json"))
    record.write_bytes(b"")
    assert run(cell)[0] == first
    assert "is used in its place" in capfd.readouterr().err
    Path(f"{record.parent}.json").unlink()
    with refused(UserError, record.name, "lmscaling reset"):
        run(cell)


@pytest.mark.race
def test_two_processes_never_train_one_run_and_the_one_that_waits_does_not_train_it_again(
    run, cell, scratch, record
):
    held = threading.Event()

    def other():
        with lock.hold(scratch, ""):
            held.set()
            time.sleep(3)
            assert not list(scratch.glob("attempt-*"))

    with ThreadPoolExecutor() as pool:
        first = pool.submit(other)
        held.wait()
        made, _ = run(cell)
        assert first.done()
    first.result()
    before = record.read_bytes()
    assert (run(cell)[0], record.read_bytes()) == (made, before)


UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "updates": 1, "tokens": 1}


@given(st.sampled_from([*UNITS]), st.integers(1, 80_000), *[st.integers(0, 10**9)] * 3)
def test_a_budget_counts_its_own_unit(unit, amount, updates, tokens, seconds):
    spent = {"updates": updates, "tokens": tokens, "seconds": seconds}
    own = spent.get(unit, seconds)
    found = parse_budget(f"{amount} {unit}").fraction(**spent)
    assert found == pytest.approx(own / (amount * UNITS[unit]))


def test_gpu_hours_are_those_of_all_gpus_in_all_attempts_and_a_row_is_one_line(cell, tmp_path):
    spent = Entry(kind="beat", attempt=1, update=4, train_seconds=60.0, attempt_seconds=5400.0)
    text: Any = SimpleNamespace(reached=lambda updates: (0, "id"))
    budget = Budget(replace(cell, gpus=4), 10, 1000)
    append(tmp_path / NAME, spent)
    end = End(attempt=2, update=4, status="done", message="a\nb", ended="")
    assert line(end).count(b"\n") == 1
    assert finite(float("inf")) is None
    names = ["run", "cell", "params", "params_total", "flops_per_token", "calibration"]
    rest: dict[str, Any] = dict.fromkeys([*names, "environment", "started"])
    made = run_record(text, budget, tmp_path, end, rest)
    assert (made.gpu_hours, made.attempts, made.tokens) == (6.0, 2, 4 * 64)


def test_an_attempt_stops_so_many_seconds_after_its_process_began(run, cell, scratch):
    with pytest.raises(SystemExit) as stopped:
        run(cell, stop_after=-1.0)
    assert stopped.value.code == TRY_AGAIN
    (end,) = rows_of(scratch / "attempt-001.jsonl", "end")
    assert end["status"] == "interrupted"
    assert "time limit" in end["message"]
    made, _ = run(cell, stop_after=1e6)
    assert (made.status, made.attempts) == ("done", 2)


def test_an_attention_is_checked_before_its_first_cell_only(run, cell, scratch, record, package):
    own = replace(cell, attention="mine")
    package.write("mine", strangers.file().replace("triu(1)", "triu(2)"))
    with pytest.raises(UserError, match=r"^attention mine looks"):
        run(own)
    assert not record.parent.exists()
    assert not scratch.exists()
    assert not (scratch.parents[1] / "checks").exists()
    package.write("mine", MINE)
    run(own)
    checks = scratch.parents[1] / "checks" / f"{own.check}.json"
    first = findings(checks)
    assert [(found.way, found.key["d_model"]) for found in first] == [("mine", 8)]
    shutil.rmtree(record.parent)
    shutil.rmtree(scratch, ignore_errors=True)
    run(replace(own, seed=1, context=32))
    assert findings(checks) == first
    package.write("mine", f"# A comment.\n{MINE}")
    variant.require(own, torch.device("cpu"), checks)
    assert findings(checks) == first
    package.write("mine", MINE.replace("-0.5", "-0.4"))
    variant.require(own, torch.device("cpu"), checks)
    assert len(findings(checks)) == 2


def test_a_run_keeps_the_source_of_its_attention_and_names_that_of_each_attempt(
    run, cell, scratch, package
):
    package.write("mine", MINE)
    own = replace(cell, attention="mine")
    first = code.present(own)
    with pytest.raises(SystemExit):
        run(own, stop_after=-1.0)
    (header,) = rows_of(scratch / "attempt-001.jsonl", "header")
    assert header["code"] == first != code.present(cell)
    assert header["code_differs"] is None  # the copy is not in git
    kept = scratch.parents[1] / "code" / f"{first}.json"
    assert json.loads(kept.read_text()) == {"attention/mine.py": MINE}
    package.write("mine", MINE.replace("-0.5", "-0.4"))
    made, _ = run(own)
    assert made.code == f"{first}+{code.present(own)}"
    assert made.program == code.program(own)
    assert (scratch.parents[1] / "code" / f"{made.program}.json").is_file()


def test_an_update_in_which_the_machine_stood_still_is_not_paid_by_the_budget(cell):
    budget, now = Budget(replace(cell, budget="1 hours"), 99, 99), [0.0]
    budget.clock = Clock(0.0, lambda: now[0])
    trainer: Any = SimpleNamespace(
        global_step=0, world_size=1, enable_validation=False, val_check_batch=None
    )
    module: Any = SimpleNamespace(rates=None, spent=0.0)
    for i in range(60):
        now[0] += {40: 3000.0, 50: 29.0}.get(i, 1.0)  # suspended; slow, but below thirty seconds
        trainer.global_step += 1
        budget.on_train_batch_end(trainer, module, {"loss": 1.0})
    assert (budget.seconds, budget.stalled) == (59 + 29, 2999)
    again = Budget(budget.cell, 99, 99)
    again.load_state_dict(budget.state_dict())
    assert again.stalled == budget.stalled


def test_a_record_names_the_environments_of_the_updates_that_survive(
    run, cell, scratch, monkeypatch
):
    plain = environment.complete
    here = [{"device": "A100"}, {"device": "H100"}, {"device": "H100"}]
    monkeypatch.setattr(environment, "complete", lambda gpus: plain(gpus) | here.pop(0))
    for _ in range(2):
        with pytest.raises(SystemExit):
            run(cell, stop_after=-1.0)
    for path in checkpoint.paths(scratch):  # all that was trained is lost with it
        path.unlink()
    made, _ = run(cell)
    assert [each["device"] for each in made.environments or []] == ["H100"]
    assert {"torch", "lightning"} <= {*made.environment["versions"]}
    assert len(made.environment["source_sha256"]) == 64
