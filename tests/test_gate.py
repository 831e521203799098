"""The gate before training: planted faults of kernels are found and replaced, and said once.

The kernels of a GPU are played by plain PyTorch with a fault.
"""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
import torch
from conftest import calibration, refused, sentence

from lmscaling import kernels
from lmscaling.bench.checks import exactness, gate
from lmscaling.errors import UserError
from lmscaling.kernels import cross_entropy
from lmscaling.kernels.chunked_triton import plan
from lmscaling.kernels.linear import chunked
from lmscaling.model.gpt import GPT
from lmscaling.records.checks import findings
from lmscaling.train import calibrate, checked_kernels
from lmscaling.train.run import train

CPU = torch.device("cpu")
FORM = ("softplus", True)
HERE = {"device": "a device", "torch": "1", "triton": "1", "ptxas": "1", "sources": "a"}


used = []
"""Plans that were put into use, and for which shape."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short sequences, and nothing that a test puts into use stays so."""
    monkeypatch.setattr(gate, "TOKENS", 20)
    monkeypatch.setattr(gate, "SEGMENTED", (1, 40, 2))
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
def full_size(small, monkeypatch):
    """The sequences that are checked on a GPU."""
    for name in ("TOKENS", "SEGMENTED"):
        monkeypatch.setattr(gate, name, getattr(exactness, name))


def fault(attend, form=FORM, compiled=False, kind="linear"):
    return gate.attention_fault(kind, attend, CPU, torch.float32, 16, form, compiled)


@pytest.mark.parametrize("name", gate.OURS)
def test_ours_pass_at_the_shapes_of_a_gpu(full_size, name):
    checked = partial(gate.attention_fault, "linear", kernels.load("linear", name), CPU)
    assert checked(gate.DTYPE, 16, FORM, compiled=False) is None
    assert checked(gate.DTYPE, 16, ("identity", False), False) is None


@pytest.mark.parametrize(
    ("kind", "gates", "dtype"),
    [
        ("gated", "head", torch.bfloat16),
        ("gated", "token", torch.float32),
        ("gated_delta", "token", torch.bfloat16),
    ],
)
def test_ours_with_gates_pass_at_the_shapes_of_a_gpu(full_size, kind, gates, dtype):
    attend = kernels.load(kind, "chunked")
    assert gate.attention_fault(kind, attend, CPU, dtype, 16, (gates,), kind == "gated") is None


def test_integers_of_a_long_sequence_are_sums_that_bf16_represents():
    """Of the states and of the weights, which are operands of products."""
    sums = []

    def seen(q, k, v, *_):
        with torch.no_grad():
            state = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
            weights = torch.einsum("bthk,bshk->bhts", q, k)
            sums.extend(x.abs().max().item() for x in (state, weights))
        return exactness.linear(q, k, v, "identity", False)

    shape = (*exactness.SEGMENTED, 128)
    assert not exactness.first_fault(exactness.integers(seen, CPU, torch.float32, shape))
    assert max(sums) <= 256


class Wrong(torch.autograd.Function):
    """Passes a tensor on, and its gradient with one element lost."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        dx = gradients[0].clone()
        dx[0, -3, 0, -1] = 0
        return dx


def one_lost(y):
    """One element among all is zero."""
    y = y.clone()
    y[0, -3, 0, 1] = 0
    return y


def test_one_wrong_element_is_found_forward_and_backward():
    def forward(q, k, v, *form):
        return one_lost(chunked.attend(q, k, v, *form))

    def backward(q, k, v, *form):
        return chunked.attend(q, Wrong.apply(k), v, *form)

    for attend, name in ((forward, "y"), (backward, "dk")):
        assert (fault(attend) or "").startswith(f"{name} of integers")


@pytest.mark.parametrize(
    ("kind", "gradients"), [("gated", ["dg"]), ("gated_delta", ["dbeta", "dg"])]
)
def test_a_gate_that_acts_wrongly_is_found_forward_and_backward(kind, gradients):
    right = kernels.load(kind, "chunked")

    def late(q, k, v, *gates):
        """Gates act on the token after theirs."""
        return right(q, k, v, *gates[:-1], gates[-1].roll(1, 1))

    assert (fault(late, ("token",), kind=kind) or "").startswith("y is")
    for i, name in enumerate(gradients):

        def lost(q, k, v, *gates, i=i):
            gates = [
                Wrong.apply(x[..., None])[..., 0] if j == i else x for j, x in enumerate(gates)
            ]
            return right(q, k, v, *gates)

        assert name in (fault(lost, ("token",), kind=kind) or "")


def test_one_wrong_element_of_the_normalised_form_alone_is_found():
    """Among 5,000 elements it changes the root mean square by less than bf16 is allowed."""

    def attend(q, k, v, feature_map, normalize):
        y = chunked.attend(q, k, v, feature_map, normalize)
        return one_lost(y) if normalize else y

    long = (2, 200, 3, 16)
    found = list(exactness.numbers("linear", attend, CPU, torch.bfloat16, long, FORM))
    assert [each.right for each in found if each.case.startswith("numbers")] == 4 * [True]
    assert (exactness.first_fault(found) or "").startswith("an element")
    assert (fault(attend) or "").startswith("y is")


def test_a_fault_of_several_segments_alone_is_found():
    def attend(q, k, v, *form):
        y = chunked.attend(q, k, v, *form)
        return one_lost(y) if q.shape[1] == gate.SEGMENTED[1] else y

    assert "y of integers" in (fault(attend) or "")


def test_calls_that_differ_in_the_last_bit_are_found():
    calls = []

    def attend(q, k, v, *form):
        calls.append(0)
        return chunked.attend(q, k, v, *form) * (1 + 1e-6 * (form == FORM) * (len(calls) % 2))

    assert "two calls" in (fault(attend) or "")


def test_what_only_the_compiler_gets_wrong_is_found():
    def attend(q, k, v, *form):
        return chunked.attend(q, k, v, *form) * (2 if torch.compiler.is_compiling() else 1)

    assert fault(attend) is None
    assert (fault(attend, compiled=True) or "").startswith("y is 1 ")


def right(logits, y, scale):
    """Losses of each row; their gradient takes the place of the logits."""
    exact = logits.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact, y, reduction="none")
    if scale:
        logits[:] = torch.autograd.grad(scale * loss.sum(), exact)[0]
    return loss.detach().float()


@pytest.mark.parametrize(("V", "dtype"), [(320, torch.float32), (50304, torch.bfloat16)])
def test_the_cross_entropy_is_checked_element_by_element(V, dtype):
    def fault(losses):
        return gate.cross_entropy_fault(losses, CPU, dtype, V) or ""

    def lost(logits, y, scale):
        loss = right(logits, y, scale)
        logits[5, V // 2] = 0
        return loss

    assert fault(right) == ""
    assert fault(lost).startswith("the gradient is 1 ")
    assert fault(lambda *given: 1.001 * right(*given)).startswith("the loss is 0.001")
    assert "without" in fault(lambda x, y, s: right(x, y, s) * (1 if s else 1.001))


# What a fault leads to


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
    assert said.endswith("safe configuration is used")
    sentence("gate", said)
    assert planned() == plan.safe()
    assert model.blocks[0].attention.implementation == "chunked"
    said = gate.settle(kernel(change(), change(), torch="2"), path, CPU)
    assert said.count(reason) == 2
    assert said.endswith("plain PyTorch is used")
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


# Where it stands


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
