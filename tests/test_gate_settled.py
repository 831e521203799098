"""What the gate refuses, found once; plain PyTorch plays the kernels."""

import json
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
import torch
from conftest import calibration, refused
from test_gate import CPU, full_size, small

from lmscaling import kernels
from lmscaling.bench.checks import gate
from lmscaling.errors import UserError
from lmscaling.kernels.chunked_triton import plan
from lmscaling.kernels.linear import forms
from lmscaling.model.gpt import GPT
from lmscaling.records.checks import findings
from lmscaling.train import calibrate
from lmscaling.train.run import train

__all__ = ["full_size", "small"]
HERE = {"device": "a device", "torch": "1", "triton": "1", "ptxas": "1", "sources": "a"}


@pytest.fixture(autouse=True)
def short(small):
    """Sequences that are checked are short."""


@pytest.fixture
def model(cell):
    with torch.device("meta"):
        return GPT(cell)


def part(model, compiled=False, here=HERE):
    return gate.attention_part(model.blocks[0].attention, 16, 4, CPU, compiled, here)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checks" / "linear-d8.json"


@pytest.fixture
def kernel(monkeypatch, model):
    def play(attend=forms.chunked, **here):
        """What the kernel does instead."""
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "load", lambda *_: attend)
            return part(model, here=HERE | here)

    return play


def doubled(*given):
    return 2 * forms.chunked(*given)


def raising(error):
    def attend(*_):
        raise error

    return attend


def too_large():
    errors = pytest.importorskip("triton.runtime.errors", reason="Triton is not installed")
    assert not issubclass(errors.OutOfResources, RuntimeError)
    return errors.OutOfResources(239616, 232448, "shared memory")


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda: doubled, "y of integers"), (lambda: raising(too_large()), "OutOfResources: out of"),
     (lambda: raising(ValueError("pipeliner\nmore")), "ValueError: pipeliner")],
    ids=["wrong", "too large", "does not compile"],
)  # fmt: skip
def test_a_kernel_that_fails_is_refused_with_its_reason(kernel, path, change, reason):
    with refused(UserError, "linear attention by chunked", "a device", reason):
        gate.settle(kernel(change()), path, CPU)
    (found,) = findings(path)
    assert reason in found.message


def test_a_fault_of_the_machine_is_raised_and_says_nothing_about_a_kernel(
    kernel, path, monkeypatch
):
    ecc = RuntimeError("CUDA error: uncorrectable ECC error encountered")
    for error in (ecc, torch.OutOfMemoryError("full"), RuntimeError("illegal access")):
        if "illegal" in str(error):  # after which the device computes no more
            monkeypatch.setattr(gate.faults, "is_result", lambda *_: False)
        with pytest.raises(type(error), match=str(error)):
            gate.settle(kernel(raising(error)), path, CPU)
        assert not path.exists()


def test_what_was_found_holds_without_a_check_until_a_version_changes(kernel, path):
    for attend in (doubled, raising(AssertionError("checked again"))):
        with refused(UserError, "y of integers"):
            gate.settle(kernel(attend), path, CPU)
    for name in HERE:
        gate.settle(kernel(**{name: "other"}), path, CPU)
    assert len(json.loads(path.read_text())["findings"]) == 1 + len(HERE)


def test_a_damaged_record_is_checked_again(kernel, path, capfd):
    path.parent.mkdir()
    for text in ("", "{", '{"findings": [{"key": 7}]}', "[]"):
        if text:
            path.write_text(text)
        gate.settle(kernel(), path, CPU)
        assert ("checked again" in capfd.readouterr().err) == bool(text)
        assert len(json.loads(path.read_text())["findings"]) == 1


def test_the_key_tells_plans_forms_and_compilation_apart(model, cell):
    def key(made, compiled=False):
        return part(made, compiled).key

    with torch.device("meta"):
        rotated = GPT(replace(cell, position="rope"))
    keys = [key(model), key(model, compiled=True), key(rotated)]
    model.tune({"implementation": "attention_parallel"})
    keys.append(key(model))
    assert len({json.dumps(each) for each in keys}) == 4
    assert keys[0]["plan"] == asdict(plan.Plan())


@pytest.mark.parametrize("name", ["retention", "mamba2"])
def test_gates_are_checked_and_pass(name, cell, path):
    with torch.device("meta"):
        made = part(GPT(replace(cell, attention=name)))
    gate.settle(made, path, CPU)
    assert [each.message for each in findings(path)] == [""]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which all attention is wrong and the loss is right."""
    answers = {"conditions": HERE, "_planned": plan.Plan(), "attention_fault": "dv is wrong"}
    for name, answer in {**answers, "cross_entropy_fault": None}.items():
        monkeypatch.setattr(gate, name, lambda *_, answer=answer: answer)
    return torch.device("cuda")


def test_a_model_on_a_gpu_has_its_loss_checked_and_its_attention_if_it_is_ours(
    model, cell, path, gpu
):
    gate.require(path, model, 4, CPU, compiled=True)
    assert not path.parent.exists()  # nothing is checked on a CPU
    with refused(UserError, "dv is wrong", "linear attention by chunked"):
        gate.require(path, model, 4, gpu, compiled=True)
    assert [each.key["part"] for each in findings(path)] == ["cross_entropy", "linear/chunked"]
    with torch.device("meta"):
        softmax = GPT(replace(cell, attention="softmax"))
    gate.require(path.with_name("s.json"), softmax, 4, gpu, compiled=True)
    assert [each.key["part"] for each in findings(path.with_name("s.json"))] == ["cross_entropy"]


def test_every_kind_of_attention_in_a_model_is_a_part(cell, path, gpu, monkeypatch):
    monkeypatch.setattr(gate, "attention_fault", lambda *_: None)
    with torch.device("meta"):
        model = GPT(cell)
        for name in ["linear", "elu", "retention", "mamba2", "gated_delta", "gated", "softmax"]:
            model.blocks.append(GPT(replace(cell, attention=name)).blocks[0])
    gate.require(path, model, 4, gpu, compiled=False)
    found = [each.key for each in findings(path)]
    of_another_package = 2 if find_spec("fla") else 0
    assert len(found) == len({json.dumps(key) for key in found}) == 1 + 4 + of_another_package


def test_conditions_are_the_device_its_compilers_and_the_sources(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: extra test, on Linux")
    monkeypatch.setattr(gate.environment, "device_name", lambda gpus: "a device")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = gate.conditions()
    assert found.keys() == HERE.keys()
    assert all(found.values())
    assert json.loads(json.dumps(found)) == found == gate.conditions()
    monkeypatch.setattr(gate, "sha256_of", lambda file: "other")
    assert [name for name in found if gate.conditions()[name] != found[name]] == ["sources"]


def test_a_run_and_its_calibration_pass_the_gate_first(cell, tokens, tmp_path, monkeypatch):
    asked, study = [], tmp_path / "results" / "tiny"

    def say(path, model, micro_batch, device, compiled):
        asked.append((path, micro_batch, device.type, compiled))

    monkeypatch.setattr(gate, "require", say)
    monkeypatch.setattr(calibrate, "TRIAL_SECONDS", 0.0)
    record = study / "runs" / cell.run / "run.json"
    (tmp_path / "cell.json").write_text(cell.to_json())
    calibrate.calibrate(tmp_path / "cell.json", study / "calibrations" / "c.json")
    way = calibration(tmp_path, cell, micro_batch=2)
    assert train(tmp_path / "cell.json", tokens, study / "scratch" / cell.run, record, way)
    check = study / "checks" / f"{cell.check}.json"
    assert asked == [(check, 4, "cpu", False), (check, 2, "cpu", False)]


def test_a_cell_for_gpus_is_not_checked_on_a_cpu(cell, tmp_path):
    (tmp_path / "cell.json").write_text(replace(cell, gpus=1).to_json())
    with refused(UserError, "GPUs"):
        calibrate.check(tmp_path / "cell.json", tmp_path / "out.json")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_all_kernels_pass_on_this_gpu_and_are_checked_once(full_size, cell, path):
    with torch.device("meta"):
        model = GPT(replace(cell, gpus=1))
    texts = []
    for _ in range(2):
        gate.require(path, model, 4, torch.device("cuda"), compiled=True)
        texts.append(path.read_text())
    assert texts[0] == texts[1]
