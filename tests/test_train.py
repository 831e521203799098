"""Training: what an update is, what is written down, and when the budget is spent."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import on_ranks
import pytest
import torch
from conftest import ROOT, calibration, refused
from safetensors.torch import load_file

from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.train import budget as budgets
from lmscaling.train.budget import Clock
from lmscaling.train.module import Training
from lmscaling.train.run import train

close = torch.testing.assert_close

PER_EPOCH = 3699 // 64
"""Updates in which the text of these tests is read once."""


@pytest.fixture
def scratch(tmp_path):
    return tmp_path / "scratch" / "run"


@pytest.fixture
def record(tmp_path):
    return tmp_path / "runs" / "run" / "run.json"


def trained(folder, cell, manifest, name=None, stop_after=None, **way):
    """Record and log of a run."""
    folder.mkdir(exist_ok=True)
    path, scratch = folder / "cell.json", folder / "scratch" / (name or cell.run)
    path.write_text(cell.to_json())
    record, chosen = folder / "runs" / scratch.name / "run.json", calibration(folder, cell, **way)
    made = train(path, manifest, scratch, record, chosen, stop_after=stop_after)
    assert made
    return made, record.with_name("log.jsonl")


@pytest.fixture
def run(tokens, tmp_path):
    def own(cell, **way):
        made, log = trained(tmp_path, cell, tokens, "run", **way)
        return made, [json.loads(row) for row in log.open()]

    return own


def plain(cell, stream, updates, loss=GPT.loss):
    """A plain loop without micro-batches: model, x_BT, y_BT and loss of each update, before its
    gradients are clipped."""
    gpt = GPT(cell)
    adamw = optimizer.build(gpt, cell)
    for n in range(1, updates + 1):
        for group in adamw.param_groups:
            rate = cell.rates.rate(n, spent=(n - 1) / updates)
            group["lr"] = rate * group.get("share", 1)
        slab = torch.from_numpy(stream.slab(n, cell.update_tokens).astype("int64"))
        x_BT, y_BT = slab.view(2, -1, cell.context)
        own = loss(gpt, x_BT, y_BT)
        own.backward()
        yield gpt, x_BT, y_BT, own
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), cell.optimizer.clip_norm)
        adamw.step()
        adamw.zero_grad()


def assert_close(log, other, rtol=0.0, atol=1e-6):
    """Two runs have the same losses and norms but for rounding, and weights within the bounds."""
    rows = [[json.loads(row) for row in path.open()] for path in (log, other)]
    for column in ("train_loss", "grad_norm", "val_loss"):
        mine, theirs = ([row[column] for row in made if column in row] for made in rows)
        assert mine == pytest.approx(theirs, rel=1e-5), column
    mine, theirs = (load_file(path.with_name("model.safetensors")) for path in (log, other))
    close(mine, theirs, rtol=rtol, atol=atol)


def on_two_ranks(cell, manifest, tmp_path):
    """The log of a run on two ranks, each with two micro-batches."""
    way = calibration(tmp_path, cell, micro_batch=1)
    return on_ranks.trained(cell, way, manifest, tmp_path / "results")


def rows_of(rows, record):
    rows = map(json.loads, rows.open()) if isinstance(rows, Path) else rows
    return [row for row in rows if row["record"] == record]


def test_a_run_leaves_a_log_and_a_record(run, cell, scratch, record):
    made, rows = run(cell, choice={"chunk": 8})
    assert [r["record"] for r in rows] == [
        "header", "update", "update", "validation", "update", "update", "validation", "end",
    ]  # fmt: skip
    assert (made.status, made.updates, made.tokens, made.attempts) == ("done", 4, 256, 1)
    assert rows[0]["cell"] == made.cell == json.loads(cell.to_json())
    assert rows[0]["run"] == made.run == cell.run
    assert rows[-1]["status"] == "done"
    kept = json.loads(record.read_text())
    assert kept["params"] == GPT(cell).params
    assert kept["calibration"] == made.calibration == rows[0]["calibration"]
    assert made.calibration["choice"] == {"chunk": 8}
    assert not list(scratch.glob("attempt-*"))
    # Shorter than a beat of the ledger: without an entry at the end nothing would be accounted.
    assert made.attempt_seconds >= made.train_seconds > 0
    assert made.lost_seconds == 0
    updates = rows_of(rows, "update")
    assert [(r["update"], r["tokens"], r["lr"]) for r in updates] == [
        (1, 64, 5e-3), (2, 128, 1e-2), (3, 192, 1e-2), (4, 256, 1e-2),
    ]  # fmt: skip
    seconds = [r["train_seconds"] for r in updates]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    validations = [(r["tokens"], r["val_tokens"]) for r in rows_of(rows, "validation")]
    assert validations == [(128, 128), (256, 128)]


@pytest.mark.parametrize("block_tokens", [None, 24])
def test_the_losses_are_those_of_a_plain_loop(run, cell, tokens, block_tokens):
    cell = replace(cell, block_tokens=block_tokens, seed=3)
    _, rows = run(cell)
    order = Order(block_tokens, 3) if block_tokens else None
    made = [*plain(cell, Stream(tokens, "train", order=order), 4)]
    gpt, losses = made[-1][0], [loss.item() for *_, loss in made]
    assert [r["train_loss"] for r in rows_of(rows, "update")] == losses
    tail = torch.from_numpy(Stream(tokens, "validation").read(0, 129).astype("int64"))
    with torch.no_grad():
        final = gpt.loss(tail[:-1].view(8, 16), tail[1:].view(8, 16)).item()
    assert rows_of(rows, "validation")[-1]["val_loss"] == pytest.approx(final, rel=1e-6)


@pytest.mark.parametrize(("kind", "rule"), [
    ("muon", {}), ("adamw", {"width_rule": "mup", "base_width": 2}),
])  # fmt: skip
def test_gradients_are_clipped_and_rates_scheduled_as_in_a_plain_loop(
    run, cell, tokens, kind, rule
):
    settings = replace(cell.optimizer, kind=kind, clip_norm=0.1)
    cell = replace(cell, optimizer=settings, **rule)
    made, rows = run(cell)
    losses = [loss.item() for *_, loss in plain(cell, Stream(tokens, "train"), 4)]
    assert made.updates == 4
    assert [r["train_loss"] for r in rows_of(rows, "update")] == losses


def test_micro_batches_and_recomputing_change_nothing_but_rounding(cell, tokens, tmp_path):
    _, whole = trained(tmp_path / "whole", cell, tokens)
    changes = {"micro_batch": 1, "recompute": True, "choice": {"chunk": 4}}
    made, cut = trained(tmp_path / "cut", cell, tokens, **changes)
    assert made.calibration["micro_batch"] == 1
    assert_close(whole, cut, atol=1e-5)


def test_two_ranks_train_as_one(cell, tokens, tmp_path):
    _, one = trained(tmp_path, cell, tokens)
    assert_close(one, on_two_ranks(cell, tokens, tmp_path))


@pytest.mark.ci
def test_a_job_of_slurm_with_one_task_starts_its_ranks_itself(cell, tokens, tmp_path):
    """Here they are processes that load everything; their losses are those of forks."""
    (tmp_path / "cell.json").write_text(cell.to_json())
    way = calibration(tmp_path, cell, micro_batch=1)
    words = ["on_ranks.py", tmp_path / "cell.json", way, tokens, tmp_path / "own", "2"]
    job = {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}
    subprocess.run(
        [sys.executable, *map(str, words)], check=True, timeout=forked.SECONDS,
        cwd=ROOT / "tests", env=os.environ | {f"SLURM_{name}": job[name] for name in job},
    )  # fmt: skip
    log = tmp_path / "own" / "runs" / cell.run / "log.jsonl"
    own, forks = (rows_of(path, "update") for path in (log, on_two_ranks(cell, tokens, tmp_path)))
    assert [r["train_loss"] for r in own] == [r["train_loss"] for r in forks]


def test_a_budget_in_tokens_ends_the_run(run, cell):
    made, _ = run(replace(cell, budget="200 tokens"))
    assert (made.status, made.updates) == ("done", 4)


@pytest.mark.parametrize("steps", [[1.0], [0.5, 30.0], [7.0, 12.999, 0.001, 5.0]])
def test_a_budget_in_time_ends_within_one_update_whatever_the_clock_says(
    run, cell, monkeypatch, steps
):
    class Erratic(Clock):
        def tick(self):
            self.seconds += steps[len(ticks) % len(steps)]
            ticks.append(self.seconds)
            return self.seconds

    ticks = []
    monkeypatch.setattr(budgets, "Clock", Erratic)
    made, rows = run(replace(cell, budget="20 seconds"))
    seconds = [r["train_seconds"] for r in rows_of(rows, "update")]
    assert made.status == "done"
    assert seconds == ticks
    assert seconds[-2] < 20 <= seconds[-1] == made.train_seconds


@pytest.mark.parametrize(("clock", "counts"), [("wall", True), ("processor", False)])
def test_the_clock_of_the_processor_does_not_count_sleep(run, cell, monkeypatch, clock, counts):
    """While it computes it takes part in both; an update that only waits takes an hour."""
    asleep, update, wall = [0.0], Training.training_step, time.monotonic

    def slow(*given):
        asleep[0] += 3600
        return update(*given)

    monkeypatch.setattr(Training, "training_step", slow)
    monkeypatch.setattr(time, "monotonic", lambda: wall() + asleep[0])
    made, _ = run(replace(cell, clock=clock))
    assert (made.status, made.updates) == ("done", 4)
    assert (made.train_seconds > 4 * 3600) == counts


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_stream_that_ends_is_a_result_after_as_many_epochs_as_the_study_says(
    run, cell, capfd, epochs
):
    made, rows = run(replace(cell, budget="1000 updates", epochs=epochs))
    assert (made.status, made.updates) == ("out_of_tokens", epochs * PER_EPOCH)
    assert made.data["shard"] == 1
    assert "3700" in made.message
    assert (f"read {epochs} times" in made.message) == (epochs > 1)
    assert rows_of(rows, "validation")[-1]["update"] == made.updates
    passed = [r["epoch"] for r in rows_of(rows, "update")]
    assert passed == [n for n in range(1, epochs + 1) for _ in range(PER_EPOCH)]
    warning = capfd.readouterr().err
    assert f"{6 * epochs}% of" in warning or f"{6 * epochs - 1}% of" in warning
    assert "epochs: 18" in warning


def test_a_calibration_that_does_not_fit_is_refused(run, cell, tmp_path):
    for way, value in (({"of": "other"}, "linear-s-ctx16"), ({"micro_batch": 3}, "batch of 3")):
        with refused(UserError, value):
            run(cell, **way)
    with pytest.raises(UserError, match="Abacus"):
        run(cell, device="Abacus")
    assert not any((tmp_path / "scratch").iterdir())
