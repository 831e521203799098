"""What a user of Lightning meets: the module, the data and the checkpoints with a Trainer of one's
own, and Lightning's loggers beside the log of a run."""

import csv
from dataclasses import replace

import lightning
import pytest
import torch
from conftest import calibration
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.profilers import Profiler
from safetensors.torch import load_file
from test_train import rows_of, trained

import lmscaling
from lmscaling.train.checkpoint import SafetensorsIO
from lmscaling.train.journal import Mirror
from lmscaling.train.run import train


def trainer(updates, **more):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(max_steps=updates, accelerator="cpu", **{**quiet, **more})


def weights(module):
    return {name: p.detach() for name, p in module.model.named_parameters()}


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_ones_own_trains_a_cell_as_a_run_does(cell, tokens, tmp_path):
    _, log = trained(tmp_path, cell, tokens)
    module = lmscaling.Training(cell)
    text = lmscaling.Text(cell, tokens, micro_batch=4)
    made = trainer(4, enable_checkpointing=False)
    made.fit(module, datamodule=text)
    assert made.global_step == 4
    expected = load_file(log.with_name("model.safetensors"))
    torch.testing.assert_close(weights(module), expected, rtol=0, atol=1e-6)
    (scores,) = made.validate(module, datamodule=text, verbose=False)
    last = rows_of(log, "validation")[-1]
    assert scores["val_loss"] == pytest.approx(last["val_loss"], rel=1e-5)


class Watched(Profiler):
    """Knows what becomes of a number that is too small for fast arithmetic, in each part of a
    step."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def start(self, action_name):
        self.seen[action_name] = float(torch.tensor(1e-30) * 1e-10)

    def stop(self, action_name):
        pass


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the processor has no such mode")
def test_numbers_below_the_normal_ones_are_zero_while_a_run_trains_and_not_afterwards(
    cell, tokens, tmp_path
):
    (tmp_path / "cell.json").write_text(cell.to_json())
    scratch, record = tmp_path / "scratch" / cell.run, tmp_path / "runs" / cell.run / "run.json"
    watched, chosen = Watched(), calibration(tmp_path, cell)
    train(tmp_path / "cell.json", tokens, scratch, record, chosen, profiler=watched)
    assert {*watched.seen.values()} == {0.0}
    assert any("backward" in action for action in watched.seen)
    assert torch.tensor(1e-30) * 1e-10 > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_lightnings_own_checkpoints_as_safetensors_go_on_bit_for_bit(cell, tokens, tmp_path, kind):
    cell = replace(cell, optimizer=replace(cell.optimizer, kind=kind))

    def fit(updates, path=None, **more):
        module = lmscaling.Training(cell)
        made = trainer(updates, plugins=[SafetensorsIO()], **more)
        made.fit(module, datamodule=lmscaling.Text(cell, tokens), ckpt_path=path)
        return weights(module)

    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3)
    fit(3, callbacks=[saving])
    (path,) = tmp_path.glob("*.ckpt")
    alone, again = fit(7, enable_checkpointing=False), fit(7, path, enable_checkpointing=False)
    assert all(torch.equal(again[name], alone[name]) for name in alone)


def test_a_logger_gets_the_rows_of_a_run_and_one_that_fails_stops_nothing(
    cell, tokens, tmp_path, capfd
):
    (tmp_path / "cell.json").write_text(cell.to_json())
    scratch, record = tmp_path / "scratch" / cell.run, tmp_path / "runs" / cell.run / "run.json"
    wanted = {"csv": {}, "tensorboard": {"save_dir": 7}}
    train(
        tmp_path / "cell.json", tokens, scratch, record, calibration(tmp_path, cell),
        loggers=wanted,
    )  # fmt: skip
    with (tmp_path / "loggers" / cell.run / "version_1" / "metrics.csv").open() as file:
        found = [row for row in csv.DictReader(file) if row["train_loss"]]
    rows = rows_of(record.with_name("log.jsonl"), "update")
    assert [float(row["train_loss"]) for row in found] == [row["train_loss"] for row in rows]
    said = capfd.readouterr().err
    assert said.count("logger tensorboard ") == 1
    assert "logger csv" not in said


def test_a_logger_that_fails_at_a_row_gets_no_more(tmp_path, capfd):
    mirror = Mirror({"csv": {"save_dir": tmp_path / "file"}}, tmp_path, "run", 1)
    (tmp_path / "file").write_text("where a folder must be")
    row = replace_row()
    for _ in range(3):
        mirror.write(row)
    mirror.close()
    assert capfd.readouterr().err.count("logger csv ") == 1


def replace_row():
    from lmscaling.records.run import Update

    numbers = dict.fromkeys(["tokens_per_second", "train_seconds", "lr", "budget_fraction"], 1.0)
    return Update(
        attempt=1, update=1, epoch=1, tokens=64, train_loss=1.0, grad_norm=1.0, mfu=None,
        peak_memory_bytes=None, **numbers,
    )  # fmt: skip
