"""Faults are not results: an attempt that fails leaves its checkpoints, and the run goes on."""

import json
import os
import threading
from dataclasses import replace

import forked
import pytest
import torch
from conftest import calibration, refused
from test_train import rows_of

from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.model import finished_run
from lmscaling.records import ledger
from lmscaling.records.ledger import entries
from lmscaling.train import checkpoint
from lmscaling.train.module import Training
from lmscaling.train.run import train

ECC = RuntimeError("CUDA error: uncorrectable ECC error encountered")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nmore")
BUG = KeyError("bug")


class Machine:
    """A run in a folder, whose updates raise what a test says."""

    def __init__(self, folder, cell, manifest):
        self.scratch, self.record = folder / "scratch" / cell.run, folder / "runs" / cell.run
        self.errors = {}
        folder.mkdir(exist_ok=True)
        (folder / "cell.json").write_text(cell.to_json())
        self.places = folder / "cell.json", manifest, self.scratch, self.record / "run.json"
        self.way = calibration(folder, cell)

    def attempt(self, **errors):
        """Train; ``u3=error`` raises an error in the update after the first three."""
        self.errors = {int(name[1:]): error for name, error in errors.items()}
        return train(*self.places, self.way)

    def fails(self, **errors):
        with pytest.raises((UserError, KeyError, OSError)) as failure:
            self.attempt(**errors)
        return str(failure.value)

    @property
    def entries(self):
        return entries(self.scratch / "ledger.jsonl")

    @property
    def saved(self):
        return [int(path.name[11:20]) for path in checkpoint.paths(self.scratch)]


@pytest.fixture
def machine(cell, tokens, tmp_path, monkeypatch):
    made = Machine(tmp_path, replace(cell, budget="14 updates"), tokens)
    plain = Training.training_step

    def update(self, slab, batch_idx):
        if error := made.errors.get(self.updates):
            raise error
        return plain(self, slab, batch_idx)

    monkeypatch.setattr(Training, "training_step", update)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    return made


MACHINE_FAULTS = [
    (ECC, "device"),
    (RuntimeError("NCCL error: unhandled system error, ncclSystemError"), "network"),
    (OSError(122, os.strerror(122)), "disk"),
]


@pytest.mark.parametrize(("error", "fault"), MACHINE_FAULTS)
def test_a_fault_of_the_machine_is_never_a_result_however_often_it_comes(
    machine, monkeypatch, error, fault
):
    machine.fails(u6=BUG)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 900.0)
    for _ in range(3):
        assert machine.fails(u8=error).endswith("after update 6")
    assert not machine.record.exists()
    assert machine.saved == [6, 5]
    last = machine.entries[-1]
    assert (last.kind, last.fault, last.update) == ("failed", fault, 8)
    assert last.host
    run = machine.attempt()
    assert (run.status, run.updates, run.attempts) == ("done", 14, 5)


def test_weights_after_faults_are_those_without(machine, cell, tokens, tmp_path):
    for failure in ({"u3": ECC}, {"u3": FULL}, {"u9": ECC}):
        machine.fails(**failure)
    machine.attempt()
    (tmp_path / "plain").mkdir()
    plain = Machine(tmp_path / "plain", replace(cell, budget="14 updates"), tokens)
    plain.attempt()
    mine, theirs = (each.record / "model.safetensors" for each in (machine, plain))
    assert mine.read_bytes() == theirs.read_bytes()


def test_memory_that_ends_after_training_has_begun_holds_the_run(machine, monkeypatch):
    machine.fails(u9=BUG)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 900.0)
    assert "20 GiB; " in machine.fails(u9=FULL)  # the first line alone
    machine.fails(u9=FULL)
    assert machine.saved == [9, 8]
    said = machine.fails()
    assert "update 9: 2 attempts" in said
    assert f"reset --go-on {machine.scratch.name}," in said
    ledger.free(machine.scratch)
    run = machine.attempt()
    assert (run.status, run.updates) == ("done", 14)


def test_a_model_that_does_not_fit_is_a_result_after_two_attempts_alone_on_the_device(
    machine, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("lmscaling.runtime.faults.is_in_use", lambda device: True)
        for _ in range(3):
            assert "other processes" in machine.fails(u0=FULL)
    assert machine.entries[-1].fault == "device"
    assert "out of memory" in machine.fails(u0=FULL)
    assert not machine.record.exists()
    run = machine.attempt(u0=FULL)
    assert (run.status, run.updates) == ("oom", 0)
    assert run.message == str(FULL).splitlines()[0]


def test_a_bug_is_shown_with_its_traceback_and_held_after_two_attempts(machine):
    for _ in range(2):
        assert "bug" in machine.fails(u0=BUG)
    assert not machine.record.exists()
    said = machine.fails()
    assert "update 0: 2 attempts" in said
    assert "KeyError" in said
    assert len(list(machine.scratch.glob("attempt-*"))) == 2


def test_a_run_that_is_killed_again_and_again_is_held_and_its_log_says_so(machine):
    machine.scratch.mkdir(parents=True)
    for attempt in range(1, 6):
        begin = ledger.Entry(
            kind="begin", attempt=attempt, update=0, train_seconds=0.0, attempt_seconds=0.0
        )
        ledger.append(machine.scratch / ledger.NAME, begin)
        (machine.scratch / f"attempt-{attempt:03d}.jsonl").write_bytes(b'{"record": "hea')
    log = machine.scratch / "attempt-005.jsonl"
    assert "5 attempts" in machine.fails()
    last = log.read_text().splitlines()[-1]
    assert json.loads(last)["status"] == "held"
    machine.fails()
    assert log.read_text().splitlines()[-1] == last


def test_a_disk_that_is_full_when_a_checkpoint_is_written_holds_the_run(machine, monkeypatch):
    plain = checkpoint.tensor_file.write

    def full(path, *_, **__):
        if path.name == "checkpoint-000000010.safetensors":
            raise OSError(28, os.strerror(28))
        return plain(path, *_, **__)

    monkeypatch.setattr(checkpoint.tensor_file, "write", full)
    assert os.strerror(28) in machine.fails()
    assert machine.entries[-1].fault == "disk"
    assert machine.saved == [9, 8]
    monkeypatch.setattr(checkpoint.tensor_file, "write", plain)
    assert machine.attempt().updates == 14


def flipped(path, at, bit=64):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def test_a_flipped_bit_is_named_and_the_checkpoint_before_is_used(machine, capfd):
    machine.fails(u12=ECC)
    newest, _ = checkpoint.paths(machine.scratch)
    flipped(newest, -2)  # an exponent: it can still be loaded
    run = machine.attempt()
    assert run.updates == 14
    said = capfd.readouterr().err
    assert newest.name in said
    assert "SHA-256" in said
    headers = rows_of(machine.record / "log.jsonl", "header")
    assert [r["start_update"] for r in headers] == [0, 11]
    flipped(machine.record / "model.safetensors", -2)
    with refused(UserError, "model.safetensors", "lmscaling reset"):
        finished_run.model(machine.record)


def test_a_flipped_bit_of_a_calibration_or_a_record_is_named_with_its_remedy(tmp_path):
    path = tmp_path / "run.json"
    write_record(path, {"loss": 3.25})
    assert read_json(path, "record") == {"loss": 3.25}
    flipped(path, path.read_bytes().index(b"5"), bit=1)
    with refused(UserError, "run.json", "record_sha"):
        read_json(path, "record")


@pytest.mark.race
def test_the_loop_waits_for_the_copy_of_a_checkpoint_and_not_for_its_file(tmp_path, monkeypatch):
    plain, served = checkpoint.tensor_file.write, threading.Event()

    def slow(path, tensors, **metadata):
        assert served.wait(forked.SECONDS)
        plain(path, tensors, **metadata)

    monkeypatch.setattr(checkpoint.tensor_file, "write", slow)
    weight = torch.randn(20, 40)
    path, io, before = tmp_path / "c.safetensors", checkpoint.SafetensorsIO(), weight.clone()
    io.save_checkpoint({"state_dict": {"weight": weight}}, path)
    assert not path.exists()
    weight.zero_()  # training goes on, and changes nothing in the file
    served.set()
    io.wait()
    assert torch.equal(io.load_checkpoint(path)["state_dict"]["weight"], before)


def poisoned(monkeypatch, times):
    """Let one weight be no number before update 10, so many times."""
    plain, left = Training.training_step, [None] * times

    def update(self, slab, batch_idx):
        if self.updates == 9 and left:
            left.pop()
            with torch.no_grad():
                next(self.model.parameters())[0].fill_(float("nan"))
        return plain(self, slab, batch_idx)

    monkeypatch.setattr(Training, "training_step", update)


def test_a_loss_that_is_no_number_is_a_result_only_if_it_repeats(
    machine, cell, tokens, tmp_path, monkeypatch
):
    calm = Machine(tmp_path / "calm", replace(cell, budget="14 updates"), tokens)
    assert calm.attempt()
    poisoned(monkeypatch, 1)  # as a flipped bit of a GPU's memory
    made = machine.attempt()
    assert made
    assert (made.status, made.updates, made.attempts) == ("done", 14, 2)
    weights = [m.record.joinpath("model.safetensors").read_bytes() for m in (calm, machine)]
    assert weights[0] == weights[1]
    true = Machine(tmp_path / "true", replace(cell, budget="14 updates"), tokens)
    poisoned(monkeypatch, 99)
    made = true.attempt()
    assert made
    assert (made.status, made.updates, made.attempts) == ("diverged", 10, 2)
