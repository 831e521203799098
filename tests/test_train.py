"""Training: what an update is, what is written down, and every way a run can end."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import strangers
import torch
from conftest import ROOT, calibration
from safetensors.torch import load_file
from speed_of_python import slowness

from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.records.checks import findings
from lmscaling.records.ledger import Account
from lmscaling.records.run import End, finite, line
from lmscaling.runtime import lock
from lmscaling.train import checked_kernels, loop
from lmscaling.train.clock import Clock
from lmscaling.train.module import Training
from lmscaling.train.outcome import run_record
from lmscaling.train.run import train

MINE = strangers.file(more=strangers.COUNTED)
"""An attention that somebody brings."""


@pytest.fixture
def places(tmp_path):
    return (
        tmp_path / "cell.json",
        tmp_path / "scratch" / "run",
        tmp_path / "runs" / "run" / "run.json",
    )


@pytest.fixture
def run(tokens, places, tmp_path):
    def trained(cell, manifest=tokens, **way):
        places[0].write_text(cell.to_json())
        made = train(places[0], manifest, places[1], places[2], calibration(tmp_path, cell, **way))
        rows = [json.loads(row) for row in places[2].with_name("log.jsonl").open()]
        return made, rows

    return trained


def on_two_ranks(cell, manifest, tmp_path):
    """Rows of the log of a run on two ranks, each with two micro-batches."""
    (tmp_path / "two.json").write_text(cell.to_json())
    way = calibration(tmp_path, cell, micro_batch=1)
    command = [sys.executable, ROOT / "tests" / "on_ranks.py", tmp_path / "two.json", way]
    subprocess.run([*command, manifest, tmp_path / "results"], check=True, timeout=120 * slowness())
    log = tmp_path / "results" / "runs" / cell.run / "log.jsonl"
    return [json.loads(row) for row in log.open()]


def rows_of(rows, record):
    return [row for row in rows if row["record"] == record]


def test_a_run_leaves_a_log_and_a_record(run, cell, places):
    made, rows = run(cell)
    assert [r["record"] for r in rows] == [
        "header", "update", "update", "validation", "update", "update", "validation", "end",
    ]  # fmt: skip
    assert (made.status, made.updates, made.tokens, made.attempts) == ("done", 4, 256, 1)
    assert rows[0]["cell"] == made.cell == json.loads(cell.to_json())
    assert rows[0]["run"] == made.run == cell.run
    assert rows[-1]["status"] == "done"
    assert json.loads(places[2].read_text())["params"] == GPT(cell).params
    assert not list(places[1].glob("attempt-*"))


def test_the_account_of_a_run_reaches_its_end(run, cell):
    # Shorter than a beat of the ledger: without an entry at the end nothing would be accounted.
    made, _ = run(replace(cell, budget="40 updates"))
    assert made.attempt_seconds >= made.train_seconds > 0
    assert made.lost_seconds == 0


def test_rows_say_updates_tokens_time_rate_and_validation_tokens(run, cell):
    _, rows = run(cell)
    updates = rows_of(rows, "update")
    assert [r["update"] for r in updates] == [1, 2, 3, 4]
    assert [r["tokens"] for r in updates] == [64, 128, 192, 256]
    assert [r["lr"] for r in updates] == [5e-3, 1e-2, 1e-2, 1e-2]
    seconds = [r["train_seconds"] for r in updates]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert [(r["tokens"], r["val_tokens"]) for r in rows_of(rows, "validation")] == [
        (128, 128), (256, 128),
    ]  # fmt: skip


@pytest.mark.parametrize("block_tokens", [None, 24])
def test_the_losses_are_those_of_a_plain_loop(run, cell, tokens, block_tokens):
    cell = replace(cell, block_tokens=block_tokens, seed=3)
    _, rows = run(cell)
    order = Order(block_tokens, 3) if block_tokens else None
    stream, gpt = Stream(tokens, "train", order=order), GPT(cell)
    adamw, losses = optimizer.build(gpt, cell), []
    for update in range(1, 5):
        for group in adamw.param_groups:
            group["lr"] = cell.rates.rate(update, spent=(update - 1) / 4)
        slab = torch.from_numpy(stream.slab(update, 64).astype("int64"))
        loss = gpt.loss(*slab.view(2, 4, 16))
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        adamw.step()
        losses.append(loss.item())
    assert [r["train_loss"] for r in rows_of(rows, "update")] == pytest.approx(losses, rel=1e-6)
    tail = torch.from_numpy(Stream(tokens, "validation").read(0, 129).astype("int64"))
    with torch.no_grad():
        final = gpt.loss(tail[:-1].view(8, 16), tail[1:].view(8, 16)).item()
    assert rows_of(rows, "validation")[-1]["val_loss"] == pytest.approx(final, rel=1e-6)


def test_micro_batches_and_recomputing_change_nothing_but_rounding(run, cell, places):
    _, whole = run(cell)
    shutil.rmtree(places[1])  # else the finished run would only be recorded again
    places[2].unlink()
    made, cut = run(cell, micro_batch=1, recompute=True, choice={"chunk": 4})
    assert made.calibration["micro_batch"] == 1
    for column in ("train_loss", "grad_norm"):
        one, other = ([r[column] for r in rows_of(rows, "update")] for rows in (whole, cut))
        assert one == pytest.approx(other, rel=1e-5)


def test_two_ranks_train_as_one(run, cell, tokens, tmp_path, monkeypatch, places):
    _, rows = run(cell)
    # A Slurm job has one task, which starts the ranks.
    for name, value in {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    both = on_two_ranks(cell, tokens, tmp_path)
    for record, column in (
        ("update", "train_loss"),
        ("update", "grad_norm"),
        ("validation", "val_loss"),
    ):
        alone, shared = ([r[column] for r in rows_of(made, record)] for made in (rows, both))
        assert alone == pytest.approx(shared, rel=1e-5), column
    mine, theirs = (
        load_file(folder / "model.safetensors")
        for folder in (places[2].parent, tmp_path / "results" / "runs" / cell.run)
    )
    for name, tensor in mine.items():
        assert (tensor - theirs[name]).abs().max() < 1e-6, name


def test_a_budget_in_tokens_or_time_ends_the_run(run, cell, places):
    made, _ = run(replace(cell, budget="200 tokens"))
    assert (made.status, made.updates) == ("done", 4)
    places[2].unlink()
    made, _ = run(replace(cell, budget="0.001 seconds"))
    assert (made.status, made.updates) == ("done", 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_budget_in_time_ends_within_one_update_whatever_the_clock_says(
    run, cell, monkeypatch, seed
):
    draw = random.Random(seed)

    class Erratic(Clock):
        def tick(self):
            self.seconds += draw.choice([0.01, 1.0, draw.expovariate(1.0)])
            return self.seconds

    monkeypatch.setattr(loop, "Clock", Erratic)
    made, rows = run(replace(cell, budget="20 seconds"))
    seconds = [r["train_seconds"] for r in rows_of(rows, "update")]
    assert made.status == "done"
    assert seconds[-2] < 20 <= seconds[-1] == made.train_seconds


def test_the_clock_of_the_processor_does_not_count_sleep(run, cell, places, monkeypatch):
    update = Training.update

    def slow(*arguments):
        time.sleep(0.5)
        return update(*arguments)

    monkeypatch.setattr(Training, "update", slow)
    assert run(cell)[0].train_seconds > 2
    places[2].unlink()
    made, _ = run(replace(cell, clock="processor"))
    assert (made.status, made.updates) == ("done", 4)
    assert 0 < made.train_seconds < 1.5


def test_a_stream_that_ends_is_a_result(run, cell, capfd):
    made, rows = run(replace(cell, budget="1000 updates"))
    assert (made.status, made.updates) == ("out_of_tokens", 3699 // 64)
    assert made.data["shard"] == 1
    assert made.message == "the stream has 3700 tokens"
    assert rows_of(rows, "validation")[-1]["update"] == made.updates
    assert {r["epoch"] for r in rows_of(rows, "update")} == {1}
    warning = capfd.readouterr().err
    assert "end at 6% of the budget (out_of_tokens); write epochs: 18 to use all of it" in warning


def test_only_a_study_that_says_so_reads_its_data_again(run, cell):
    made, rows = run(replace(cell, budget="1000 updates", epochs=2))
    per_epoch = 3699 // 64
    assert (made.status, made.updates) == ("out_of_tokens", 2 * per_epoch)
    assert made.message == "the stream has 3700 tokens, read 2 times"
    epochs = [r["epoch"] for r in rows_of(rows, "update")]
    assert epochs == [1] * per_epoch + [2] * per_epoch


def test_the_second_epoch_is_the_first_again(tokens):
    stream = Stream(tokens, "train")
    per_epoch = stream.updates(64)
    assert (stream.slab(per_epoch + 3, 64) == stream.slab(3, 64)).all()
    assert [stream.epoch(u, 64) for u in (1, per_epoch, per_epoch + 1)] == [1, 1, 2]


def test_a_calibration_of_another_device_or_cell_is_refused(run, cell, tmp_path):
    with pytest.raises(UserError, match=r"was measured on Abacus and this machine has .* delete"):
        run(cell, device="Abacus")
    with pytest.raises(UserError, match="belongs to other; the cell needs linear-s-ctx16"):
        run(cell, of="other")
    with pytest.raises(UserError, match="micro-batch of 3, which does not divide the 4 sequences"):
        run(cell, micro_batch=3)
    assert not (tmp_path / "scratch").exists()


def test_the_calibration_is_copied_whole_into_log_and_record(run, cell, places):
    made, rows = run(cell, choice={"chunk": 8})
    assert made.calibration == rows[0]["calibration"]
    assert made.calibration["choice"] == {"chunk": 8}
    assert json.loads(places[2].read_text())["calibration"] == made.calibration


def test_a_world_of_another_size_is_refused(run, cell, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(UserError, match="WORLD_SIZE is 8, and train starts the 1 ranks"):
        run(cell)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun does
    with pytest.raises(UserError, match="start train once and without torchrun"):
        run(cell)


def test_a_loss_that_is_no_number_is_a_result_and_valid_json(run, cell, monkeypatch):
    plain = GPT.loss

    def explode(self, x, y):
        return plain(self, x, y) * (float("nan") if self.training else 1)

    monkeypatch.setattr(GPT, "loss", explode)
    made, rows = run(cell)
    assert (made.status, made.updates) == ("diverged", 1)
    assert "update 1 is nan" in made.message
    assert rows_of(rows, "update")[0]["train_loss"] is None


def test_a_bug_leaves_no_record(run, cell, monkeypatch, places):
    def bug(*_):
        raise RuntimeError("bug")

    monkeypatch.setattr(GPT, "loss", bug)
    with pytest.raises(RuntimeError, match="bug"):
        run(cell)
    assert not places[2].exists()
    assert len(list(places[1].glob("attempt-*.jsonl"))) == 1


REFUSED = [
    ({"gpus": 64}, "needs 64 gpus on one node and this node has"),
    ({"update_tokens": 2**20}, "update_tokens is 1048576 and the training stream has 3700 tokens"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_what_cannot_run_is_refused_before_anything_is_written(run, cell, change, sentence, places):
    with pytest.raises(UserError, match=sentence):
        run(replace(cell, **change))
    assert not places[1].exists()
    assert not places[2].parent.exists()


def test_too_little_validation_text_says_how_much_there_is(run, cell):
    much = replace(cell.validation, tokens=4096)
    with pytest.raises(
        UserError, match="the validation stream has 1000 tokens; lower it to at most 992 or"
    ):
        run(replace(cell, validation=much))


def test_a_late_job_of_a_finished_run_ends_with_success_and_touches_nothing(
    run, cell, places, capfd
):
    first = run(cell)
    before = places[2].read_bytes(), places[2].stat().st_mtime_ns
    shutil.rmtree(places[1])
    assert run(cell) == first
    assert (places[2].read_bytes(), places[2].stat().st_mtime_ns) == before
    assert f"run {cell.run} had ended: {places[2]} stays as it is" in capfd.readouterr().err
    assert not places[1].exists()


def test_a_damaged_record_is_written_again_from_its_copy_or_named(run, cell, places, capfd):
    run(cell)
    before = places[2].read_bytes()
    places[2].write_bytes(b"")
    run(cell)
    assert places[2].read_bytes() == before
    assert "is written again" in capfd.readouterr().err
    places[2].write_bytes(b"")
    (places[1] / "run.json").unlink()
    with pytest.raises(UserError, match=f"run record {places[2]} .*reset {places[2].parent.name}"):
        run(cell)


def test_a_finished_run_whose_record_was_taken_away_writes_it_again(run, cell, places, capfd):
    run(cell)
    before = places[2].read_bytes()
    places[2].unlink()
    run(cell)
    assert places[2].read_bytes() == before
    assert "is written again" in capfd.readouterr().err
    places[2].unlink()
    places[2].with_name("log.jsonl").unlink()
    run(cell)
    assert places[2].read_bytes() != before  # nothing is left of it: it is trained anew


def test_a_run_that_ended_while_another_waited_for_it_is_not_trained_again(
    run, cell, places, monkeypatch
):
    run(cell)
    before = places[2].read_bytes()
    places[2].rename(places[2].with_name("aside"))
    (places[1] / "run.json").unlink()
    plain = lock.hold

    def late(folder, activity):
        places[2].with_name("aside").rename(places[2])
        return plain(folder, activity)

    monkeypatch.setattr(lock, "hold", late)
    run(cell)
    assert places[2].read_bytes() == before


def test_two_processes_never_train_one_run(run, cell, places):
    with (
        lock.hold(places[1], ""),
        pytest.raises(UserError, match=f"is being trained by process {os.getpid()} on"),
    ):
        run(cell)
    assert not list(places[1].glob("attempt-*"))


def test_productive_time_leaves_out_what_is_bracketed():
    times = iter([0.0, 100.0, 103.0, 104.0, 109.0, 110.0])
    clock = Clock(now=lambda: next(times))
    clock.start()  # 100
    assert clock.tick() == 3.0  # 103
    with clock.excluded():  # 104 to 109
        pass
    assert clock.tick() == 5.0  # 110: seven seconds less five


@pytest.mark.parametrize(
    ("text", "spent"),
    [
        ("2 hours", {"seconds": 1800}),
        ("2 minutes", {"seconds": 30}),
        ("20 updates", {"updates": 5}),
        ("1e3 tokens", {"tokens": 250}),
    ],
)
def test_a_budget_counts_its_own_unit(text, spent):
    nothing = {"updates": 0, "tokens": 0, "seconds": 0.0}
    assert parse_budget(text).fraction(**(nothing | spent)) == 0.25


def test_a_row_is_one_line_of_strict_json():
    end = End(attempt=1, update=2, status="done", message="a\nb", ended="")
    assert line(end).count(b"\n") == 1
    assert finite(float("inf")) is None


def test_gpu_hours_are_those_of_all_gpus_in_all_attempts(cell, tmp_path):
    spent = Account(attempt_seconds=5400.0, lost_seconds=60.0)
    module: Any = SimpleNamespace(cell=replace(cell, gpus=4), reached=lambda: (0, "id"), kernels="")
    clock: Any = SimpleNamespace(clock=SimpleNamespace(seconds=5000.0), val_loss=3.0)
    ledger: Any = SimpleNamespace(account=lambda: spent, path=tmp_path / "ledger")
    end = End(attempt=2, update=4, status="done", message="", ended="")
    rest: dict[str, Any] = dict.fromkeys(
        ["run", "cell", "params", "params_total", "flops_per_token", "calibration",
         "environment", "started"]
    )  # fmt: skip
    made = run_record(module, clock, ledger, end, rest)
    assert (made.gpu_hours, made.attempts, made.tokens) == (6.0, 2, 4 * 64)


def test_an_attempt_stops_so_many_seconds_after_its_process_began(cell, places, tokens, tmp_path):
    places[0].write_text(cell.to_json())
    way = calibration(tmp_path, cell)
    with pytest.raises(SystemExit) as stopped:
        train(places[0], tokens, places[1], places[2], way, stop_after=-1.0)
    assert stopped.value.code == TRY_AGAIN
    rows = (places[1] / "attempt-001.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["message"] == "the time limit of the job is near"
    made = train(places[0], tokens, places[1], places[2], way, stop_after=1e6)
    assert made
    assert (made.status, made.attempts) == ("done", 2)


def test_an_attention_that_looks_ahead_is_refused_before_anything_is_written(
    run, cell, places, package
):
    package.write("mine", strangers.file().replace("triu(1)", "triu(2)"))
    with pytest.raises(UserError, match=r"^attention mine looks ahead: its output at "):
        run(replace(cell, attention="mine"))
    assert not places[2].parent.exists()
    assert [path.name for path in places[1].iterdir()] == []
    assert not (places[1].parents[1] / "checks").exists()


def test_an_attention_is_checked_before_its_first_cell_only(run, cell, places, package):
    package.write("mine", MINE)
    own = replace(cell, attention="mine")
    run(own)
    checks = places[1].parents[1] / "checks" / f"{own.check}.json"
    first = findings(checks)
    assert [(found.way, found.key["d_model"]) for found in first] == [("mine", 8)]
    shutil.rmtree(places[2].parent)
    shutil.rmtree(places[1])
    run(replace(own, seed=1, context=32))
    assert findings(checks) == first
    package.write("mine", f"# A comment.\n{MINE}")
    checked_kernels.require(own, places[1])
    assert findings(checks) == first
    package.write("mine", MINE.replace("-0.5", "-0.4"))
    checked_kernels.require(own, places[1])
    assert len(findings(checks)) == 2


def test_a_run_keeps_the_source_of_its_attention(run, cell, places, package):
    package.write("mine", MINE)
    own = replace(cell, attention="mine")
    made, rows = run(own)
    assert made.code == rows[0]["code"] == code.present(own) != code.present(cell)
    assert made.code_differs is rows[0]["code_differs"] is None, "the copy is not in git"
    kept = places[1].parents[1] / "code" / f"{made.code}.json"
    assert json.loads(kept.read_text()) == {"attention/mine.py": MINE}


def test_a_run_that_goes_on_with_other_code_names_both(run, cell, places, tokens, package):
    package.write("mine", MINE)
    own = replace(cell, attention="mine")
    places[0].write_text(own.to_json())
    way = calibration(places[0].parent, own)
    with pytest.raises(SystemExit):
        train(places[0], tokens, places[1], places[2], way, stop_after=-1.0)
    first = code.present(own)
    package.write("mine", MINE.replace("-0.5", "-0.4"))
    made = train(places[0], tokens, places[1], places[2], way)
    assert made
    assert made.code == f"{first}+{code.present(own)}"
