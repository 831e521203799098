"""Measuring one point of the speed study: what is computed is what the point says."""

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from lmscaling import attention, kernels
from lmscaling.bench import clock, copy_task, decode, layer, memory, training_step
from lmscaling.bench.memory import Memory
from lmscaling.config.cell import Cell, Model
from lmscaling.config.speed import Heads, Sweep
from lmscaling.errors import UserError
from lmscaling.kernels.gated import plain
from lmscaling.model.gpt import GPT
from lmscaling.records.timing import Point

CPU = torch.device("cpu")


@pytest.fixture
def sweep(cell: Cell) -> Sweep:
    """A tiny model that is measured three times."""
    shape = Model(n_layer=2, n_head=2, d_model=32, vocab_size=20)
    return Sweep(
        kind="time_step",
        name="tiny",
        gpus=0,
        timeout_seconds=10,
        repeats=3,
        target_seconds=0.0,
        cell=replace(cell, model=shape),
    )


def point(attention: str, implementation: str = "", context: int = 24, **more) -> Point:
    return Point(attention=attention, implementation=implementation, context=context, **more)


def heads(sweep: Sweep) -> Sweep:
    return replace(sweep, cell=None, layer=Heads(n_head=2, d_head=16))


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_every_implementation_has_the_loss_of_the_model_it_computes(sweep, kind):
    x, y = torch.randint(20, (2, 2, 24), generator=torch.Generator().manual_seed(0))
    expected = training_step.Step(sweep, point(kind)).gpt.loss(x, y)
    for name in kernels.names(kind):
        made = training_step.Step(sweep, point(kind, name))
        torch.testing.assert_close(made.gpt.loss(x, y), expected)
        assert {b.get_submodule("attention").implementation for b in made.gpt.blocks} == {name}


def test_a_measured_step_is_a_step_of_training(sweep, monkeypatch):
    made = []

    class Watched(training_step.Step):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.first = [p.detach().clone() for p in self.gpt.parameters()]
            made.append(self)

    monkeypatch.setattr(training_step, "Step", Watched)
    outcome = training_step.measure(sweep, point("linear", "chunked", batch=2))
    (one,) = made
    changed = [(p != q).any() for p, q in zip(one.first, one.gpt.parameters(), strict=True)]
    assert all(changed)
    steps = outcome.warm_up + 3
    assert {int(s["step"]) for s in one.adamw.state.values()} == {2 * steps}  # and updates alone
    assert (outcome.optimizer_seconds or 0) > 0
    assert outcome.repeats == 3
    assert (outcome.least_seconds or 0) > 0
    assert (outcome.dtype, outcome.compiled, outcome.captured) == ("float32", False, False)
    assert (outcome.params, outcome.chunk) == (one.gpt.params, 64)


def test_a_gradient_is_clipped_before_the_step(sweep, monkeypatch):
    norms = []
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda parameters, most: norms.append(most)
    )
    training_step.measure(sweep, point("softmax"))
    assert set(norms) == {1.0}


@pytest.mark.parametrize("measure", [training_step.measure, decode.measure])
def test_an_unknown_implementation_is_refused(sweep, measure):
    with pytest.raises(UserError, match="'chunkd' has no file; nearest is 'chunked'"):
        measure(sweep, point("linear", "chunkd"))


@pytest.mark.parametrize("implementation", ["chunked", "chunked_materialized"])
def test_the_chunk_of_a_point_is_the_chunk_in_use(sweep, implementation, monkeypatch):
    used, cut = [], plain.cut
    monkeypatch.setattr(plain, "cut", lambda x, chunk: used.append(chunk) or cut(x, chunk))
    outcome = training_step.measure(sweep, point("linear", implementation, chunk=8))
    assert (outcome.chunk, set(used)) == (8, {8})


@pytest.mark.parametrize("name", ["softmax/flash", "linear/state_parallel"])
def test_a_chunk_that_nothing_takes_is_refused(sweep, name):
    with pytest.raises(UserError, match=r"takes no chunk here; leave it out of tune_chunk"):
        training_step.measure(sweep, point(*name.split("/"), chunk=8))
    assert training_step.measure(sweep, point(*name.split("/"))).chunk is None


def test_a_variant_without_implementations_is_measured_as_it_is(sweep, monkeypatch):
    class Plain(nn.Module):
        def __init__(self, d_model, n_head, rotate):
            super().__init__()
            self.out = nn.Linear(d_model, d_model)

        def forward(self, x_BTD):
            return self.out(x_BTD)

        def flops_per_token(self, context):
            return 1.0

    monkeypatch.setattr(attention, "load", lambda name: Plain)
    outcome = training_step.measure(sweep, point("plain"))
    assert (outcome.repeats, outcome.chunk) == (3, None)
    with pytest.raises(
        UserError, match="implementation 'fast': this attention has no option implementation"
    ):
        training_step.measure(sweep, point("plain", "fast"))


@pytest.mark.parametrize("name", ["linear", "softmax"])
@pytest.mark.parametrize("position", ["learned", "rope", "none"])
def test_a_token_is_sampled_behind_a_cache_that_a_forward_pass_has_filled(
    sweep, name, position, monkeypatch
):
    given, prefill = [], GPT.prefill
    monkeypatch.setattr(
        GPT, "prefill", lambda gpt, x, states: given.append(x) or prefill(gpt, x, states)
    )
    gpt = GPT(replace(sweep.cell, attention=name, position=position, context=25))
    x_B, states = decode.filled(gpt, 3, 24)
    (x_BT,) = given
    assert x_BT.shape == (3, 24)
    assert x_BT.unique().numel() > 10
    for state in states.blocks:
        filled = state.k_BHTK[:, :, :24] if name == "softmax" else state.kv_BHKK
        assert (filled != 0).all()
    logits_BV, _ = gpt.decode_step(x_B, states)
    whole = gpt(torch.cat((x_BT, x_B.unsqueeze(1)), 1))[:, -1]
    torch.testing.assert_close(logits_BV, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "softmax"])
def test_every_repeat_samples_the_same_token_at_the_same_length(sweep, name, monkeypatch):
    lengths, one = [], GPT.decode_step
    monkeypatch.setattr(
        GPT,
        "decode_step",
        lambda gpt, x, states: lengths.append(states.length) or one(gpt, x, states),
    )
    outcome = decode.measure(sweep, point(name, batch=2))
    assert lengths == [24] * (outcome.warm_up + 3)
    assert (outcome.dtype, outcome.chunk) == ("float32", None)
    assert outcome.params


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_a_layer_is_measured_forward_and_with_gradients(sweep, kind, monkeypatch):
    graded, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *given: graded.append(given) or grad(*given))
    for name in kernels.names(kind):
        for passes, each in (("forward", 0), ("forward+backward", 1)):
            graded.clear()
            outcome = layer.measure(heads(sweep), point(kind, name, batch=2, passes=passes))
            assert outcome.repeats == 3
            assert len(graded) == each * (outcome.warm_up + 3)
            assert outcome.params is None


def test_a_layer_gets_views_of_one_projection_and_returns_one_gradient():
    given = []

    def attend(q, k, v, *options):
        given.append((q, k, v, options))
        return q * k + v

    call = layer.call(attend, "linear", "forward+backward", (2, 5, 3, 4), torch.float32, CPU)
    (gradient,) = cast("tuple[torch.Tensor]", call())
    ((q, k, v, options),) = given
    assert q._base is k._base is v._base
    assert gradient.shape == (2, 5, 3, 3, 4)
    assert options == ("softplus", True)
    layer.call(attend, "softmax", "forward", (2, 5, 3, 4), torch.float32, CPU)()
    assert given[1][3] == ()


def test_an_unknown_layer_is_refused(sweep):
    with pytest.raises(UserError, match="'flsh' has no file; nearest is 'flash'"):
        layer.measure(heads(sweep), point("softmax", "flsh", passes="forward"))


@pytest.mark.parametrize("context", [2, 3, 8, 9])
def test_a_sequence_is_repeated_behind_a_separator(context):
    x, y = copy_task.sequences(50, context, 4, torch.Generator().manual_seed(0))
    n = context // 2
    assert x.shape == y.shape == (50, context)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(y[:, -n:], x[:, context - 2 * n : context - n])
    assert (x[:, context - n] == 0).all()
    assert set(y[:, -n:].unique().tolist()) == {1, 2, 3, 4}


@pytest.fixture
def task(sweep: Sweep) -> Sweep:
    """One layer that is to repeat sequences of four symbols."""
    shape = Model(n_layer=1, n_head=2, d_model=32, vocab_size=5)
    assert sweep.cell
    return replace(sweep, kind="copy_task", cell=replace(sweep.cell, model=shape, lr=3e-3))


def test_a_step_of_the_copy_task_is_timed_and_nothing_is_learned(task):
    outcome = copy_task.measure(task, point("linear", context=8, batch=4, updates=10))
    assert (outcome.loss, outcome.accuracy) == (None, None)
    assert outcome.repeats == 3


def test_only_the_copy_has_a_loss(task):
    made = training_step.Step(task, point("softmax", context=8))
    x, y = copy_task.sequences(3, 8, 4, torch.Generator().manual_seed(0))
    loss = copy_task._loss(made, x, y)
    assert loss.item() == pytest.approx(math.log(64), abs=0.2)
    torch.testing.assert_close(
        copy_task._loss(made, x, torch.cat((y[:, :4] * 0, y[:, 4:]), 1)), loss
    )


def test_a_context_without_room_for_a_copy_is_refused(task):
    with pytest.raises(UserError, match="a context of 1 has no room for a copy"):
        copy_task.measure(task, point("linear", context=1))


@pytest.mark.skipif(not memory.PROCESS.is_dir(), reason="the system does not say what is resident")
def test_memory_on_the_cpu_is_the_most_that_was_resident_less_what_was_before(sweep):
    before = torch.ones(2**22)
    watched = Memory(CPU)
    assert (watched.peak_bytes() or 0) < 2**22
    torch.ones(2**23).sum()  # 32 MiB
    assert 31 < (watched.peak_bytes() or 0) / 2**20 < 40
    watched.reset()
    assert (watched.peak_bytes() or 0) < 2**22
    del before
    short, long = (
        layer.measure(
            heads(sweep), point("softmax", "no_flash", context=context, passes="forward")
        ).peak_memory_bytes
        for context in (64, 1024)
    )
    assert (long or 0) > (short or 0) + 2 * 2 * 1024**2 * 4  # scores and weights of two heads


def test_where_the_system_does_not_say_memory_is_not_known(sweep, monkeypatch):
    monkeypatch.setattr(memory, "PROCESS", Path("/nowhere"))
    assert training_step.measure(sweep, point("linear")).peak_memory_bytes is None


@pytest.mark.parametrize("measured", [clock.timed, clock.launched])
def test_repeats_go_on_for_so_long_but_never_too_often(measured):
    for seconds, most, expected in ((0.0, 50, 3), (60.0, 5, 5)):
        calls = []
        timing = measured(lambda calls=calls: calls.append(0), Memory(CPU), seconds, most)
        assert len(timing.seconds) == expected
        assert len(calls) == expected + timing.warm_up
