"""Measuring points of the speed study: what is computed is what the point says, and is right."""

import json
import time
from dataclasses import replace
from typing import cast

import pytest
import torch
from conftest import refused
from speed_points import point as measured_point
from speed_points import write
from torch import nn

from lmscaling import attention, kernels, registry
from lmscaling.bench import clock, decode, layer, memory, sweep, training_step
from lmscaling.bench.memory import Memory
from lmscaling.config import grid, sweeps
from lmscaling.config.cell import Cell, Model
from lmscaling.config.speed import Heads, Sweep
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.model.gpt import GPT
from lmscaling.records.timing import BUSY, Point
from lmscaling.store import build as store
from lmscaling.types import dump

CPU = torch.device("cpu")


@pytest.fixture
def tiny(cell: Cell) -> Sweep:
    shape = Model(n_layer=2, n_head=2, d_model=32, vocab_size=20)
    return Sweep(
        kind="time_step", name="tiny", gpus=0, timeout_seconds=10, repeats=3, target_seconds=0.0,
        cell=replace(cell, model=shape),
    )  # fmt: skip


def point(attention: str, implementation: str = "", context: int = 24, **more) -> Point:
    return Point(attention=attention, implementation=implementation, context=context, **more)


def heads(tiny: Sweep) -> Sweep:
    return replace(tiny, cell=None, layer=Heads(n_head=2, d_head=16))


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_every_implementation_has_the_loss_of_the_model_and_its_layer_is_timed(tiny, kind):
    x, y = torch.randint(20, (2, 2, 24), generator=torch.Generator().manual_seed(0))
    expected = training_step.Step(tiny, point(kind)).gpt.loss(x, y)
    for name in registry.implementations_of(kind):
        made = training_step.Step(tiny, point(kind, name))
        torch.testing.assert_close(made.gpt.loss(x, y), expected)
        assert {b.get_submodule("attention").implementation for b in made.gpt.blocks} == {name}
        for passes in ("forward", "forward+backward"):
            outcome = layer.measure(heads(tiny), point(kind, name, batch=2, passes=passes))
            assert (outcome.repeats, outcome.params) == (3, None)


def test_a_measured_step_is_a_step_of_training(tiny, monkeypatch):
    made, norms = [], []
    clip = nn.utils.clip_grad_norm_

    class Watched(training_step.Step):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.first = [p.detach().clone() for p in self.gpt.parameters()]
            made.append(self)

    monkeypatch.setattr(training_step, "Step", Watched)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda p, n: norms.append(n) or clip(p, n))
    outcome = training_step.measure(tiny, point("linear", "chunked", batch=2))
    (one,) = made
    assert all((p != q).any() for p, q in zip(one.first, one.gpt.parameters(), strict=True))
    steps = outcome.warm_up + 3
    assert {int(s["step"]) for s in one.adamw.state.values()} == {2 * steps}  # and updates alone
    assert {*norms} == {1.0}
    assert min(outcome.optimizer_seconds or 0, outcome.least_seconds or 0) > 0
    assert (outcome.repeats, outcome.params, outcome.chunk) == (3, one.gpt.params, 64)
    assert (outcome.dtype, outcome.compiled, outcome.captured) == ("float32", False, False)


@pytest.mark.parametrize(("measure", "what", "named"), [
    (training_step.measure, point("linear", "chunkd"), ["'chunkd'", "'chunked'"]),
    (decode.measure, point("linear", "chunkd"), ["'chunkd'", "'chunked'"]),
])  # fmt: skip
def test_a_point_that_cannot_be_is_refused(tiny, measure, what, named):
    with refused(UserError, *named):
        measure(tiny, what)
    with refused(UserError, "'flsh'", "'flash'"):
        layer.measure(heads(tiny), point("softmax", "flsh", passes="forward"))


def test_the_chunk_of_a_point_is_the_chunk_in_use(tiny):
    for implementation in ("chunked", "chunked_materialized"):
        made = training_step.Step(tiny, point("linear", implementation, chunk=8))
        assert {b.get_submodule("attention").chunk for b in made.gpt.blocks} == {8}
        assert training_step.measure(tiny, point("linear", implementation, chunk=8)).chunk == 8
    assert training_step.measure(tiny, point("softmax", "flash")).chunk is None


def test_a_variant_without_implementations_is_measured_as_it_is(tiny, monkeypatch):
    class Plain(nn.Linear):
        def __init__(self, d_model, n_head, rotate):
            super().__init__(d_model, d_model)
            self.out = nn.Linear(d_model, d_model)

        def flops_per_token(self, context):
            return 1.0

    monkeypatch.setattr(attention, "load", lambda name: Plain)
    outcome = training_step.measure(tiny, point("plain"))
    assert (outcome.repeats, outcome.chunk) == (3, None)
    with refused(UserError, "'fast'", "implementation"):
        training_step.measure(tiny, point("plain", "fast"))


@pytest.mark.parametrize(("name", "position"), [("linear", "rope"), ("softmax", "learned")])
def test_a_token_is_sampled_behind_a_cache_that_a_forward_pass_has_filled(
    tiny, name, position, monkeypatch
):
    given, prefill = [], GPT.prefill
    watched = lambda gpt, x, states: given.append(x) or prefill(gpt, x, states)  # noqa: E731
    monkeypatch.setattr(GPT, "prefill", watched)
    gpt = GPT(replace(tiny.cell, attention=name, position=position, context=25))
    x_B, states = decode.filled(gpt, 3, 24)
    (x_BT,) = given
    assert x_BT.shape == (3, 24)
    assert x_BT.unique().numel() > 10
    assert states.length == 24
    logits_BV, _ = gpt.decode_step(x_B, states)
    whole = gpt(torch.cat((x_BT, x_B.unsqueeze(1)), 1))[:, -1]
    torch.testing.assert_close(logits_BV, whole, rtol=1e-3, atol=1e-4)
    outcome = decode.measure(tiny, point(name, batch=2))
    assert (outcome.dtype, outcome.chunk, outcome.repeats) == ("float32", None, 3)


def test_a_layer_gets_views_of_one_projection_and_returns_one_gradient():
    given = []

    def attend(q, k, v, *options):
        given.append((q, k, v, options))
        return q * k + v

    shape = (2, 5, 3, 4), torch.float32, CPU
    (gradient,) = cast("tuple", layer.call(attend, "linear", "forward+backward", *shape)())
    layer.call(attend, "softmax", "forward", *shape)()
    (*qkv, options), (*_, none) = given
    assert len({x.untyped_storage().data_ptr() for x in qkv}) == 1
    assert gradient.shape == (2, 5, 3, 3, 4)
    assert (options, none) == (("softplus", True), ())


@pytest.mark.skipif(not memory.PROCESS.is_dir(), reason="the system does not say what is resident")
def test_memory_on_the_cpu_is_the_most_that_was_resident_less_what_was_before(tiny):
    before, watched = torch.ones(2**22), Memory(CPU)
    assert (watched.peak_bytes() or 0) < 2**22
    torch.ones(2**23).sum()  # 32 MiB
    assert 31 < (watched.peak_bytes() or 0) / 2**20 < 40
    watched.reset()
    assert (watched.peak_bytes() or 0) < 2**22
    del before
    one, peaks = point("softmax", "no_flash", passes="forward"), []
    for context in (64, 1024):
        made = layer.measure(heads(tiny), replace(one, context=context))
        peaks.append(made.peak_memory_bytes or 0)
    assert peaks[1] > peaks[0] + 2 * 2 * 1024**2 * 4  # scores and weights of two heads


@pytest.mark.parametrize("measured", [clock.timed, clock.launched])
def test_repeats_go_on_for_so_long_but_never_too_often(measured):
    for seconds, most, expected in ((0.0, 50, 3), (60.0, 5, 5)):
        calls = []
        timing = measured(lambda calls=calls: calls.append(0), Memory(CPU), seconds, most)
        assert len(timing.seconds) == expected
        assert timing.seconds == sorted(timing.seconds)
        assert len(calls) == expected + timing.warm_up


def test_waiting_for_a_core_is_no_time_of_a_call_and_marks_it_as_measured_on_a_busy_machine(tiny):
    def delayed() -> None:
        torch.rand(200, 200).matmul(torch.rand(200, 200))
        time.sleep(0.02)

    timing = clock.launched(delayed, Memory(CPU), 0.0, 3)
    assert timing.seconds[-1] < 0.02
    assert (timing.wall_over_cpu or 0) > BUSY
    assert decode.measure(tiny, point("softmax")).wall_over_cpu


@pytest.mark.parametrize("name", ["flash", "no_flash", "cudnn"])
def test_without_a_mask_each_token_sees_all_others(name):
    q, k, v = torch.rand(3, 2, 9, 2, 4)
    weights = {"linear": torch.einsum("bthk,bshk->bths", q, k)}
    weights["softmax"] = (weights["linear"] / 2).exp()
    for kind, w in weights.items():
        exact = torch.einsum("bths,bshv->bthv", w / w.sum(-1, keepdim=True), v)
        found = kernels.load("softmax", name)(q, k, v, causal=False)
        found = found if kind == "softmax" else layer.unmasked(q, k, v, "identity", True)
        torch.testing.assert_close(found, exact)


def test_a_layer_is_measured_without_a_mask_and_exactly_so_often(values):
    preset = {
        "name": "one", "n_head": 1, "d_head": 16, "batch": 1, "passes": ["unmasked forward"],
        "contexts": [8], "implementations": ["softmax/flash", "elu/chunked"], "repeats": 7,
    }  # fmt: skip
    values["speed"] = {"timeout_seconds": 20, "repeats": 3, "target_seconds": 1e-4}
    values["speed"]["time_layer"] = [preset | {"exactly": True}]
    (one,) = sweeps.expand(grid.expand(values).study).values()
    assert [layer.measure(one, each).repeats for each in one.points] == [7, 7]
    preset["implementations"] += ["gated/chunked"]
    with refused(UserError, "one", "unmasked forward", "gated/chunked"):
        values["speed"]["time_layer"] = [preset]
        grid.expand(values)


def test_a_layer_of_a_library_that_is_not_installed_is_a_record(values, tmp_path, monkeypatch):
    monkeypatch.setattr(layer, "peers", dict)
    preset = {
        "name": "one", "n_head": 1, "d_head": 16, "batch": 1, "passes": ["forward"],
        "contexts": [8], "implementations": ["peer/fla_chunk"], "repeats": 3,
    }  # fmt: skip
    values["speed"] = {"timeout_seconds": 20, "repeats": 3, "target_seconds": 1e-4}
    values["speed"]["time_layer"] = [preset]
    (one,) = sweeps.expand(grid.expand(values).study).values()
    write_json(tmp_path / "sweep.json", dump(one))
    sweep.measure(tmp_path / "sweep.json", tmp_path / "out")
    (path,) = (path for path in (tmp_path / "out").glob("*.json") if path.name != "sweep.json")
    row = json.loads(path.read_text())
    assert row["status"] == "failed"
    assert "flash-linear-attention" in row["message"]


def test_a_time_stands_beside_the_floor_of_its_own_setup(tmp_path, values):
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    shape = {"n_head": 2, "d_head": 64, "batch": 4, "n_layer": None, "size": "one"}
    points = [
        measured_point("time_ceiling", "copy", 10**9, 1e-3),
        measured_point("time_ceiling", "matmul", 1000, 1e-3),
        measured_point("time_ceiling", "copy", 10**9, 1.0, device="another"),
        *(measured_point("time_layer", "linear chunked", 100, 8e-7, passes=passes, **shape)
          for passes in ("forward", "forward+backward")),
    ]  # fmt: skip
    write(tmp_path, *points)
    store.build(tmp_path)
    with store.connect(tmp_path / "store") as db:
        ceilings = db.sql("SELECT copy_bytes_per_second, matmul_flops FROM ceilings ORDER BY ALL")
        assert ceilings.fetchall() == [(2e9, None), (2e12, pytest.approx(2e12))]
        rows = db.sql("SELECT kind, ns_per_token_head, floor_fraction FROM kernel_times ORDER BY 3")
        # A token of a head moves 516 bytes forward and 900 more backward, at 2 TB/s, in 1 ns.
        expected = [("linear", pytest.approx(1), pytest.approx(x)) for x in (0.258, 0.708)]
        assert rows.fetchall() == expected
