"""The model is GPT-2: its shapes, first values, counts, and loss."""

import math
from dataclasses import replace

import pytest
import torch
from attention_definitions import OURS
from conftest import ROOT, refused
from torch import nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from lmscaling.config import devices, grid
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Model
from lmscaling.errors import UserError
from lmscaling.model import optimizer, sizing
from lmscaling.model.gpt import GPT

close = torch.testing.assert_close

SHAPE = Model(n_layer=3, n_head=2, d_model=64, vocab_size=257)
GPT2 = Model(n_layer=12, n_head=12, d_model=768, vocab_size=50257)
XL = Model(n_layer=48, n_head=25, d_model=1600, vocab_size=50257)


@pytest.fixture
def build(cell):
    def build(model=SHAPE, context=32, attention="softmax", **more):
        return GPT(replace(cell, model=model, context=context, attention=attention, **more))

    return build


@pytest.fixture
def gpt(build):
    return build()


@pytest.fixture
def shifting(build):
    """A model with a token shift, of a kind of position."""
    model = replace(SHAPE, token_shift=True)
    return lambda position="learned": build(model, attention="linear", position=position).double()


def draw(rows=2, tokens=32):
    return torch.randint(0, 257, (rows, tokens))


def continued(gpt, x, n, states):
    """Logits of a prompt's last token, if it has any, and of each step behind it."""
    found = []
    if n:
        logits, states = gpt.prefill(x[:, :n], states)
        found = [logits]
    for t in range(n, x.shape[1]):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    assert states.length == x.shape[1]
    return torch.stack(found, 1)


def test_it_counts_its_parameters_and_the_flops_of_each_and_of_the_attention(build, gpt):
    """Its vocabulary is padded to a multiple of 64, and the head is tied."""
    assert gpt.wte.weight.shape == (320, 64)
    assert gpt(draw(2, 5)).shape == (2, 5, 320)
    assert not any("head" in name for name, _ in gpt.named_parameters())
    D, L, context = 64, 3, 32
    blocks = L * (12 * D**2 + 13 * D) + 2 * D
    assert gpt.params == blocks
    assert gpt.params_total == blocks + (257 + context) * D
    assert gpt.flops_per_token() == 6 * (12 * L * D**2 + 320 * D) + 3 * L * 2 * D * context
    for position in ("rope", "none"):
        other = build(position=position)
        assert (other.params, other.params_total) == (blocks, blocks + 257 * D)
        assert "wpe.weight" not in dict(other.named_parameters())
        assert other(draw(1, 5)).shape == (1, 5, 320)


def test_its_first_weights_have_the_spread_of_gpt2(gpt):
    for name, p in gpt.named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        elif p.dim() == 1:
            assert (p == 1).all()
        else:
            narrow = name.endswith(("attention.out.weight", "down.weight"))
            std = 0.02 / math.sqrt(6) if narrow else 0.02
            assert p.std().item() == pytest.approx(std, rel=0.05), name


def test_its_loss_has_the_value_and_gradient_of_pytorchs_cross_entropy(gpt):
    gpt, x, y = gpt.double(), draw(), draw()
    loss, weights = gpt.loss(x, y), list(gpt.parameters())
    whole = nn.functional.cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    close((loss, gpt.token_losses(x, y).mean()), (whole, whole.detach()), rtol=1e-12, atol=0)
    found, expected = (torch.autograd.grad(each, weights) for each in (loss, whole))
    close(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.ci
def test_compiled_blocks_of_an_attention_are_one_graph_and_give_the_same_numbers(build):
    """Captured by the compiler, and run without its generated code.

    It differentiates those that have no kernels of their own on a GPU, and linear attention.
    """
    names = ["softmax", "linear", "gated", "taylor2", "local", "favor", "gated_delta", "softmax"]
    layers = tuple(Layer(attention=name) for name in names)
    gpt = build(replace(SHAPE, n_layer=8), attention=".".join(names), layers=layers)
    gpt.recompute = True
    x, y, weights = draw(), draw(), list(gpt.parameters())
    plain = gpt.loss(x, y)
    expected = torch.autograd.grad(plain, weights)
    torch.compiler.reset()  # it keeps only so many graphs of the code of a block
    whole = CompileCounterWithBackend("aot_eager")
    captured = CompileCounter()
    for name, block in zip(names, gpt.blocks, strict=True):
        backend = captured if name.startswith("gated") else whole
        block.compile(dynamic=False, backend=backend, fullgraph=True)
    loss = gpt.loss(x, y)
    close(loss, plain)
    close(torch.autograd.grad(loss, weights), expected)
    assert (whole.frame_count, captured.frame_count) == (5, 2)


@pytest.mark.parametrize(
    ("attention", "position", "batch"),
    [*zip(OURS, ["learned", "rope", "none"] * 9, [3, 1] * 9, strict=False)],
)
def test_a_prompt_and_steps_behind_it_give_what_the_whole_sequence_gives(
    build, attention, position, batch, monkeypatch
):
    monkeypatch.setattr("lmscaling.model.block.PROMPT_AT_ONCE", 21)  # parts of 21 and of 7 tokens
    gpt, x = build(attention=attention, position=position).double(), draw(batch)
    close(continued(gpt, x, 20, gpt.init_states(batch, 32)), gpt(x)[:, 19:])


@pytest.mark.parametrize(("position", "n"), [("learned", 0), ("rope", 1), ("none", 20)])
def test_a_token_shift_goes_on_from_a_prompt(shifting, position, n):
    gpt, x = shifting(position), draw(3)
    close(continued(gpt, x, n, gpt.init_states(3, 32)), gpt(x)[:, max(0, n - 1) :])


def test_a_token_shift_adds_half_of_the_embedding_before_and_learns_the_share(shifting):
    gpt, x = shifting(), draw()
    assert gpt.shift.tolist() == [0.5] * 64
    with torch.no_grad():
        gpt.shift.add_(torch.randn(64))
    before = torch.cat((torch.zeros(2, 1, 64), gpt.wte(x[:, :-1])), 1)
    expected = gpt.wte(x) + gpt.shift * before + gpt.wpe(torch.arange(32))
    gpt.loss(x, x).backward()
    assert gpt.shift.grad.abs().min() > 0
    gpt.blocks, gpt.norm = nn.ModuleList(), nn.Identity()  # without them it gives the embedding
    close(gpt.hidden(x), expected)


def test_a_token_shift_is_a_vector_of_parameters_that_does_not_decay(build, shifting, cell):
    plain, gpt = build(attention="linear"), shifting()
    assert (gpt.params, gpt.params_total) == (plain.params + 64, plain.params_total + 64)
    settings = replace(cell.optimizer, weight_decay=0.1)
    groups = optimizer.build(gpt, replace(cell, optimizer=settings)).param_groups
    assert [g["weight_decay"] for g in groups if any(p is gpt.shift for p in g["params"])] == [0.0]
    shifted = dict(gpt.named_parameters())
    assert shifted.keys() - dict(plain.named_parameters()).keys() == {"shift"}
    assert all(torch.equal(shifted[name].float(), p) for name, p in plain.named_parameters())
    for gpus, itemsize in ((0, 4), (1, 2)):  # an embedding more in its state
        assert gpt.state_bytes(gpus) == plain.state_bytes(gpus) + 64 * itemsize


def test_a_chosen_initial_scale_is_that_of_all_weights(build):
    gpt, wide = (build(replace(SHAPE, init_std=std)) for std in (0.02, 0.1))
    for (name, p), other in zip(gpt.named_parameters(), wide.parameters(), strict=True):
        close(other, (5 if p.dim() > 1 else 1) * p, msg=name)


def test_tokens_beyond_the_position_table_and_tuning_what_is_not_there_are_refused(build, gpt):
    with refused(UserError, "chunk 64"):
        gpt.tune({"chunk": 64})
    x = draw(1, 33)
    full = gpt.prefill(x[:, :32], gpt.init_states(1, 40))[1]
    states = gpt.init_states(1, 40)
    calls = (gpt, x), (gpt.prefill, x, states), (gpt.decode_step, x[:, 32], full)
    for call, *given in calls:
        with refused(UserError, "33 tokens", "up to 32"):
            call(*given)
    assert build(position="rope")(x).shape == (1, 33, 320)


def test_it_is_the_forward_pass_of_gpt2(gpt):
    """Against a second writing of Radford et al. 2019 with PyTorch's own modules, float64."""
    gpt, x = gpt.double(), draw()
    h = gpt.wte.weight[x] + gpt.wpe.weight[None, :32]
    for block in gpt.blocks:
        own, mixer = nn.MultiheadAttention(64, 2, batch_first=True).double(), block.attention
        own.in_proj_weight, own.in_proj_bias = mixer.qkv.weight, mixer.qkv.bias
        own.out_proj.weight, own.out_proj.bias = mixer.out.weight, mixer.out.bias
        z = nn.functional.layer_norm(h, (64,), block.norm_1.weight, block.norm_1.bias, 1e-5)
        mask = torch.ones(32, 32, dtype=torch.bool).triu(1)
        h = h + own(z, z, z, attn_mask=mask, need_weights=False)[0]
        z = nn.functional.layer_norm(h, (64,), block.norm_2.weight, block.norm_2.bias, 1e-5)
        up = z @ block.up.weight.T + block.up.bias
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))
        h = h + (0.5 * up * (1 + tanh)) @ block.down.weight.T + block.down.bias
    z = nn.functional.layer_norm(h, (64,), gpt.norm.weight, gpt.norm.bias, 1e-5)
    close(gpt(x), z @ gpt.wte.weight.T, rtol=1e-10, atol=1e-12)


def test_variants_with_one_seed_begin_alike_and_seeds_differ(values):
    values["axes"]["seed"] = [0, 1]
    made = {c.name: GPT(c) for c in grid.expand(values).cells.values()}
    names = ("softmax-s-ctx16-s0", "linear-s-ctx16-s0", "linear-s-ctx16-s1")
    softmax, linear, other = (made[name] for name in names)
    for name in ("wte.weight", "blocks.0.up.weight"):
        assert torch.equal(softmax.get_parameter(name), linear.get_parameter(name))
        assert not torch.equal(other.get_parameter(name), linear.get_parameter(name))


@pytest.mark.parametrize(("model", "total", "pace", "causal", "full"), [
    (GPT2, 124_439_808, 468e3, 37.8, 40.4), (XL, 1_557_611_200, 46.8e3, 46.4, 48.6),
])  # fmt: skip
def test_the_count_of_gpt2_and_the_mfu_of_llm_c_are_those_published(
    build, cell, model, total, pace, causal, full
):
    """The tokens per second of docs/report.md, with half and with all pairs of tokens."""
    with torch.device("meta"):
        assert build(model, 1024).params_total == total
    one = replace(cell, model=model, context=1024, attention="softmax")
    flops, peak = sizing.shape(one).flops_per_token, devices.DEVICES["NVIDIA H100"].peak_flops
    all_pairs = flops + 3 * model.n_layer * 2 * model.d_model * 1024
    page = (ROOT / "docs" / "report.md").read_text()
    for expected, needed in ((causal, flops), (full, all_pairs)):
        assert 100 * pace * needed / peak == pytest.approx(expected, abs=0.05)
        assert str(expected) in page


def test_heads_too_wide_for_the_kernels_of_a_gpu_are_refused(cell):
    wide = Model(n_layer=1, n_head=2, d_model=384, vocab_size=257)
    linear = replace(cell, model=wide, attention="linear", gpus=1)
    with refused(UserError, "head of 192", "linear", "up to 128", "n_head: 3"):
        sizing.shape(linear)
    for other in ({"gpus": 0}, {"attention": "softmax"}):
        assert sizing.shape(replace(linear, **other)).params_total
