"""The model is GPT-2: logits and gradients against ``transformers``, and the export of runs."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import refused
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from lmscaling.config.cell import Model
from lmscaling.errors import UserError
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


@pytest.fixture
def run(softmax, tmp_path):
    folder = tmp_path / "runs" / softmax.run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"cell": json.loads(softmax.to_json())}))
    gpt = GPT(softmax)
    weights = {name: p.detach() for name, p in gpt.named_parameters()}
    tensor_file.write(folder / "model.safetensors", weights)
    return folder, gpt


def test_transformers_reads_an_exported_run(run, tmp_path):
    folder, gpt = run
    huggingface.export(folder, tmp_path / "out")
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == model.config.vocab_size - 1
    x = torch.randint(0, 256, (2, 48))
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, gpt(x), rtol=1e-5, atol=1e-6)
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == 3 * 12 + 4


def test_what_cannot_be_exported_is_refused(run, softmax, tmp_path):
    folder, _ = run
    (folder / "model.safetensors").unlink()
    with refused(UserError, softmax.run, "first update"):
        huggingface.export(folder, tmp_path / "out")
    linear = replace(softmax, attention="linear")
    shifted = replace(softmax, model=replace(softmax.model, token_shift=True))
    for cell, *named in ((linear, "attention linear", "softmax"), (shifted, "token_shift true")):
        (folder / "run.json").write_text(json.dumps({"cell": json.loads(cell.to_json())}))
        with refused(UserError, *named):
            huggingface.export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
