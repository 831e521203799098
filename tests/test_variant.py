"""The check of an attention before it trains: what it refuses, with which words, and what not."""

import os
import re
import subprocess
import sys

import pytest
import strangers
import torch
from strangers import file

from lmscaling import registry
from lmscaling.bench.checks import variant
from lmscaling.errors import UserError

CPU = torch.device("cpu")

DECODE = """
    def init_state(self, batch, context):
        return torch.zeros(batch, 0, self.out.in_features)

    def prefill(self, x_BTD, state):
        return self(x_BTD), x_BTD

    def decode_step(self, x_BD, state):
        state = torch.cat([state, x_BD[:, None]], 1)[:, -{kept}:]
        return self(state)[:, -1], state
"""
"""Decodes by recomputation from the last ``kept`` tokens."""

FAULTS = {
    "a mask that is off by one": (
        file().replace("triu(1)", "triu(2)"),
        "looks ahead: its output at position 0 changes with the token at position 1; let no",
    ),
    "a mask that is off by one after 40 tokens": (
        file(more="").replace(
            "triu(1).bool()", "triu(1).bool()\n        ahead[40:] = ahead[40:].triu(42)"
        ),
        r"looks ahead: its output at position (\d+) changes with the token at position (\d+); let",
    ),
    "a mean over the sequence": (
        file(then="y = y - 1e-3 * y.mean(2, keepdim=True)"),
        r"looks ahead: its output at position 0 changes with the token at position (\d+); let no",
    ),
    "a maximum over the sequence that cancels but for rounding": (
        file(then="m = v.abs().amax((2, 3), keepdim=True); y = (y / m) * m"),
        r"looks ahead: its output at position (\d+) changes with the token at position (\d+); let",
    ),
    "heads that are not joined": (
        file().replace(".flatten(2))", ".flatten(2))[..., None]"),
        re.escape("returns the shape [2, 70, 64, 1] for an input of [2, 70, 64]; mend"),
    ),
    "a product that does not fit": (
        file(then="y = y @ y"),
        r"raises RuntimeError in line \d\d: .*; mend attention/mine.py, then type "
        "lmscaling check attention mine",
    ),
    "a result in float64": (
        file().replace("return self.out(y", "y = y.double()\n        return self.out.double()(y"),
        "returns float64 for float32; allowed: float32; mend",
    ),
    "a result in float16 under autocast": (
        file().replace(
            "return self.out(", "half = torch.is_autocast_enabled('cpu')\n        "
            "return (lambda y: y.half() if half else y)(self.out("
        ).replace(".flatten(2))", ".flatten(2)))"),
        "returns float16 for float32 under bfloat16 autocast; allowed: bfloat16 or float32; mend",
    ),
    "no tensor": (
        file().replace("return self.out(y", "return x_BTD, self.out(y"),
        "returns tuple; allowed: a tensor",
    ),
    "a result that is not a number": (
        file(then="y = y / (q.shape[2] - torch.arange(1., q.shape[2] + 1))[:, None]"),
        "returns a value that is not finite at position 69 of 70; mend",
    ),
    "random numbers": (
        file(then="y = nn.functional.dropout(y, 0.1, self.training)"),
        r"gives another result for the same input, first at position \d+; use no random numbers",
    ),
    "a sum that grows with each call": (
        file(init="self.calls = 0", then="self.calls += 1; y = y * self.calls"),
        "gives another result for the same input, first at position 0; ",
    ),
    "a norm over the batch": (
        file(
            init="self.norm = nn.BatchNorm1d(d_model)",
            then="y = self.norm(y.transpose(2, 3).flatten(1, 2)).unflatten(1, (-1, y.shape[3]))"
            ".transpose(2, 3)",
        ),
        "mixes the sequences of a batch: one of them alone gives another result, first at",
    ),
    "a gradient of infinity times zero": (
        file(then="y = torch.where(y < 9, y, (1000 * (y + 1) ** 2).exp())"),
        "gives its input a gradient that is not finite; mask before an exponential, and",
    ),
    "a parameter that is not used": (
        file(init="self.scale = nn.Parameter(torch.ones(3))"),
        "gives parameter scale no gradient; use it, or make it a buffer; mend",
    ),
    "steps that forget": (
        file(more=DECODE.format(kept=40)),
        r"decodes something else than forward: decode_step after 40 tokens differs at position "
        r"40, by 0\.\d+ of the largest output; mend",
    ),
    "a prompt that is read backwards": (
        file(more=DECODE.format(kept=100)).replace("self(x_BTD), x", "self(x_BTD.flip(1)), x"),
        r"decodes something else than forward: prefill of 33 tokens differs at position 0, by",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_attention_is_refused_with_one_sentence(package, fault):
    text, sentence = FAULTS[fault]
    package.write("mine", text)
    with pytest.raises(UserError, match=f"^attention mine {sentence}") as refusal:
        variant.check(variant.Variant(name="mine"), CPU)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith("lmscaling check attention mine")


def test_a_leak_in_one_place_is_named_by_its_positions(package):
    package.write("mine", file().replace(
        "triu(1).bool()", "triu(1).bool()\n        ahead[20:25, 20:] = False"
    ))  # fmt: skip
    with pytest.raises(UserError, match="position 20 changes with the token at position 21;"):
        variant.check(variant.Variant(name="mine"), CPU)


@pytest.mark.parametrize("rotated", [False, True], ids=["unrotated", "rope"])
@pytest.mark.parametrize("name", strangers.RIGHT)
def test_a_right_attention_of_a_stranger_passes(package, name, rotated):
    package.write("mine", strangers.RIGHT[name])
    assert "mine" in registry.attentions()
    variant.check(variant.Variant(name="mine", rotated=rotated), CPU)


def test_steps_that_keep_enough_pass(package):
    package.write("mine", file(more=DECODE.format(kept=70)))
    variant.check(variant.Variant(name="mine"), CPU)


def test_the_options_of_a_cell_and_its_context_reach_the_attention(package):
    package.write("mine", file(init="assert (rank, context) == (8, 200)").replace(
        "rotate):", "rotate, *, rank=8, context):"
    ))  # fmt: skip
    variant.check(variant.Variant(name="mine", context=200), CPU)
    with pytest.raises(UserError, match=r"mine raises AssertionError in line \d+: "):
        variant.check(variant.Variant(name="mine", context=201), CPU)
    package.write(
        "mine", file(init="assert context == 70").replace("rotate):", "rotate, *, context):")
    )
    variant.check(variant.Variant(name="mine", context=16), CPU)  # as long as what is checked


def test_of_a_variant_without_memory_nothing_is_said(package):
    package.write("mine", file(then='raise torch.OutOfMemoryError("CUDA out of memory")'))
    with pytest.raises(torch.OutOfMemoryError):
        variant.check(variant.Variant(name="mine"), CPU)


def test_the_verb_checks_a_file_that_has_just_come(package):
    package.write("mine", strangers.WINDOW)
    package.write("leaks", file().replace("triu(1)", "triu(2)"))
    environment = os.environ | {"PYTHONPATH": str(package.src)}
    verb = [sys.executable, "-m", "lmscaling", "check", "attention", "--cpu", "mine", "leaks"]
    done = subprocess.run(verb, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("check: attention mine is right on ")
    assert done.stderr == (
        "error: attention leaks looks ahead: its output at position 0 changes with the token at "
        "position 1; let no token see a later one, as torch.tril and is_causal do; mend "
        "attention/leaks.py, then type lmscaling check attention leaks\n"
    )
    assert done.returncode == 1
