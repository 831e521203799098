"""The check of an attention before it trains: what it refuses, and what not."""

import re
import sys
from dataclasses import replace

import pytest
import strangers
import torch
from conftest import refused
from strangers import file

from lmscaling import attention, registry
from lmscaling.bench.checks import variant
from lmscaling.cli import main
from lmscaling.errors import UserError

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

LOOKS, MIXES = "looks ahead", "mixes the"
AHEAD = "triu(1).bool()"  # the mask of ``file()``


def changed(old, new):
    assert old in file()
    return file().replace(old, new)


def by_documents(body):
    """An attention with a way of its own to compute documents."""
    return file(more=f"\n    def forward_documents(self, x_BTD, documents):\n        {body}\n")


FAULTS: dict[str, tuple[object, ...]] = {
    "a mask that is off by one": (
        changed("triu(1)", "triu(2)"), LOOKS, "position 0", "position 1;"),
    "a leak in one place": (
        changed(AHEAD, AHEAD + "\n        ahead[20:25, 20:] = False"),
        LOOKS, "position 20", "position 21;"),
    "a maximum over the sequence that cancels but for rounding": (
        file(then="m = v.abs().amax((2, 3), keepdim=True); y = (y / m) * m"), LOOKS),
    "heads that are not joined": (
        changed(".flatten(2))", ".flatten(2))[..., None]"), "[2, 70, 64, 1]", "[2, 70, 64]"),
    "a product that does not fit": (file(then="y = y @ y"), "RuntimeError", "in line 27:"),
    "a result in float64": (
        changed("return self.out(y", "y = y.double()\n        return self.out.double()(y"),
        "float64 for float32;"),
    "a result in float16 under autocast": (
        changed("return self.out(", "half = torch.is_autocast_enabled('cpu')\n        "
                "return (lambda y: y.half() if half else y)(self.out("
                ).replace(".flatten(2))", ".flatten(2)))"),
        "float16 for float32 under", "bfloat16 or float32"),
    "no tensor": (changed("return self.out(y", "return x_BTD, self.out(y"), "tuple"),
    "a result that is not a number": (
        file(then="y = y / (q.shape[2] - torch.arange(1., q.shape[2] + 1))[:, None]"),
        "not finite", "position 69 of 70"),
    "a sum that grows with each call": (
        file(init="self.calls = 0", then="self.calls += 1; y = y * self.calls"),
        "another result", "position 0;"),
    "a norm over the batch": (
        file(init="self.norm = nn.BatchNorm1d(d_model)",
             then="y = self.norm(y.transpose(2, 3).flatten(1, 2))"
                  ".unflatten(1, (-1, y.shape[3])).transpose(2, 3)"),
        MIXES, "sequences of a batch"),
    "a gradient of infinity times zero": (
        file(then="y = torch.where(y < 9, y, (1000 * (y + 1) ** 2).exp())"),
        "its input", "not finite"),
    "a parameter that is not used": (
        file(init="self.scale = nn.Parameter(torch.ones(3))"), "parameter scale", "no gradient"),
    "a prompt that is read backwards": (
        file(more=DECODE.format(kept=100)).replace("self(x_BTD), x", "self(x_BTD.flip(1)), x"),
        "prefill of 33", "position 0,"),
    "a document that reads the one before": (
        by_documents("return self(x_BTD)"),
        MIXES, "documents of a row", "the output", "position 0 of its 1;"),
    "a gradient of documents that is lost": (
        by_documents("y = documents.each(self, x_BTD); "
                     "return torch.cat([y[:, :66], y[:, 66:].detach()], 1)"),
        MIXES, "documents of a row", "the gradient"),
    "a later document": (
        by_documents("y = documents.each(self, x_BTD); return y + 1e-4 * y[:, -1:]"),
        LOOKS, "position 0"),
    "documents in one row": (
        by_documents("return documents.each(self, x_BTD).flatten(0, 1)"),
        "[140, 64]", "[2, 70, 64]"),
    "an error of documents": (
        by_documents("return documents.nothing"), "AttributeError", "in line 31:", "'nothing'"),
}  # fmt: skip
# Their sentence has a position or a number that depends on the processor.
UNSTEADY = {
    LOOKS: changed(AHEAD, AHEAD + "\n        ahead[40:] = ahead[40:].triu(42)"),
    "decode_step after 40": file(more=DECODE.format(kept=40)),
}


def check(**variant_of):
    variant.check(variant.Variant(name="mine", **variant_of), torch.device("cpu"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_attention_is_refused(package, fault):
    text, *values = FAULTS[fault]
    package.write("mine", text)
    masked = "document" in fault
    if masked:
        check()
    with refused(UserError, "attention mine", *values) as refusal:
        check(masked=masked)
    assert re.fullmatch(".*check attention mine", str(refusal.value))  # one line


@pytest.mark.parametrize("value", UNSTEADY)
def test_a_wrong_attention_is_refused_wherever_it_shows(package, value):
    package.write("mine", UNSTEADY[value])
    with pytest.raises(UserError, match=value):
        check()


@pytest.mark.parametrize("text", [*strangers.RIGHT.values(), file(more=DECODE.format(kept=2048))])
def test_a_right_attention_of_a_stranger_passes(package, text):
    package.write("mine", text)
    assert "mine" in registry.attentions()
    check()
    check(rotated=True, masked=True)


LATE = {
    "a leak from position 1,500 on": (
        changed(AHEAD, AHEAD + "\n        i = torch.arange(1500, max(1500, len(ahead) - 1)); "
                "ahead[i, i + 1] = False"), LOOKS, "position 1536", "position 1537;"),
    "a mask of blocks that is right in the first": (
        changed(AHEAD, AHEAD + "\n        n = torch.arange(len(ahead)) // 256; "
                "ahead &= (n[:, None] != n) | (n == 0)"), LOOKS, "position 256"),
    "a number that overflows": (
        file(then="y = torch.where(torch.arange(y.shape[2])[:, None] < 1500, y, torch.inf)"),
        "not finite", "position 1500"),
    "a cache that is too short": (
        file(more=DECODE.format(kept=500)), "decode_step after", "position 2046"),
}  # fmt: skip


@pytest.mark.parametrize("fault", LATE)
def test_what_is_wrong_only_in_long_sequences_is_refused_at_the_context_of_a_cell(
    package, cell, tmp_path, fault
):
    text, *values = LATE[fault]
    package.write("mine", text)
    check(context=70)
    long, path = replace(cell, attention="mine", context=2048), tmp_path / "checks.json"
    for _ in range(2):  # what has failed is not taken for checked
        with pytest.raises(UserError, match=r"^attention mine") as caught:
            variant.require(long, torch.device("cpu"), path)
        assert all(value in str(caught.value) for value in values)


def test_the_options_of_a_cell_and_its_context_reach_the_attention(package):
    text = file(init="assert (rank, context) == (8, 200)")
    package.write("mine", text.replace("rotate):", "rotate, *, rank=8, context):"))
    check(context=200)
    with refused(UserError, "AssertionError", "in line 12:"):
        check(context=201)
    text = file(init="assert context == 70")
    package.write("mine", text.replace("rotate):", "rotate, *, context):"))
    check(context=16)  # as long as what is checked


@pytest.mark.parametrize("parameters", ["d_model, n_head)", "d_model, n_head, rotate, *, k)"])
def test_a_constructor_that_does_not_fit_is_refused_with_the_one_that_does(package, parameters):
    package.write("mine", changed("d_model, n_head, rotate)", parameters))
    with refused(UserError, "attention mine", "(self, d_model, n_head, rotate)"):
        check()


def test_an_attention_whose_flops_cannot_be_counted_says_why_and_what_it_may_define(package):
    package.write("mine", file(then="assert len(y[0, 0]) % 64 == 0"))
    counted = attention.build("mine", 64, 4)
    assert counted.flops_per_token(256) > 0
    with refused(UserError, "attention mine", "35 tokens", "AssertionError", "flops_per_token"):
        counted.flops_per_token(70)


def test_of_a_variant_without_memory_nothing_is_said(package):
    package.write("mine", file(then='raise torch.OutOfMemoryError("CUDA out of memory")'))
    with pytest.raises(torch.OutOfMemoryError):
        check()


def test_the_verb_checks_files_and_its_exit_says_what_is_wrong(package, capsys, monkeypatch):
    package.write("mine", strangers.WINDOW)
    package.write("leaks", file().replace("triu(1)", "triu(2)"))
    monkeypatch.setattr(sys, "argv", ["lmscaling", "check", "attention", "--cpu", "mine", "leaks"])
    with pytest.raises(SystemExit, match=r"leaks .*position 1;.*leaks\.py"):
        main()
    said = capsys.readouterr().out
    assert (said.startswith("check: attention mine"), "leaks" in said) == (True, False)
