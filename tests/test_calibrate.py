"""Calibration: it measures real work, stops where memory ends, and picks the fastest way."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import calibration

from lmscaling.attention import load
from lmscaling.config.calibration import Calibration
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.model.gpt import GPT
from lmscaling.plan import estimate
from lmscaling.runtime.environment import processor
from lmscaling.train import calibrate
from lmscaling.train.module import prepared


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(calibrate, "TRIAL_SECONDS", 0.0)


@pytest.fixture
def places(cell, tmp_path):
    (tmp_path / "cell.json").write_text(cell.to_json())
    return tmp_path / "cell.json", tmp_path / "out" / "calibration.json"


def test_it_measures_a_cell_and_writes_what_training_reads(cell, places):
    result = calibrate.calibrate(*places)
    assert calibrate.read(places[1], cell) == result
    assert (result.of, result.device, result.measured) == (
        cell.calibration,
        processor(),
        True,
    )
    assert estimate.sequences(cell) % result.micro_batch == 0
    least, most = result.update_seconds_range or (0, 0)
    assert 0 < least <= (result.update_seconds or 0) <= most
    tried = {(t.micro_batch, t.choice["chunk"]) for t in result.trials}
    assert {chunk for _, chunk in tried} == {64, 32, 128, 256}
    assert {1, 2} <= {size for size, _ in tried}
    assert all(t.repeats >= 5 for t in result.trials)


class Slow:
    """Stands in for the work: so many seconds a micro-batch, memory for so many sequences."""

    def __init__(self, seconds, fitting, monkeypatch):
        self.now, self.seconds, self.fitting = 0.0, seconds, fitting
        monkeypatch.setattr(calibrate.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(calibrate._Bench, "_forward_backward", lambda b, n: self.work(b, n))
        monkeypatch.setattr(calibrate._Bench, "_update", lambda b: self.wait(1.0))

    def wait(self, seconds):
        self.now += seconds

    def work(self, bench, size):
        if size > self.fitting[bench.gpt.recompute]:
            raise torch.OutOfMemoryError("full")
        tuned = [getattr(bench.gpt.blocks[0].attention, name) for name in bench.tunable]
        self.wait(self.seconds(size, *tuned))


def test_it_takes_the_fastest_micro_batch_and_the_smaller_of_equals(places, monkeypatch):
    Slow(lambda size, chunk: 0.1 + 0.1 * size, {False: 99, True: 99}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert (result.micro_batch, result.recompute) == (4, False)
    assert result.update_seconds == pytest.approx(0.5 + 1.0)
    Slow(lambda size, chunk: 0.1 * size, {False: 99, True: 99}, monkeypatch)
    assert calibrate.calibrate(*places).micro_batch == 1


def test_it_goes_on_after_a_size_that_is_no_faster(cell, places, monkeypatch):
    softmax(cell, places)
    Slow(lambda size: {1: 1.0, 2: 2.0, 4: 2.0}[size], {False: 99, True: 99}, monkeypatch)
    assert calibrate.calibrate(*places).micro_batch == 4


def test_it_takes_the_fastest_chunk(places, monkeypatch):
    Slow(lambda size, chunk: size * abs(chunk - 128) + size, {False: 99, True: 99}, monkeypatch)
    assert calibrate.calibrate(*places).choice == {"chunk": 128}


def softmax(cell, places):
    places[0].write_text(replace(cell, attention="softmax").to_json())


def test_it_takes_the_faster_back_end_where_there_are_two(cell, places, monkeypatch):
    softmax(cell, places)
    # Two there are on a GPU only.
    tunable = load("softmax").tunable
    monkeypatch.setattr(load("softmax"), "tunable", lambda self, _: tunable(self, "cuda"))
    Slow(lambda n, name: n * {"flash": 2.0, "cudnn": 1.0}[name], {False: 99, True: 99}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert result.choice == {"implementation": "cudnn"}
    assert [t.choice["implementation"] for t in result.trials[:2]] == ["flash", "cudnn"]
    assert calibrate.read(places[1], replace(cell, attention="softmax")) == result
    gpt = prepared(replace(cell, attention="softmax"), result)
    assert [getattr(block.attention, "implementation", None) for block in gpt.blocks] == ["cudnn"]


def test_nothing_is_tried_twice_where_nothing_is_to_choose(cell, places, monkeypatch):
    softmax(cell, places)
    Slow(lambda size: float(size), {False: 99, True: 99}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert result.choice == {}
    assert [t.micro_batch for t in result.trials] == [1, 2, 4]


def test_it_tries_nothing_larger_than_what_did_not_fit(cell, places, monkeypatch):
    softmax(cell, places)
    Slow(lambda size: 0.1, {False: 1, True: 99}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert [(t.micro_batch, t.recompute) for t in result.trials] == [(1, False), (2, False)]


def test_it_stops_where_memory_ends_and_recomputes_only_if_it_must(places, monkeypatch):
    Slow(lambda size, chunk: 0.1, {False: 2, True: 4}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert (result.micro_batch, result.recompute) == (2, False)
    assert [t.micro_batch for t in result.trials if not t.repeats] == [4, 4, 4, 4, 4]
    Slow(lambda size, chunk: 0.1, {False: 0, True: 4}, monkeypatch)
    result = calibrate.calibrate(*places)
    assert (result.micro_batch, result.recompute) == (4, True)
    Slow(lambda size, chunk: 0.1, {False: 0, True: 0}, monkeypatch)
    with pytest.raises(UserError, match="not even one sequence with recomputed blocks fits"):
        calibrate.calibrate(*places)


def test_a_guess_needs_no_measurement(cell, monkeypatch):
    monkeypatch.setattr(GPT, "loss", None)
    result = calibrate.guessed(cell)
    assert (result.measured, result.micro_batch, result.update_seconds) == (False, 4, None)
    assert (result.compiled, result.recompute, result.choice) == (False, False, {})


def test_a_cell_for_gpus_is_not_calibrated_on_a_cpu(cell, tmp_path):
    values = json.loads(cell.to_json()) | {"gpus": 2}
    (tmp_path / "cell.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="trains on GPUs and this machine has none"):
        calibrate.calibrate(tmp_path / "cell.json", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_torn_calibration_is_one_sentence(cell, tmp_path):
    (tmp_path / "c.json").write_text('{"of": "x"')
    with pytest.raises(UserError, match=r"c\.json"):
        calibrate.read(tmp_path / "c.json", cell)
    with pytest.raises(UserError, match="device is missing"):
        checked(Calibration, {"of": "x"}, "calibration")


def test_a_calibration_of_an_older_version_is_one_without_compilation(cell, tmp_path):
    assert not calibrate.read(calibration(tmp_path, cell), cell).compiled
