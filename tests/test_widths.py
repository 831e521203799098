"""``width_rule: mup``: what does not depend on the width of a model, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import refused
from torch import nn
from torch.nn.functional import cross_entropy

from lmscaling.config import grid
from lmscaling.config.cell import Parts
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT

WIDTHS = (16, 32, 64, 128)
LLAMA = Parts(norm="rms", mlp="swiglu", bias=False, tied_head=False)


@pytest.fixture
def make(cell):
    """A cell of a width with heads of 8, by the rule from a width, or without one."""

    def make(width, base=None, **more):
        shape = {"n_layer": 2, "n_head": width // 8, "d_model": width, "init_std": 0.1}
        rule = {"width_rule": "mup", "base_width": base} if base else {}
        model = replace(cell.model, **shape)
        usual = {"attention": "softmax", "context": 32}
        return replace(cell, model=model, **usual | rule | more)

    return make


def updated(cell, updates, see=None):
    """A model after updates on random tokens, and how far they have moved what layers put out."""
    gpt, (x, y) = (
        GPT(cell),
        torch.randint(16, (2, 8, 32), generator=torch.Generator().manual_seed(1)),
    )
    steps, seen = optimizer.build(gpt, cell), {}
    for name, part in gpt.named_modules():
        if name.startswith("blocks.") and (isinstance(part, nn.Linear) or name.count(".") == 1):
            part.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))

    @torch.no_grad()
    def outputs():
        return {"logits": gpt(x), **seen}

    before = outputs()
    for _ in range(updates):
        gpt.zero_grad()
        gpt.loss(x, y).backward()
        steps.step()
    after = outputs()
    return gpt, {name: (after[name] - before[name]).abs().mean().item() for name in before}


@pytest.mark.parametrize("more", [{}, {"block": LLAMA}, {"attention": "gated_delta"}])
def test_updates_move_all_outputs_alike_at_every_width_with_the_rule_alone(make, more):
    def growth(base):
        moves = [updated(make(width, base, lr=1e-2, **more), 4)[1] for width in WIDTHS]
        table = np.log([list(of_width.values()) for of_width in moves])
        return dict(zip(moves[0], np.polyfit(np.log(WIDTHS), table, 1)[0], strict=True))

    flat, steep = growth(16), growth(None)
    assert max(map(abs, flat.values())) < 0.2
    assert min(steep.values()) > 0.4


def test_at_its_base_width_the_rule_changes_nothing(make):
    with_rule, without = (updated(make(16, base), 2)[0] for base in (16, None))
    assert all(map(torch.equal, with_rule.parameters(), without.parameters()))


def test_weights_begin_and_decay_as_table_8_says(make):
    base, wide = (GPT(make(width, 16, attention="gated")) for width in (16, 64))
    stds = {
        name: (p.std() / base.get_parameter(name).std()).item()
        for name, p in wide.named_parameters()
        if p.dim() == 2
    }
    falls = {"blocks.1.attention.down.weight": 1 / 4, "blocks.1.attention.up.weight": 1}
    falls |= {"blocks.1.up.weight": 1 / 2, "wte.weight": 1, "wpe.weight": 1}
    assert {name: stds[name] for name in falls} == pytest.approx(falls, rel=0.1)
    groups = optimizer.build(wide, make(64, 16)).param_groups
    decays = [group["lr"] * group["weight_decay"] for group in groups]
    assert decays == pytest.approx([decays[0], 0, decays[0]])


def test_logits_of_sampling_and_losses_are_those_of_the_whole_sequence(make):
    gpt, (x, y) = GPT(make(64, 16)), torch.randint(0, 256, (2, 2, 32))
    whole = gpt(x)
    logits, states = gpt.prefill(x[:, :9], gpt.init_states(2, 32))
    found = [logits]
    for t in range(9, 32):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), whole[:, 8:])
    expected = cross_entropy(whole.flatten(0, 1), y.flatten())
    torch.testing.assert_close((gpt.loss(x, y), gpt.token_losses(x, y).mean()), (expected,) * 2)


def test_a_rule_is_part_of_a_run_and_may_be_an_axis_or_left_out_once(values):
    plain = grid.expand(values).runs
    assert grid.expand(values | {"base_width": 8}).runs.keys() == plain.keys()
    values |= {"base_width": 8, "axes": values["axes"] | {"attention": ["softmax"]}}
    on_axis = values | {"axes": values["axes"] | {"width_rule": [None, "mup"]}}
    labels = {cell.attention: cell.width_rule for cell in grid.expand(on_axis).cells.values()}
    assert labels == {"softmax": None, "softmax.width_rule_mup": "mup"}
    ablated = values | {"width_rule": "mup", "ablate": {"width_rule": None}}
    labels = {cell.attention: cell.base_width for cell in grid.expand(ablated).cells.values()}
    assert labels == {"softmax": 8, "softmax.width_rule_none": None}
    assert not plain.keys() & grid.expand(values | {"width_rule": "mup"}).runs.keys()


@pytest.mark.parametrize(("more", "told"), [
    ({"base_width": None}, "base_width: 8"), ({"optimizer": {"kind": "muon"}}, "muon"),
    ({"width_rule": "completep"}, "mup"), ({"base_width": 0}, "base_width"),
    ({"sizes": {"s": {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2},
                "m": {"n_layer": 1, "n_head": 1, "d_model": 12, "lr": 1e-2}}}, "d_model: 16"),
])  # fmt: skip
def test_a_rule_that_has_no_base_or_no_proof_is_refused(values, more, told):
    values["axes"]["size"] = ["s", "m"]
    with refused(UserError, told):
        grid.expand(values | {"width_rule": "mup", "base_width": 8} | more)
