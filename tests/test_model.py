"""The model is GPT-2: its shapes, first values, counts, and loss."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from conftest import refused
from torch import nn

from lmscaling import registry
from lmscaling.config import devices, grid
from lmscaling.config.cell import Model
from lmscaling.errors import UserError
from lmscaling.model import gpt as gpt_module
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT


def gpt_shape():
    return Model(n_layer=3, n_head=2, d_model=64, vocab_size=257)


@pytest.fixture
def gpt(cell):
    return GPT(replace(cell, model=gpt_shape(), context=32, attention="softmax"))


def test_its_vocabulary_is_padded_to_a_multiple_of_64_and_the_head_is_tied(gpt):
    assert gpt.wte.weight.shape == (320, 64)
    assert gpt(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 320)
    assert not any("head" in name for name, _ in gpt.named_parameters())


def test_it_counts_its_parameters(gpt):
    d, L = 64, 3
    blocks = L * (12 * d**2 + 13 * d) + 2 * d
    assert gpt.params == blocks
    assert gpt.params_total == blocks + (257 + 32) * d


@pytest.mark.parametrize(
    ("dims", "total"), [((12, 12, 768), 124_439_808), ((48, 25, 1600), 1_557_611_200)]
)
def test_its_count_is_that_of_the_published_gpt2(cell, dims, total):
    n_layer, n_head, d_model = dims
    shape = Model(n_layer=n_layer, n_head=n_head, d_model=d_model, vocab_size=50257)
    with torch.device("meta"):
        assert GPT(replace(cell, model=shape, context=1024)).params_total == total


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


def test_the_first_loss_at_the_width_of_gpt2_is_that_of_gpt2(cell):
    """Between ln 50304 and that plus half the variance of the logits; llm.c logs 11.009."""
    shape = Model(n_layer=2, n_head=12, d_model=768, vocab_size=50257)
    gpt = GPT(replace(cell, model=shape, context=64, attention="softmax"))
    torch.manual_seed(0)
    x, y = torch.randint(0, 50257, (2, 4, 64))
    with torch.no_grad():
        assert 10.85 < gpt.loss(x, y).item() < 11.15


def test_its_loss_has_the_value_and_gradient_of_pytorchs_cross_entropy(gpt):
    gpt, (x, y) = gpt.double(), torch.randint(0, 257, (2, 2, 32))
    loss, weights = gpt.loss(x, y), list(gpt.parameters())
    whole = nn.functional.cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close(loss, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(gpt.token_losses(x, y).mean(), whole.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(loss, weights), torch.autograd.grad(whole, weights),
        rtol=1e-9, atol=1e-13,
    )  # fmt: skip


def test_blocks_computed_again_give_the_same_bits(gpt):
    x, y = torch.randint(0, 257, (2, 2, 32))
    gradients = []
    for gpt.recompute in (False, True):
        gpt.zero_grad()
        gpt.loss(x, y).backward()
        gradients.append([p.grad.clone() for p in gpt.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("attention", "recompute"),
    [("softmax", True), ("linear", False), ("gated", True), ("taylor2", False), ("local", True),
     ("favor", False), ("gated_delta", False)],
)  # fmt: skip
def test_compiled_blocks_are_one_graph_and_give_the_same_numbers(gpt, cell, attention, recompute):
    """Captured and differentiated by the compiler, then run without its generated code."""
    torch._dynamo.reset()  # it keeps only so many graphs of the code of a block
    gpt = GPT(replace(cell, model=gpt_shape(), context=32, attention=attention))
    gpt.recompute = recompute
    x, y = torch.randint(0, 257, (2, 2, 32))
    plain = gpt.loss(x, y)
    expected = torch.autograd.grad(plain, list(gpt.parameters()))
    compiler = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for block in gpt.blocks:
        block.compile(dynamic=False, backend=compiler, fullgraph=True)
    loss = gpt.loss(x, y)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss, list(gpt.parameters())), expected)
    assert compiler.frame_count == 1


@pytest.mark.parametrize("position", ["rope", "none"])
def test_only_learned_positions_have_parameters_and_none_counts_in_n(gpt, cell, position):
    other = GPT(
        replace(cell, model=gpt_shape(), context=32, attention="softmax", position=position)
    )
    assert other.params == gpt.params
    assert other.params_total == gpt.params_total - 32 * 64
    assert "wpe.weight" not in dict(other.named_parameters())
    assert other(torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 320)


@pytest.mark.parametrize(
    ("attention", "position", "batch"),
    [*zip(registry.attentions(), ["learned", "rope", "none"] * 9, [3, 1] * 9, strict=False)],
)
def test_a_prompt_and_steps_behind_it_give_what_the_whole_sequence_gives(
    cell, attention, position, batch, monkeypatch
):
    monkeypatch.setattr("lmscaling.model.gpt.PROMPT_AT_ONCE", 21)  # parts of 21 and of 7 tokens
    changed = {"attention": attention, "position": position, "context": 32}
    gpt = GPT(replace(cell, model=gpt_shape(), **changed)).double()
    x = torch.randint(0, 257, (batch, 32))
    logits, states = gpt.prefill(x[:, :20], gpt.init_states(batch, 32))
    found = [logits]
    for t in range(20, 32):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    assert states.length == 32
    torch.testing.assert_close(torch.stack(found, 1), gpt(x)[:, 19:])


def shifting(cell, **shape):
    model = replace(gpt_shape(), token_shift=True, **shape)
    return GPT(replace(cell, model=model, context=32)).double()


def test_a_token_shift_adds_half_of_the_embedding_before_and_learns_the_share(cell):
    gpt, x = shifting(cell), torch.randint(0, 257, (2, 32))
    assert gpt.shift is not None
    assert gpt.wpe is not None
    assert gpt.shift.tolist() == [0.5] * 64
    with torch.no_grad():
        gpt.shift.add_(torch.randn(64))
    before = torch.cat((torch.zeros(2, 1, 64), gpt.wte(x[:, :-1])), 1)
    expected = gpt.wte(x) + gpt.shift * before + gpt.wpe(torch.arange(32))
    bare: Any = gpt  # without blocks and norm it gives the embedding
    bare.blocks, bare.norm = nn.ModuleList(), nn.Identity()
    torch.testing.assert_close(gpt.hidden(x), expected)
    gpt.loss(x, x).backward()
    assert gpt.shift.grad is not None
    assert gpt.shift.grad.abs().min() > 0


def test_a_token_shift_is_a_vector_of_parameters_that_does_not_decay(cell):
    plain, gpt = GPT(replace(cell, model=gpt_shape(), context=32)), shifting(cell)
    assert (gpt.params, gpt.params_total) == (plain.params + 64, plain.params_total + 64)
    settings = replace(cell.optimizer, weight_decay=0.1)
    groups = optimizer.build(gpt, replace(cell, optimizer=settings)).param_groups
    assert [g["weight_decay"] for g in groups if any(p is gpt.shift for p in g["params"])] == [0.0]
    shifted = dict(gpt.named_parameters())
    assert shifted.keys() - dict(plain.named_parameters()).keys() == {"shift"}
    assert all(torch.equal(shifted[name].float(), p) for name, p in plain.named_parameters())
    for gpus, itemsize in ((0, 4), (1, 2)):  # an embedding more in its state
        assert gpt.state_bytes(gpus) == plain.state_bytes(gpus) + 64 * itemsize


@pytest.mark.parametrize(("position", "n"), [("learned", 0), ("rope", 1), ("none", 20)])
def test_a_token_shift_goes_on_from_a_prompt(cell, position, n):
    gpt, x = shifting(replace(cell, position=position)), torch.randint(0, 257, (3, 32))
    states, found = gpt.init_states(3, 32), []
    if n:
        logits, states = gpt.prefill(x[:, :n], states)
        found = [logits]
    for t in range(n, 32):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), gpt(x)[:, max(0, n - 1) :])


def test_a_chosen_initial_scale_is_that_of_all_weights(cell):
    gpt, wide = (GPT(replace(cell, model=replace(gpt_shape(), init_std=s))) for s in (0.02, 0.1))
    for (name, p), other in zip(gpt.named_parameters(), wide.parameters(), strict=True):
        factor = 5 if p.dim() > 1 else 1
        torch.testing.assert_close(other, factor * p, msg=name)


def test_tokens_beyond_the_position_table_are_refused(gpt, cell):
    x = torch.zeros(1, 33, dtype=torch.long)
    with refused(UserError, "33 tokens", "up to 32"):
        gpt(x)
    with refused(UserError, "33 tokens", "up to 32"):
        gpt.prefill(x, gpt.init_states(1, 40))
    _, states = gpt.prefill(x[:, :32], gpt.init_states(1, 40))
    with refused(UserError, "33 tokens", "up to 32"):
        gpt.decode_step(x[:, 32], states)
    free = GPT(replace(cell, model=gpt_shape(), context=32, position="rope"))
    assert free(x).shape == (1, 33, 320)


def test_what_an_attention_does_not_have_cannot_be_tuned(gpt):
    with refused(UserError, "chunk 64"):
        gpt.tune({"chunk": 64})


def test_it_is_the_forward_pass_of_gpt2(gpt):
    """Against a second writing of Radford et al. 2019 with PyTorch's own modules, float64."""
    gpt = gpt.double()
    x = torch.randint(0, 257, (2, 32))
    h = gpt.wte.weight[x] + gpt.wpe.weight[None, :32]
    for block in gpt.blocks:
        own = nn.MultiheadAttention(64, 2, batch_first=True, dtype=torch.float64)
        own.in_proj_weight, own.in_proj_bias = block.attention.qkv.weight, block.attention.qkv.bias
        own.out_proj.weight, own.out_proj.bias = (
            block.attention.out.weight,
            block.attention.out.bias,
        )
        z = nn.functional.layer_norm(h, (64,), block.norm_1.weight, block.norm_1.bias, 1e-5)
        mask = torch.ones(32, 32, dtype=torch.bool).triu(1)
        h = h + own(z, z, z, attn_mask=mask, need_weights=False)[0]
        z = nn.functional.layer_norm(h, (64,), block.norm_2.weight, block.norm_2.bias, 1e-5)
        up = z @ block.up.weight.T + block.up.bias
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))
        h = h + (0.5 * up * (1 + tanh)) @ block.down.weight.T + block.down.bias
    z = nn.functional.layer_norm(h, (64,), gpt.norm.weight, gpt.norm.bias, 1e-5)
    torch.testing.assert_close(gpt(x), z @ gpt.wte.weight.T, rtol=1e-10, atol=1e-12)


def test_variants_with_one_seed_begin_alike_and_seeds_differ(values):
    values["axes"]["seed"] = [0, 1]
    made = {c.name: GPT(c) for c in grid.expand(values).cells.values()}
    softmax, linear, other = (
        made[f"{n}-ctx16-s{s}"] for n, s in (("softmax-s", 0), ("linear-s", 0), ("linear-s", 1))
    )
    for name in ("wte.weight", "blocks.0.up.weight"):
        assert torch.equal(softmax.get_parameter(name), linear.get_parameter(name))
        assert not torch.equal(other.get_parameter(name), linear.get_parameter(name))


@pytest.mark.parametrize(
    ("dims", "pace", "causal", "full"),
    [((12, 12, 768), 468e3, 37.8, 40.4), ((48, 25, 1600), 46.8e3, 46.4, 48.6)],
)  # fmt: skip
def test_the_mfu_of_llm_c_is_what_the_definition_says(cell, dims, pace, causal, full):
    """The tokens per second of device/targets.py, with half and with all pairs of tokens."""
    n_layer, n_head, d_model = dims
    model = Model(n_layer=n_layer, n_head=n_head, d_model=d_model, vocab_size=50257)
    one = replace(cell, model=model, context=1024, attention="softmax")
    flops = gpt_module.shape(one).flops_per_token
    peak = devices.DEVICES["NVIDIA H100"].peak_flops
    assert 100 * pace * flops / peak == pytest.approx(causal, abs=0.05)
    all_pairs = flops + 3 * n_layer * 2 * d_model * 1024
    assert 100 * pace * all_pairs / peak == pytest.approx(full, abs=0.05)
    for number in (causal, full):
        assert str(number) in (devices.__doc__ or "")


def test_heads_too_wide_for_the_kernels_of_a_gpu_are_refused(cell):
    wide = Model(n_layer=1, n_head=2, d_model=384, vocab_size=257)
    linear = replace(cell, model=wide, attention="linear", gpus=1)
    with refused(UserError, "head of 192", "linear", "up to 128", "n_head: 3"):
        gpt_module.shape(linear)
    for other in ({"gpus": 0}, {"attention": "softmax"}):
        assert gpt_module.shape(replace(linear, **other)).params_total


def test_its_flops_are_six_per_parameter_and_the_attention(gpt):
    d, L, context = 64, 3, 32
    matrices = 12 * L * d**2 + 320 * d
    assert gpt.flops_per_token() == 6 * matrices + 3 * L * 2 * d * context
