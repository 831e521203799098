"""Calibration: it measures real work, stops where memory ends, and picks the fastest way."""

import errno
import gc
from dataclasses import replace

import pytest
import strangers
import torch
from conftest import calibration, refused, sentence

from lmscaling.attention import load
from lmscaling.config import code
from lmscaling.config.calibration import Calibration
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model.gpt import GPT
from lmscaling.plan import footprint
from lmscaling.runtime.environment import processor
from lmscaling.train import calibrate, settings
from lmscaling.train.module import Training


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Trials end after their least number of repeats; what exists already is not collected."""
    monkeypatch.setattr(calibrate, "TRIAL_SECONDS", 0.0)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def places(cell, tmp_path):
    (tmp_path / "cell.json").write_text(cell.to_json())
    return tmp_path / "cell.json", tmp_path / "out" / "calibration.json"


def test_it_measures_a_cell_and_writes_what_training_reads(cell, places):
    result = calibrate.calibrate(*places)
    assert settings.read(places[1], cell) == result
    other = settings.nearest(places[1], places[0], replace(cell, context=8))
    assert other.choice == result.choice
    assert (result.of, result.device) == (cell.calibration, processor())
    assert result.measured
    assert result.code == code.present(cell)
    assert footprint.sequences(cell) % result.micro_batch == 0
    least, most = result.update_seconds_range or (0, 0)
    assert 0 < least <= (result.update_seconds or 0) <= most
    assert {t.choice["chunk"] for t in result.trials} == {64, 32, 128, 256}
    assert {t.micro_batch for t in result.trials} >= {1, 2}
    assert all(t.repeats >= 5 for t in result.trials)


class Slow:
    """Stands in for the work: so many seconds a micro-batch, memory for so many sequences."""

    def __init__(self, seconds, monkeypatch, fitting=99, recomputed=99):
        self.now, self.seconds, self.size = 0.0, seconds, 0
        self.fitting = {False: fitting, True: recomputed}
        monkeypatch.setattr(calibrate.clock.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(GPT, "loss", lambda gpt, x_BT, y_BT: self.work(gpt, len(x_BT)))
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: self.wait(1.0))

    def wait(self, seconds):
        self.now += seconds

    def work(self, gpt, size):
        self.size = size
        if size > self.fitting[gpt.recompute]:
            raise torch.OutOfMemoryError("full")
        layer = gpt.blocks[0].attention
        self.wait(self.seconds(size, getattr(layer, "chunk", getattr(layer, "implementation", 0))))
        return gpt.wte.weight.sum()


FASTEST = {
    "the larger is faster": ("linear", lambda size, _: 0.1 + 0.1 * size, 99, (4, False), 0),
    "the smaller of equals": ("linear", lambda n, c: n * (1 + abs(c - 128)), 99, (1, False), 0),
    "after one that is no faster": ("softmax", lambda n, _: 2.0 - (n == 1), 99, (4, False), 0),
    "by a hundredth only": ("softmax", lambda n, _: n * (1 - 0.004 * (n > 1)), 99, (1, False), 0),
    "memory ends": ("linear", lambda *_: 0.1, 2, (2, False), 5),
    "memory only if recomputed": ("linear", lambda *_: 0.1, 0, (4, True), 5),
    "nothing larger than what does not fit": ("softmax", lambda *_: 0.1, 1, (1, False), 1),
}


@pytest.mark.parametrize("case", FASTEST)
def test_it_takes_the_fastest_micro_batch_that_fits(cell, places, monkeypatch, case):
    attention, seconds, fitting, expected, n_failed = FASTEST[case]
    places[0].write_text(replace(cell, attention=attention).to_json())
    Slow(seconds, monkeypatch, fitting)
    result = calibrate.calibrate(*places)
    assert (result.micro_batch, result.recompute) == expected
    size = result.micro_batch
    chunk = min((64, 32, 128, 256), key=lambda chunk: seconds(4, chunk))
    assert result.update_seconds == pytest.approx(4 // size * seconds(size, chunk) + 1.0)
    assert result.choice == ({"chunk": chunk} if attention == "linear" else {})
    assert len([t for t in result.trials if not t.repeats]) == n_failed
    if attention == "softmax":  # nothing is to choose, so nothing is tried twice
        assert [t.micro_batch for t in result.trials] == ([1, 2] if fitting == 1 else [1, 2, 4])


def test_a_wrong_attention_or_a_cell_for_gpus_is_not_measured(cell, places, package):
    package.write("mine", strangers.file(more=strangers.COUNTED).replace("triu(1)", "triu(2)"))
    places[0].write_text(replace(cell, attention="mine").to_json())
    with refused(UserError, "mine", "looks ahead"):
        calibrate.calibrate(*places)
    places[0].write_text(replace(cell, gpus=2).to_json())
    with refused(UserError, cell.name, "gpus: 0"):
        calibrate.calibrate(*places)
    assert not places[1].exists()


def test_a_calibration_that_exists_stays_for_runs_use_it(places, capfd):
    first = calibrate.calibrate(*places)
    before = places[1].stat().st_ino
    assert calibrate.calibrate(*places) == first
    assert places[1].stat().st_ino == before
    said = capfd.readouterr().err.strip()
    assert str(places[1]) in said
    sentence("calibrate", said)
    places[1].write_text("damaged")
    assert calibrate.calibrate(*places).of == first.of
    assert places[1].read_text() != "damaged"


def test_a_calibration_of_an_older_version_is_read_and_a_torn_one_is_one_sentence(cell, tmp_path):
    """The older one is without compilation, and with a trial that lacked memory."""
    old = {"micro_batch": 4, "recompute": False, "choice": {}, "repeats": 0, "seconds": None}
    trials = [old | {"peak_memory_bytes": 7}]
    read = settings.read(calibration(tmp_path, cell, trials=trials), cell)
    assert not read.compiled
    assert (read.trials[0].seconds, read.trials[0].error) == (None, None)
    (tmp_path / "c.json").write_text('{"of": "x"')
    with refused(UserError, "c.json"):
        settings.read(tmp_path / "c.json", cell)
    with refused(UserError, "calibration", "device"):
        checked(Calibration, {"of": "x"}, "calibration")


NO_PLAN = "no plan for this shape"


@pytest.fixture
def failing(cell, places, monkeypatch):
    """Let the work of some settings raise an error: by back end and size of softmax attention."""
    places[0].write_text(replace(cell, attention="softmax").to_json())
    # Two back ends there are on a GPU only.
    tunable = load("softmax").tunable
    monkeypatch.setattr(load("softmax"), "tunable", lambda self, _: tunable(self, "cuda"))

    def failing(error_of=lambda name, size: None, fitting=99, cost=None):
        def seconds(size, name):
            if error := error_of(name, size):
                raise error
            return size * (cost or {}).get(name, 1.0)

        return Slow(seconds, monkeypatch, fitting, fitting)

    return failing


def test_it_takes_the_faster_back_end_where_there_are_two(cell, failing, places):
    failing(cost={"flash": 2.0, "cudnn": 1.0})
    result = calibrate.calibrate(*places)
    assert result.choice == {"implementation": "cudnn"}
    assert [t.choice["implementation"] for t in result.trials[:2]] == ["flash", "cudnn"]
    cell = replace(cell, attention="softmax")
    assert settings.read(places[1], cell) == result
    (block,) = Training(cell, result).model.blocks
    assert getattr(block.attention, "implementation", None) == "cudnn"


def reasons(result):
    return {(t.choice["implementation"], t.micro_batch): t.error for t in result.trials}


def test_a_choice_that_raises_is_a_failed_trial_and_the_next_is_tried(failing, places):
    failing(lambda name, size: RuntimeError(f"{NO_PLAN}\nmore") if name == "flash" else None)
    result = calibrate.calibrate(*places)
    assert result.choice == {"implementation": "cudnn"}
    found = reasons(result)
    assert found.pop(("flash", 4)) == NO_PLAN
    assert set(found.values()) == {None}
    failed = result.trials[0]
    assert (failed.seconds, failed.repeats, failed.lacks_memory) == (None, 0, False)
    assert Calibration(**read_json(places[1], "calibration")).trials[0].error == NO_PLAN


def test_a_size_that_raises_does_not_end_the_search_and_one_without_memory_does(failing, places):
    failing(lambda name, size: RuntimeError(NO_PLAN) if size == 2 else None)
    result = calibrate.calibrate(*places)
    found = {size: error for (_, size), error in reasons(result).items()}
    assert found == {4: None, 1: None, 2: NO_PLAN}
    places[1].unlink()
    failing(fitting=1)
    result = calibrate.calibrate(*places)
    assert [(t.micro_batch, t.error) for t in result.trials if t.lacks_memory][-1] == (2, "full")
    assert [t.micro_batch for t in result.trials][2:] == [1, 2]


def test_a_cell_for_which_every_trial_fails_gets_every_reason(failing, places):
    errors = {"flash": RuntimeError(NO_PLAN), "cudnn": ValueError("out of registers")}
    failing(lambda name, size: errors[name])
    with pytest.raises(UserError) as raised:  # names the processor
        calibrate.calibrate(*places)
    assert f"flash, recomputed blocks: {NO_PLAN}" in str(raised.value)
    assert f"implementation cudnn: {errors['cudnn']}" in str(raised.value)
    failing(fitting=0)
    with pytest.raises(UserError, match="one sequence"):
        calibrate.calibrate(*places)
    assert not places[1].exists()


@pytest.mark.parametrize("error", [
    RuntimeError("uncorrectable ECC error"),
    OSError(errno.ENOSPC, "No space left on device"),
    torch.distributed.DistBackendError("NCCL error: lost"),
])  # fmt: skip
def test_a_fault_of_the_machine_ends_the_calibration_and_is_no_trial(failing, places, error):
    failing(lambda name, size: error if name == "flash" else None)
    with pytest.raises(type(error), match=str(error)[-10:]):
        calibrate.calibrate(*places)
    assert not places[1].exists()


def test_an_error_that_breaks_the_device_ends_the_calibration(failing, places, monkeypatch):
    monkeypatch.setattr(calibrate.faults, "is_result", lambda error, device: False)
    failing(lambda name, size: RuntimeError("an illegal memory access") if size > 1 else None)
    with pytest.raises(RuntimeError, match="illegal memory"):
        calibrate.calibrate(*places)
    failing(fitting=1)  # lack of memory is never a broken device
    assert calibrate.calibrate(*places).micro_batch == 1


@pytest.mark.parametrize(("peak", "fits"), [(900, True), (901, False)])
def test_what_fills_more_than_nine_tenths_of_a_device_does_not_fit(
    failing, places, monkeypatch, peak, fits
):
    """Two sequences reach the peak, on a device of 1000 bytes, for which this CPU stands."""
    slow = failing()
    peaks = {1: 800, 2: peak, 4: 899}
    monkeypatch.setattr(calibrate, "memory_bytes", lambda device: 1000)
    monkeypatch.setattr(calibrate, "peak_bytes", lambda device: peaks[slow.size])
    result = calibrate.calibrate(*places)
    tried = {t.micro_batch: t for t in result.trials}
    assert set(tried) == ({1, 2, 4} if fits else {1, 2})
    assert tried[2].peak_memory_bytes == peak
    assert (tried[2].error is None, not tried[2].lacks_memory) == (fits, fits)
    if not fits:
        assert "90%" in str(tried[2].error)
        assert (tried[2].repeats, tried[2].seconds) == (0, None)
        places[1].unlink(missing_ok=True)
        peaks |= dict.fromkeys(peaks, 950)
        failing(lambda name, size: RuntimeError(NO_PLAN))
        with pytest.raises(UserError, match=NO_PLAN):  # an error keeps its own reason
            calibrate.calibrate(*places)


CPU = torch.device("cpu")


@pytest.fixture
def two_ranks(cell, monkeypatch):
    """A cell of two ranks, one of which this CPU stands for."""
    monkeypatch.setattr(calibrate.environment, "device_name", lambda gpus: "a device")
    return replace(cell, attention="softmax", gpus=2)


def test_a_cell_of_several_ranks_is_measured_as_one_of_them(two_ranks, monkeypatch, tmp_path):
    """The gradients of ranks stay allocated; here they are added to those that are there."""
    plain, kept = GPT.loss, []

    def loss(gpt, x_BT, y_BT):
        kept.append(all(p.grad is not None for p in gpt.parameters()))
        return plain(gpt, x_BT, y_BT)

    monkeypatch.setattr(GPT, "loss", loss)
    result = calibrate.measured(two_ranks, CPU, tmp_path)
    assert footprint.sequences(two_ranks) == 2
    assert [t.micro_batch for t in result.trials] == [1, 2]
    for trial in result.trials:  # the first of each has no gradients before it
        calls = [kept.pop(0) for _ in range(1 + 2 + trial.repeats)]
        assert calls == [False] + [True] * (2 + trial.repeats)
    assert not kept
    assert not torch.distributed.is_initialized()


def test_a_backward_pass_that_fails_does_not_spoil_the_next_trial(two_ranks, monkeypatch, tmp_path):
    """The pass fails after the gradients of all blocks, before that of the embedding."""
    plain = GPT.loss

    def failing(_):
        raise RuntimeError(reason)

    def attach(_, given):
        given[0].register_hook(failing)

    def loss(gpt, x_BT, y_BT):
        if len(x_BT) > 1:
            return plain(gpt, x_BT, y_BT)
        with gpt.blocks[0].register_forward_pre_hook(attach):
            return plain(gpt, x_BT, y_BT)

    monkeypatch.setattr(GPT, "loss", loss)
    reason = NO_PLAN
    result = calibrate.measured(two_ranks, CPU, tmp_path)
    assert [(t.micro_batch, t.error) for t in result.trials] == [(1, NO_PLAN), (2, None)]
    reason = "GPU is lost"
    with pytest.raises(RuntimeError, match=reason):
        calibrate.measured(two_ranks, CPU, tmp_path)
