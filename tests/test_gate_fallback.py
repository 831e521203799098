"""What the gate before training does when a kernel fails: something else stands in, said once.

The kernels of a GPU are played by plain PyTorch with a fault.
"""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from conftest import calibration, refused, sentence
from test_gate import CPU, full_size, small

from lmscaling import kernels
from lmscaling.bench.checks import gate
from lmscaling.errors import UserError
from lmscaling.kernels import cross_entropy
from lmscaling.kernels.chunked_triton import plan
from lmscaling.kernels.linear import chunked
from lmscaling.model.gpt import GPT
from lmscaling.records.checks import findings
from lmscaling.train import calibrate, checked_kernels
from lmscaling.train.run import train

__all__ = ["full_size", "small"]

HERE = {"device": "a device", "torch": "1", "triton": "1", "ptxas": "1", "sources": "a"}

used = []
"""Plans that were put into use, and for which shape."""


@pytest.fixture(autouse=True)
def restored(small, monkeypatch):
    """Nothing that a test puts into use stays so."""
    monkeypatch.setattr(cross_entropy, "_is_plain", False)
    plain = plan.use

    def use(of, shape):
        used.append((of, shape))
        plain(of, shape)

    monkeypatch.setattr(plan, "use", use)
    yield
    for _, shape in used:
        plain(None, shape)
    used.clear()


@pytest.fixture
def model(cell):
    with torch.device("meta"):
        return GPT(cell)


def part(model, compiled=False, here=HERE):
    """The one kind of attention of a model."""
    attentions = [block.attention for block in model.blocks]
    return gate.attention_part(model, 4, CPU, compiled, here, attentions)


def planned():
    """The plan that is in use."""
    return used[-1][0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checks" / "linear-d8.json"


@pytest.fixture
def tried():
    """Whether the safe configuration was in use in the checks of ``kernel``, one after another."""
    return []


@pytest.fixture
def kernel(monkeypatch, model, tried):
    """Let the kernel do something else with each plan."""

    def play(fast=None, safe=None, **here):
        def attend(*given):
            is_safe = planned() == plan.safe()
            if not tried or tried[-1] != is_safe:
                tried.append(is_safe)
            change = safe if is_safe else fast
            return chunked.attend(*given) if change is None else change(*given)

        with monkeypatch.context() as patch:
            patch.setattr(kernels, "load", lambda *_: attend)
            return part(model, here=HERE | here)

    return play


def doubled(*given):
    return 2 * chunked.attend(*given)


def raising(error):
    def attend(*_):
        raise error

    return attend


def too_large():
    errors = pytest.importorskip("triton.runtime.errors", reason="Triton is not installed")
    assert not issubclass(errors.OutOfResources, RuntimeError)
    return errors.OutOfResources(239616, 232448, "shared memory")


def test_a_kernel_that_passes_is_used_as_planned_and_nothing_is_said(kernel, path, model):
    assert gate.settle(kernel(), path, CPU) == ""
    assert planned() == plan.Plan()
    assert model.blocks[0].attention.implementation == "chunked"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: doubled, "(y of integers"),
        (lambda: raising(too_large()), "(OutOfResources: out of"),
        (lambda: raising(ValueError("pipeliner\nmore")), "(ValueError: pipeliner)"),
    ],
    ids=["wrong", "too large", "does not compile"],
)
def test_the_safe_configuration_and_then_plain_pytorch_stand_in(
    kernel, path, model, change, reason
):
    said = gate.settle(kernel(change()), path, CPU)
    assert reason in said
    assert said.endswith("configuration is used")
    sentence("gate", said)
    assert planned() == plan.safe()
    assert model.blocks[0].attention.implementation == "chunked"
    said = gate.settle(kernel(change(), change(), torch="2"), path, CPU)
    assert said.count(reason) == 2
    assert said.endswith("PyTorch is used")
    assert model.blocks[0].attention.implementation == "chunked_materialized"
    assert len(json.loads(path.read_text())["findings"]) == 2


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        torch.OutOfMemoryError("full"),
    ],
)
def test_a_fault_of_the_machine_is_raised_and_says_nothing_about_a_kernel(kernel, path, error):
    with pytest.raises(type(error), match=str(error)):
        gate.settle(kernel(raising(error)), path, CPU)
    assert not path.exists()


def test_a_kernel_after_which_the_device_computes_no_more_is_raised(kernel, path, monkeypatch):
    part = kernel(raising(RuntimeError("illegal access")))
    monkeypatch.setattr(gate.faults, "is_result", lambda *_: False)
    with pytest.raises(RuntimeError, match="illegal access"):
        gate.settle(part, path, CPU)


def test_what_was_found_is_used_without_a_check_until_a_version_changes(kernel, path, tried):
    said = gate.settle(kernel(doubled), path, CPU)
    assert tried == [False, True]
    assert gate.settle(kernel(doubled), path, CPU) == said
    assert planned() == plan.safe()
    assert tried == [False, True]
    for name in HERE:
        assert gate.settle(kernel(**{name: "other"}), path, CPU) == ""
    assert len(tried) > 2
    assert gate.settle(kernel(doubled), path, CPU) == said
    assert len(json.loads(path.read_text())["findings"]) == 1 + len(HERE)


def test_a_damaged_record_is_said_and_checked_again(kernel, path, capfd):
    path.parent.mkdir()
    for text in ("{", '{"findings": [{"key": 7}]}', "[]"):
        path.write_text(text)
        assert gate.settle(kernel(), path, CPU) == ""
        assert "checked again" in capfd.readouterr().err
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


@pytest.mark.parametrize("name", ["retention", "mamba2", "gated_delta"])
def test_a_variant_with_gates_falls_back_to_plain_pytorch(name, cell, path):
    with torch.device("meta"):
        made: Any = GPT(replace(cell, attention=name))
    of = part(made)
    assert gate.settle(of, path, CPU) == ""
    said = gate.settle(replace(of, fault=lambda: "wrong", key={}), path, CPU)
    assert "(wrong)" in said
    sentence("gate", said)
    assert made.blocks[0].attention.implementation == "plain"


def test_the_loss_falls_back_to_plain_pytorch(model, path):
    part = gate.cross_entropy_part(model, CPU, HERE)
    said = gate.settle(replace(part, fault=lambda: "wrong"), path, CPU)
    assert "(wrong)" in said
    sentence("gate", said)
    assert [found.way for found in findings(path)] == ["plain PyTorch"]


def test_nothing_is_checked_on_a_cpu(model, path, monkeypatch):
    monkeypatch.setattr(gate, "conditions", None)
    assert gate.pass_or_fall_back(path, model, 4, CPU, compiled=False) == ""
    assert not path.parent.exists()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which all attention is wrong and the loss is right."""
    monkeypatch.setattr(gate, "conditions", lambda: HERE)
    monkeypatch.setattr(gate, "_planned", lambda *_: plan.Plan())
    monkeypatch.setattr(gate, "attention_fault", lambda *_: "dv is wrong")
    monkeypatch.setattr(gate, "cross_entropy_fault", lambda *_: None)
    return torch.device("cuda")


def test_a_model_on_a_gpu_has_its_loss_checked_and_its_attention_if_it_is_ours(
    model, cell, path, gpu
):
    said = gate.pass_or_fall_back(path, model, 4, gpu, compiled=True)
    assert said.count("(dv is wrong)") == 2
    sentence("gate", said)
    assert [each.key["part"] for each in findings(path)] == ["cross_entropy", "linear/chunked"]
    with torch.device("meta"):
        softmax = GPT(replace(cell, attention="softmax"))
    assert gate.pass_or_fall_back(path.with_name("s.json"), softmax, 4, gpu, compiled=True) == ""
    assert [each.key["part"] for each in findings(path.with_name("s.json"))] == ["cross_entropy"]


def test_every_kind_of_attention_in_a_model_is_a_part(cell, path, gpu):
    with torch.device("meta"):
        model = GPT(cell)
        for name in ["linear", "elu", "retention", "mamba2", "gated_delta", "gated", "softmax"]:
            model.blocks.append(GPT(replace(cell, attention=name)).blocks[0])
    said = gate.pass_or_fall_back(path, model, 4, gpu, compiled=False)
    assert said.count("PyTorch") == 5
    found = [each.key for each in findings(path)]
    assert len(found) == len({json.dumps(key) for key in found}) == 1 + 5
    ways = [getattr(block.attention, "implementation", "") for block in model.blocks]
    assert ways[:3] == ["chunked_materialized"] * 3
    assert ways[3:6] == ["plain"] * 3


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


@pytest.fixture
def failing(monkeypatch):
    """A gate that replaces something; what it was called with."""
    asked = []

    def say(path, model, micro_batch, device, compiled):
        asked.append((path, micro_batch, device.type, compiled))
        return "a kernel failed"

    monkeypatch.setattr(gate, "pass_or_fall_back", say)
    return asked


def test_a_run_passes_the_gate_before_its_first_update_and_records_what_failed(
    failing, cell, tokens, tmp_path
):
    study = tmp_path / "results" / "tiny"
    record = study / "runs" / cell.run / "run.json"
    (tmp_path / "cell.json").write_text(cell.to_json())
    way = calibration(tmp_path, cell, micro_batch=2)
    made = train(tmp_path / "cell.json", tokens, study / "scratch" / cell.run, record, way)
    assert made
    assert failing == [(study / "checks" / f"{cell.check}.json", 2, "cpu", False)]
    assert json.loads(record.read_text())["kernels"] == made.kernels == "a kernel failed"


def test_a_calibration_measures_with_what_training_will_use(failing, cell, tmp_path, monkeypatch):
    (tmp_path / "cell.json").write_text(cell.to_json())
    monkeypatch.setattr(calibrate, "TRIAL_SECONDS", 0.0)
    out = tmp_path / "calibrations" / "c.json"
    calibrate.calibrate(tmp_path / "cell.json", out)
    assert failing == [(tmp_path / "checks" / f"{cell.check}.json", 4, "cpu", False)]


def test_a_cell_for_gpus_is_not_checked_on_a_cpu(cell, tmp_path):
    (tmp_path / "cell.json").write_text(replace(cell, gpus=1).to_json())
    with refused(UserError, "GPUs"):
        checked_kernels.check(tmp_path / "cell.json", tmp_path / "out.json")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_all_kernels_pass_on_this_gpu_and_are_checked_once(full_size, cell, path):
    gpu = torch.device("cuda")
    with torch.device("meta"):
        model = GPT(replace(cell, gpus=1))
    assert gate.pass_or_fall_back(path, model, 4, gpu, compiled=True) == ""
    before = path.read_text()
    assert gate.pass_or_fall_back(path, model, 4, gpu, compiled=True) == ""
    assert path.read_text() == before
