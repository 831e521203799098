"""The model is GPT-2; runs as models of ``transformers`` and of lm-evaluation-harness."""

import importlib.util
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import refused
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from lmscaling.config.cell import Model, Parts
from lmscaling.errors import UserError
from lmscaling.evaluate import sampling
from lmscaling.model import huggingface, tensor_file
from lmscaling.model.gpt import GPT


@pytest.fixture
def softmax(cell):
    shape = Model(n_layer=3, n_head=4, d_model=64, vocab_size=256)
    return replace(cell, attention="softmax", model=shape, context=48)


def reference(cell, weights):
    """``transformers``' GPT-2 of the same shape with given weights."""
    shape = cell.model
    config = GPT2Config(
        vocab_size=shape.vocab_size, n_positions=cell.context, n_embd=shape.d_model,
        n_layer=shape.n_layer, n_head=shape.n_head,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    keys = model.load_state_dict(weights, strict=False)
    assert (keys.missing_keys, keys.unexpected_keys) == (["lm_head.weight"], [])  # tied
    return model


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_logits_and_gradients_are_those_of_transformers(softmax, dtype, bound):
    gpt, gradients = GPT(softmax), GPT(softmax)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in gpt.parameters():  # biases too, which begin at zero
            p.add_(0.02 * torch.randn_like(p))
    other, gpt = reference(softmax, huggingface.to_huggingface(gpt)).to(dtype), gpt.to(dtype)
    x, y = torch.randint(0, 256, (2, 3, 48))
    logits, expected = gpt(x), other(x)["logits"]
    assert (logits - expected).abs().max() < bound
    for output in (logits, expected):
        torch.nn.functional.cross_entropy(output.flatten(0, 1), y.flatten()).backward()
    gradients = gradients.to(dtype)  # a model whose weights are the gradients of ours
    with torch.no_grad():
        for p, of in zip(gradients.parameters(), gpt.parameters(), strict=True):
            assert of.grad is not None
            p.copy_(of.grad)
    theirs = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    for name, ours in huggingface.to_huggingface(gradients).items():
        assert (ours - theirs[name]).abs().max() < bound, name


def finished(cell, tmp_path):
    """A finished run of a cell, with weights that no initialization draws, and its model."""
    folder = tmp_path / "runs" / cell.run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"cell": json.loads(cell.to_json())}))
    gpt, random = GPT(cell), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in gpt.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=random))
        gpt.wte.weight[128:256] = 0  # which are never the likeliest, and no ASCII
    weights = {name: p.detach() for name, p in gpt.named_parameters()}
    tensor_file.write(folder / "model.safetensors", weights)
    return folder, gpt


def test_transformers_reads_an_exported_gpt2(softmax, tmp_path):
    folder, gpt = finished(softmax, tmp_path)
    huggingface.export(folder, tmp_path / "out")
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == model.config.vocab_size - 1
    x = torch.randint(0, 256, (2, 48))
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, gpt(x), rtol=1e-5, atol=1e-6)
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == 3 * 12 + 4


SHAPE = Model(n_layer=2, n_head=2, d_model=16, vocab_size=257)


@pytest.mark.parametrize(
    ("attention", "position"),
    [("linear", "learned"), ("favor", "rope"), ("taylor2", "none"), ("softmax", "rope")],
)
def test_any_other_run_is_exported_with_code_that_transformers_loads(
    cell, tmp_path, attention, position
):
    block = Parts(norm="rms", mlp="swiglu", tied_head=False) if position == "rope" else Parts()
    shape = {"position": position, "block": block, "model": SHAPE, "context": 32}
    cell = replace(cell, attention=attention, **shape)
    folder, gpt = finished(cell, tmp_path)
    gpt = gpt.double().eval()
    huggingface.export(folder, tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", trust_remote_code=True, dtype=torch.float64
    )
    x = torch.randint(0, 257, (2, 32))
    with torch.no_grad():
        found = model(x, labels=x)
    losses = gpt.token_losses(x[:, :-1], x[:, 1:])
    shares = found.logits[:, :-1].log_softmax(-1)
    assert (-shares.gather(-1, x[:, 1:, None]).squeeze(-1) - losses).abs().max() < 1e-10
    assert abs(found.loss - losses.mean()) < 1e-10
    drawn = torch.stack(list(sampling.generate(gpt, x[:, :5], 9, temperature=0)), 1)
    for cached in (False, True):
        said = model.generate(x[:, :5], max_new_tokens=9, do_sample=False, use_cache=cached)
        assert torch.equal(said[:, 5:], drawn)
    with refused(UserError, "left"):
        model(x, attention_mask=torch.arange(32).expand(2, 32) > 3)
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(again(x).logits, found.logits)


def test_a_run_without_weights_is_not_exported(softmax, tmp_path):
    folder, _ = finished(softmax, tmp_path)
    (folder / "model.safetensors").unlink()
    with refused(UserError, softmax.run, "first update"):
        huggingface.export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def harness(monkeypatch, tmp_path):
    """The class that lm-evaluation-harness loads; where that is absent, with a bare base class."""
    if importlib.util.find_spec("lm_eval") is None:
        (tmp_path / "lm_eval" / "api").mkdir(parents=True)
        (tmp_path / "lm_eval" / "api" / "model.py").write_text("class LM: ...")
        monkeypatch.syspath_prepend(tmp_path)
    with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["lm_eval.models"]
    module, _, name = points["lmscaling"].partition(":")
    return getattr(importlib.import_module(module), name)


def asked(*args):
    return SimpleNamespace(args=args)


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_log_likelihoods_of_the_harness_are_the_losses_of_the_model(
    cell, tmp_path, harness, position
):
    block = Parts(softcap=1.0, tied_head=False) if position == "rope" else Parts()
    cell = replace(cell, model=SHAPE, context=16, position=position, block=block)
    folder, gpt = finished(cell, tmp_path)
    model, gpt = harness(run=str(folder), dtype="float64", batch_size=4), gpt.double()

    def losses(text, start, stop):  # of bytes start to stop of a text of 1-byte tokens
        ids = torch.tensor([[256, *text.encode()]])[:, max(0, stop - 16) : stop + 1]
        return float(gpt.token_losses(ids[:, :-1], ids[:, 1:])[0, start - stop :].sum())

    pairs = [("to be", " or not"), ("to be ", "or"), ("", "to be"), ("a" * 40, "bcd")]
    found = model.loglikelihood([asked(*pair) for pair in pairs])
    for (context, text), (value, _) in zip(pairs, found, strict=True):
        start, whole = len(context.rstrip()), context + text
        assert abs(value + losses(whole, start, len(whole))) < 1e-10
    text = "that is the question, whether 'tis nobler"
    (whole,) = model.loglikelihood_rolling([asked(text)])
    parts = [losses(text, start, min(start + 16, len(text))) for start in range(0, len(text), 16)]
    assert abs(whole + sum(parts)) < 1e-10


def test_answers_of_the_harness_are_the_likeliest_tokens_up_to_a_stop(cell, tmp_path, harness):
    folder, gpt = finished(replace(cell, model=SHAPE, context=16, position="rope"), tmp_path)
    model = harness(run=str(folder))
    (answer,) = model.generate_until([asked("ab", {"max_gen_toks": 6})])
    prompt = torch.tensor([[256, *b"ab"]])
    ids = [int(x) for x in sampling.generate(gpt.eval(), prompt, 6, temperature=0)]
    assert answer == bytes(ids).decode("utf-8", "replace")
    end = answer[3]
    (cut,) = model.generate_until([asked("ab", {"max_gen_toks": 6, "until": [end]})])
    assert cut == answer[: answer.index(end)]
    ((_, is_greedy),) = model.loglikelihood([asked("ab", answer)])
    assert is_greedy
    assert not model.loglikelihood([asked("ab", answer[::-1] + "~")])[0][1]
