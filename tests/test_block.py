"""Blocks other than GPT-2's: against ``transformers``, and what a study may ask of them."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import refused
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lmscaling import attention
from lmscaling.config import grid, sweeps
from lmscaling.config.cell import Cell, Model, Parts
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.model import sizing
from lmscaling.model.gpt import GPT
from lmscaling.plan import footprint
from lmscaling.types import dump

SHAPE = Model(n_layer=2, n_head=4, d_model=48, vocab_size=256)
LLAMA = Parts(norm="rms", mlp="swiglu", bias=False, n_kv_head=2, tied_head=False)
QWEN3 = replace(LLAMA, qk_norm=True, tied_head=True)
VALUES = [
    Parts(norm="rms"), Parts(mlp="swiglu"), Parts(bias=False), Parts(qk_norm=True),
    Parts(n_kv_head=1), Parts(softcap=0.5), Parts(tied_head=False), LLAMA, QWEN3,
]  # fmt: skip
NAMES = {"norm_1": "input_layernorm", "norm_2": "post_attention_layernorm",
         "attention.out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
         "down": "mlp.down_proj", "attention.qkv.q_norm": "self_attn.q_norm",
         "attention.qkv.k_norm": "self_attn.k_norm"}  # fmt: skip


@pytest.fixture
def make(cell):
    def make(parts, **more):
        given = {"attention": "softmax", "model": SHAPE, "context": 24, "position": "rope"}
        return replace(cell, block=parts, **given | more)

    return make


@pytest.fixture
def moved():
    """A model of a cell in float64, whose norms and biases are not those of the start."""

    def moved(cell):
        gpt = GPT(cell).double()
        torch.manual_seed(0)
        with torch.no_grad():
            for p in gpt.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return gpt

    return moved


def theirs(gpt):
    """Our weights by the names of ``transformers``, which has a matrix for each of q, k and v."""
    for name, p in gpt.named_parameters():
        part, _, kind = name.rpartition(".")
        place, _, inner = part.removeprefix("blocks.").partition(".")
        if inner == "attention.qkv":
            parts = zip("qkv", gpt.blocks[int(place)].attention.qkv.heads(p.T), strict=True)
            yield from (
                (f"model.layers.{place}.self_attn.{x}_proj.weight", w.flatten(1).T)
                for x, w in parts
            )
        elif inner:
            yield f"model.layers.{place}.{NAMES[inner]}.{kind}", p
        else:
            known = {"wte": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
            yield f"{known[part]}.{kind}", p


class Angles(nn.Module):
    """Their angles, which they compute in float32."""

    def forward(self, x, position_ids):
        exponents = torch.arange(0, 12, 2, dtype=torch.float64) / 12
        angles = position_ids[..., None].double() * 10_000.0**-exponents
        both = torch.cat((angles, angles), -1)
        return both.cos(), both.sin()


def in_float64(model):
    """Without the parts that ``transformers`` computes in float32 whatever the dtype."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                own = nn.RMSNorm(child.weight.shape, child.variance_epsilon)
                own.weight = child.weight
                setattr(module, name, own)
    model.model.rotary_emb = Angles()
    return model


@pytest.mark.parametrize(("parts", "kind", "config"), [
    (LLAMA, LlamaForCausalLM, LlamaConfig), (QWEN3, Qwen3ForCausalLM, Qwen3Config),
])  # fmt: skip
def test_logits_and_gradients_are_those_of_llama_and_qwen3(make, moved, parts, kind, config):
    gpt = moved(make(parts))
    other = kind(config(
        vocab_size=256, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, intermediate_size=128, rms_norm_eps=1e-5,
        max_position_embeddings=24, tie_word_embeddings=parts.tied_head,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )).double()  # fmt: skip
    with torch.no_grad():
        keys = other.load_state_dict(dict(theirs(gpt)), strict=False)
    assert not keys.unexpected_keys
    assert keys.missing_keys in ([], ["lm_head.weight"])  # tied
    plain = other(x := torch.randint(0, 256, (3, 24)))["logits"]
    assert (plain - gpt(x)).abs().max() < 1e-4
    logits, expected = gpt(x), in_float64(other)(x)["logits"]
    assert (logits - expected).abs().max() < 1e-12
    y = torch.randint(0, 256, (3, 24))
    for output in (logits, expected):
        cross_entropy(output.flatten(0, 1), y.flatten()).backward()
    found = dict(other.named_parameters())
    with torch.no_grad():
        for p in gpt.parameters():
            p.copy_(p.grad)
    for name, gradient in theirs(gpt):
        assert (gradient - found[name].grad).abs().max() < 1e-12, name


@pytest.mark.parametrize("parts", VALUES)
def test_a_prompt_and_steps_behind_it_give_what_the_whole_sequence_gives(make, moved, parts):
    gpt, x = moved(make(parts)), torch.randint(0, 256, (2, 24))
    logits, states = gpt.prefill(x[:, :9], gpt.init_states(2, 24))
    found = [logits]
    for t in range(9, 24):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), gpt(x)[:, 8:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parts", VALUES)
def test_its_loss_has_the_value_and_the_gradient_of_its_logits(make, moved, parts):
    gpt, (x, y) = moved(make(parts)), torch.randint(0, 256, (2, 2, 24))
    loss, whole = gpt.loss(x, y), cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close((loss, gpt.token_losses(x, y).mean()), (whole, whole.detach()))
    found, expected = (torch.autograd.grad(z, list(gpt.parameters())) for z in (loss, whole))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    assert gpt(x).abs().max() <= (parts.softcap or torch.inf)


@pytest.mark.parametrize("name", ["linear", "local", "elu"])
def test_norms_of_queries_and_keys_precede_any_attention_that_takes_them(make, moved, name):
    gpt, x = moved(make(Parts(qk_norm=True), attention=name)), torch.randint(0, 256, (1, 24))
    scaled = moved(make(Parts(qk_norm=True), attention=name))
    with torch.no_grad():
        for block in scaled.blocks:
            block.attention.qkv.weight[: 2 * 48] *= 1000
            block.attention.qkv.bias[: 2 * 48] *= 1000
    torch.testing.assert_close(scaled(x), gpt(x), rtol=1e-4, atol=1e-4)


def test_parameters_flops_and_states_are_those_of_the_parts(make):
    gpt2, D, L = GPT(make(Parts())), 48, 2
    blocks = L * (12 * D**2 + 13 * D) + 2 * D
    assert gpt2.params == blocks
    untied = GPT(make(Parts(tied_head=False)))
    assert (untied.params, untied.params_total) == (blocks, blocks + 2 * 256 * D)
    swiglu = GPT(make(Parts(mlp="swiglu", bias=False, norm="rms")))
    assert swiglu.params == L * (12 * D**2 + 2 * D) + D
    assert swiglu.flops_per_token() == untied.flops_per_token() == gpt2.flops_per_token()
    grouped = GPT(make(Parts(n_kv_head=1)))
    assert grouped.state_bytes(0) == gpt2.state_bytes(0) / 4
    saved = 2 * L * D * 36
    assert gpt2.flops_per_token() - grouped.flops_per_token() == 3 * 2 * saved
    normed = GPT(make(Parts(qk_norm=True)))
    assert normed.params == blocks + L * 2 * 12


@pytest.mark.parametrize("parts", [Parts(mlp="swiglu", bias=False), Parts(n_kv_head=1)])
def test_matched_models_of_any_block_have_as_many_parameters(values, parts):
    values |= {"match": "params", "block": dump(parts)}
    values["axes"] |= {"attention": ["softmax", "gated"] if not parts.n_kv_head else ["softmax"]}
    values["axes"]["size"] = ["m"]
    sizes = [sizing.shape(cell).params for cell in grid.expand(values).cells.values()]
    assert max(sizes) - min(sizes) < 2 * 4 * (3 * 16 + 2)


def test_without_biases_no_attention_has_a_linear_layer_with_one(make):
    for name in ("softmax", "gated_delta", "power"):
        gpt = GPT(make(Parts(bias=False), attention=name))
        layers = [m for m in gpt.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
        assert all(layer.bias is None for layer in layers)


@pytest.mark.ci
@pytest.mark.parametrize("parts", [LLAMA, QWEN3])
def test_a_compiled_block_is_one_graph_and_gives_the_same_numbers(make, parts):
    gpt, x = GPT(make(parts)), torch.randint(0, 256, (2, 24))
    expected = gpt(x)
    torch.compiler.reset()
    for block in gpt.blocks:
        block.compile(dynamic=False, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gpt(x), expected)


def test_tensors_that_two_blocks_have_in_common_begin_alike(make):
    gpt2, other = GPT(make(Parts())), GPT(make(replace(LLAMA, n_kv_head=None)))
    theirs = dict(other.named_parameters())
    common = {n for n, p in gpt2.named_parameters() if n in theirs and p.shape == theirs[n].shape}
    assert {"wte.weight", "blocks.1.attention.qkv.weight"} <= common
    assert all(torch.equal(gpt2.get_parameter(name), theirs[name]) for name in common)


def test_a_cell_with_the_block_of_gpt2_is_saved_without_it_and_any_is_read_again(make):
    plain, other = make(Parts()), make(QWEN3)
    assert "block" not in json.loads(plain.to_json())
    for cell in (plain, other):
        assert checked(Cell, json.loads(cell.to_json()), "cell") == cell
    assert plain.run != other.run
    assert plain.calibration != other.calibration


def test_blocks_are_axes_and_ablations_with_labels_that_say_what_differs(values):
    plain = grid.expand(values).cells
    values["axes"] |= {
        "block.norm": ["layer", "rms"], "block.softcap": [None, 30.0], "attention": ["softmax"],
    }  # fmt: skip
    values["ablate"] = {"block": {"tied_head": False}}
    found = grid.expand(values).cells
    assert {cell.attention for cell in found.values()} == {
        "softmax", "softmax.norm_rms", "softmax.softcap30", "softmax.norm_rms.softcap30",
        "softmax.tied_head_false",
    }  # fmt: skip
    assert {run for run, cell in plain.items() if cell.attention == "softmax"} <= found.keys()


@pytest.mark.parametrize(("block", "told"), [
    ({"n_kv_head": 1}, "attention linear"), ({"n_kv_head": 3}, "nearest is 1"),
    ({"norm": "batch"}, "layer, rms"), ({"softcap": 0}, "0"), ({"tied": False}, "tied_head"),
])  # fmt: skip
def test_a_block_that_cannot_be_is_refused_before_anything_runs(values, block, told):
    with refused(UserError, "block", told):
        grid.expand(values | {"block": block})


def test_heads_that_an_attention_cannot_have_are_refused(make, values):
    with refused(UserError, "gated", "qk_norm"):
        attention.build("gated", 16, 2, qk_norm=True)
    with refused(UserError, "n_kv_head"):
        attention.build("softmax", 16, 4, n_kv_head=3)
    timed = {"sizes": ["s"], "contexts": [16], "attentions": ["gated"], "batches": [1]}
    speed = {"timeout_seconds": 1, "repeats": 3, "target_seconds": 1, "time_decode": timed}
    study = grid.expand(values | {"speed": speed, "block": {"qk_norm": True}}).study
    with refused(UserError, "gated", "qk_norm"):
        sweeps.expand(study)


def test_the_plan_counts_what_norms_caps_and_copies_keep(make):
    model = Model(n_layer=2, n_head=4, d_model=64, vocab_size=1000)

    def needed(parts):
        return footprint.memory_bytes(make(parts, model=model), 10**6, 2, False)

    assert needed(Parts(qk_norm=True)) - needed(Parts()) == 48 * 2 * 64 * 6
    assert needed(Parts(n_kv_head=2)) - needed(Parts()) == 48 * 2 * 64 * 2
    assert needed(Parts(softcap=30.0)) - needed(Parts()) == 5 * 2 * 48 * 1000
