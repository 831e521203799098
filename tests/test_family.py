"""Every attention variant of the family: three forms that agree, limits, and starting values."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import AVERAGING, DECAYING, Core, output, recurrence
from delta_rule import recurrence as delta_recurrence
from torch import nn

from lmscaling import attention, kernels
from lmscaling.errors import UserError
from lmscaling.kernels.gated import chunked, plain
from lmscaling.kernels.gated_delta import plain as delta
from lmscaling.kernels.rotary import Rotary, unrotated

NAMES = [*AVERAGING, *DECAYING]
SMALL = {"cosformer": {"context": 80}, "local": {"window": 5}, "favor": {"features": 24}}
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
to_1e_12 = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def layer(name, rotate=unrotated, D=32, H=2, **options):
    torch.manual_seed(0)
    options = SMALL.get(name, {}) | options
    return attention.load(name)(D, H, rotate, **options).double()


def tokens(T, D=32):
    torch.manual_seed(1)
    return torch.randn(2, T, D, dtype=torch.float64, requires_grad=True)


def slopes(outputs):
    """The gradient of a loss by outputs."""
    torch.manual_seed(2)
    return [torch.randn(y.shape, dtype=torch.float64) for y in outputs]


def gradients(outputs, inputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, inputs, slopes(outputs))


# The three forms


@pytest.mark.parametrize("rotate", [unrotated, Rotary(16)], ids=["unrotated", "rope"])
@pytest.mark.parametrize("T", [1, 70])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_its_definition_with_all_gradients(name, T, rotate):
    made, x = layer(name, rotate), tokens(T)
    found, expected = made(x), output(name, made, x)
    close(found, expected)
    inputs = [x, *made.parameters()]
    for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        close(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_steps_behind_a_prompt_are_the_whole_sequence(name):
    made, x = layer(name, Rotary(16)), tokens(29).detach()
    y, state = made.prefill(x[:, :13], made.init_state(2, 29))
    found = [y]
    for t in range(13, 29):
        y, state = made.decode_step(x[:, t], state)
        found.append(y.unsqueeze(1))
    close(torch.cat(found, 1), made(x))
    assert state.length == 29


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("elu", "local")])
def test_a_second_prompt_continues_the_first(name):
    made, x = layer(name, Rotary(16)), tokens(29).detach()
    first, state = made.prefill(x[:, :13], made.init_state(2, 29))
    second, state = made.prefill(x[:, 13:], state)
    close(torch.cat([first, second], 1), made(x))
    whole = made.prefill(x, made.init_state(2, 29))[1]
    close(state.kv_BHKV, whole.kv_BHKV)


@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_change_no_bit_of_earlier_ones(name):
    made, x = layer(name), tokens(80).detach()
    before = made(x)[:, :37]
    x[:, 37:] = 9.0 + 9.0 * torch.randn_like(x[:, 37:])
    assert torch.equal(made(x)[:, :37], before)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "local"])
def test_the_chunk_changes_nothing(name):
    made, x = layer(name), tokens(29)
    expected = made(x)
    for made.chunk in (1, 4, 16, 64):
        close(made(x), expected)


# The cores


def drawn(T, gate, H=3, K=6, V=5):
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, T, H, n, dtype=torch.float64) for n in (K, K, V))
    g = F.logsigmoid(torch.randn(2, T, H, {"token": 1, "channel": K}[gate], dtype=torch.float64))
    return [x.requires_grad_() for x in (q, k, v, g, torch.randn(2, H, K, V, dtype=torch.float64))]


def gated_core(q, k, v, g, state=None, chunk: int = 64):
    return plain.attend(q, k, v, g, state, chunk)


def delta_core(q, k, v, beta, g, state, chunk: int = 64):
    return delta.attend(q, k, v, beta, g, state, (), 1.0, chunk)


@pytest.mark.parametrize("leaf", [1, 2, 4, 64])
@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 64])
@pytest.mark.parametrize("gate", ["token", "channel"])
def test_the_gated_core_is_the_recurrence_at_any_chunk(gate, chunk, leaf, monkeypatch):
    monkeypatch.setattr(plain, "LEAF", leaf)
    for T in (1, 29):
        inputs = drawn(T, gate)
        found, expected = gated_core(*inputs, chunk=chunk), recurrence(*inputs)
        for one, other in zip(
            (*found, *gradients(found, inputs)), (*expected, *gradients(expected, inputs)),
            strict=True,
        ):  # fmt: skip
            close(one, other)


def test_gates_of_heads_tokens_and_channels_are_the_same_where_they_are_equal():
    q, k, v, _, state = drawn(29, "token")
    g_H = -torch.rand(3, dtype=torch.float64)
    g_BTH = g_H.expand(2, 29, 3)
    found = [gated_core(q, k, v, g, state) for g in (g_H, g_BTH, g_BTH[..., None].expand_as(q))]
    for y, last in found[1:]:
        to_1e_12(y, found[0][0])
        to_1e_12(last, found[0][1])


def test_without_decay_it_is_linear_attention_without_a_division():
    q, k, v, g, _ = drawn(29, "channel")
    expected = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    expected = torch.einsum("bhij,bjhv->bihv", expected, v)
    for gate in (None, 0 * g):
        to_1e_12(gated_core(q, k, v, gate, None)[0], expected)


def test_a_step_is_a_token_of_the_core():
    for gate in ("token", "channel"):
        q, k, v, g, state = (x.detach() for x in drawn(1, gate))
        y, last = gated_core(q, k, v, g, state)
        step_g = g[:, 0, :, 0] if gate == "token" else g[:, 0]
        close(chunked.step(q[:, 0], k[:, 0], v[:, 0], step_g, state), y[:, 0])
        close(state, last)


def test_the_state_of_a_prompt_is_one_that_the_kernel_of_a_step_takes(monkeypatch):
    """It asks for contiguous ones. In float64, what a GPU calls is computed in plain PyTorch."""
    q, k, v, g, _ = drawn(29, "token")
    monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    y, last = chunked.attend(q, k, v, g.squeeze(-1))
    assert last.is_contiguous()
    to_1e_12(y, gated_core(q, k, v, g)[0])


def test_the_gradient_of_a_gate_is_a_sum_over_later_tokens():
    """Of ``q dq - k dk`` for each channel, and what the last state adds; of any loss."""

    def identity(core: Core, inputs, channels):
        outputs = core(*inputs)
        d, tail = gradients(outputs, inputs), (outputs[1] * slopes(outputs)[1]).sum(-1)
        sums = inputs[0] * d[0] - inputs[1] * d[1]
        if not channels:
            sums, tail = sums.sum(-1, keepdim=True), tail.sum(-1, keepdim=True)
        if len(inputs) == 6:
            written = (inputs[2] * d[2]).sum(-1) - inputs[3] * d[3]
            sums = sums - 2 * written.unsqueeze(-1)
        return sums.flip(1).cumsum(1).flip(1) + tail.unsqueeze(1), d[-2]

    for gate in ("token", "channel"):
        close(*identity(gated_core, drawn(29, gate), gate == "channel"))
    q, k, v, g, state = drawn(29, "token")
    beta = torch.rand(2, 29, 3, dtype=torch.float64, requires_grad=True)
    unit = F.normalize(k.detach(), dim=-1).requires_grad_()
    g = g.detach().squeeze(-1).requires_grad_()
    expected, found = identity(delta_core, [q, unit, v, beta, g, state], False)
    close(expected.squeeze(-1), found)
    definition = delta_recurrence([[29], [29]], 1.0)(q, unit, v, beta, g, state)
    close(delta_core(q, unit, v, beta, g, state)[0], definition[0])


@pytest.mark.parametrize("strength", [0.0, 20.0, 200.0, "once"])
@pytest.mark.parametrize("gate", ["token", "channel"])
def test_strong_gates_are_finite_and_right_in_float32(gate, strength):
    exact = drawn(70, gate, K=16)
    g = exact[3].detach() if strength == "once" else torch.full_like(exact[3], -strength)
    if strength == "once":
        g[:, 9] = -80
    exact[3] = g.requires_grad_()
    single = [x.detach().float().requires_grad_() for x in exact]
    for one, other in zip(
        gradients(tuple(x.double() for x in gated_core(*single)), single),
        gradients(gated_core(*exact), exact), strict=True,
    ):  # fmt: skip
        assert ((one - other).abs().max() / other.abs().max().clamp(min=1)) < 3e-5


# Limits


def value_projection(made, constant):
    """Let all values be one number."""
    with torch.no_grad():
        made.qkv.weight[-made.d_model :] = 0
        made.qkv.bias[-made.d_model :] = constant
    made.out = nn.Identity()
    return made


@pytest.mark.parametrize("name", [n for n in AVERAGING if n != "cosformer"])
def test_an_average_of_equal_values_is_that_value(name):
    y = value_projection(layer(name), 3.0)(tokens(70))
    to_1e_12(y, torch.full_like(y, 3.0))


def same_weights(name, other, D=32, **options):
    """A layer and one of another kind with its weights."""
    one, reference = layer(name, D=D, **options), attention.load(other)(D, 2, unrotated).double()
    one.load_state_dict(reference.state_dict(), strict=False)
    return one, reference


def test_a_window_of_everything_is_softmax_and_one_of_a_token_is_its_value():
    for window in (70, 500):
        one, softmax = same_weights("local", "softmax", window=window)
        to_1e_12(one(tokens(70)), softmax(tokens(70)))
    one, _ = same_weights("local", "softmax", window=1)
    x = tokens(70)
    to_1e_12(one(x), one.out(one.qkv(x)[..., -32:]))


def test_a_high_order_of_taylor_is_softmax_of_small_scores():
    one, softmax = same_weights("taylor2", "softmax", D=8, order=8, width=4)
    x = 0.7 * tokens(20, 8)
    q, k = softmax.qkv(x).unflatten(-1, (3, 2, 4)).unbind(2)[:2]
    assert 0.5 < torch.einsum("bihk,bjhk->bhij", q, k).abs().max() / 2 < 1
    torch.testing.assert_close(one(x), softmax(x), rtol=1e-6, atol=1e-6)


def test_many_features_of_favor_are_softmax_of_small_queries_and_keys():
    one, softmax = same_weights("favor", "softmax", features=4096)
    for each in (one, softmax):
        each.out = nn.Identity()
        with torch.no_grad():
            each.qkv.weight[:64] *= 0.5
    found, expected = one(tokens(40)), softmax(tokens(40))
    assert (found - expected).norm() < 0.03 * expected.norm()


def test_cosformer_of_a_distant_horizon_is_linear_attention_of_relu():
    one, linear = same_weights("cosformer", "linear", context=10**9)
    linear.form = ("relu", True)
    torch.testing.assert_close(one(tokens(70)), linear(tokens(70)), rtol=1e-8, atol=1e-8)


def test_cosformer_survives_tokens_without_any_feature():
    made = layer("cosformer")
    nn.init.zeros_(made.qkv.weight)
    nn.init.constant_(made.qkv.bias, -1.0)
    assert torch.isfinite(gradients(made(tokens(9)), list(made.parameters()))[0]).all()


def test_favor_is_finite_and_right_for_large_queries_and_keys_in_float32():
    made, x = layer("favor"), tokens(70).detach()
    with torch.no_grad():
        made.qkv.weight[:64] *= 60
    exact = made(x)
    assert not torch.isfinite(output("favor", made.float(), x.float())).all()
    assert (made(x.float()) - exact).norm() < 1e-3 * exact.norm()


# Starting values and options


@pytest.mark.parametrize(("D", "H"), [(16, 2), (64, 4), (768, 12)])
@pytest.mark.parametrize("name", DECAYING)
def test_the_output_norm_gives_one_in_each_head_at_the_start_at_any_width(name, D, H, monkeypatch):
    made, norms = layer(name, D=D, H=H).float(), []
    for module in made.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    inner = made._norm
    monkeypatch.setattr(made, "_norm", lambda o: norms.append(inner(o)) or norms[-1])
    made(F.layer_norm(torch.randn(2, 128, D), (D,)))
    assert norms[0].square().mean((0, 1, 3)).sqrt().tolist() == pytest.approx([1.0] * H, abs=0.05)


@pytest.mark.parametrize("name", DECAYING)
def test_heads_start_with_the_half_lives_of_the_options(name, monkeypatch):
    made, found = layer(name, D=64, H=4, shortest=2.0, longest=128.0), []
    inner = made._attend

    def seen(*given, **options):
        found.append(given[4 if name == "gated_delta" else 3])
        return inner(*given, **options)

    monkeypatch.setattr(made, "_attend", seen)
    made(torch.zeros(1, 5, 64, dtype=torch.float64))
    g = found[0].unflatten(-1, (-1,)) if found[0].dim() == 1 else found[0][0, 2]
    expected = torch.tensor([2.0, 8.0, 32.0, 128.0], dtype=torch.float64)
    half_lives = -math.log(2) / (g if g.dim() == 1 else g[:, 0])
    torch.testing.assert_close(half_lives, expected, rtol=1e-5, atol=0)


def test_a_single_head_starts_between_the_shortest_and_the_longest():
    made = layer("retention", H=1, shortest=2.0, longest=128.0)
    assert (-math.log(2) / made.log_decay_H).tolist() == pytest.approx([16.0])


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("taylor2", {"order": 3}, "order of taylor2 is 3; allowed: even numbers from 2, .*is 4"),
        ("taylor2", {"order": 0}, "order of taylor2 is 0; .*nearest is 2"),
        ("local", {"window": 0}, "window of local is 0; allowed: at least 1"),
        ("favor", {"features": 0}, "features of favor is 0; allowed: at least 1"),
        ("gated", {"rank": 0}, "rank of gated is 0; allowed: positive"),
        ("gated", {"temperature": -1.0}, "temperature of gated is -1.0; allowed: positive"),
        ("gated_delta", {"largest_beta": 2.5}, "largest_beta is 2.5; allowed: above 0, up to 2"),
        ("retention", {"shortest": 9.0, "longest": 3.0}, "shortest 9, longest 3 are no half-lives"),
        ("mamba2", {"D": 6, "H": 2}, "heads of width 3 have no queries of half the width"),
    ],
)
def test_options_without_sense_are_refused_in_a_sentence(name, options, said):
    with pytest.raises(UserError, match=said):
        layer(name, **options)


@pytest.mark.parametrize(
    ("name", "parameters", "state", "flops"),
    [
        # D = 768, H = 12: parameters over D^2, state of a head, MFLOP of a token beside projections
        ("elu", 4, 64 * 65, 0.29),
        ("retention", 4, 32 * 64, 0.17),
        ("gated", 4 + 24.5 / 768, 32 * 64, 0.17),
        ("mamba2", 4 + 12 / 768, 32 * 64, 0.17),
        ("gated_delta", 4 + 24 / 768, 32 * 64, 0.23),
        ("taylor2", 2.5, 153 * 65, 0.53),
        ("favor", 4, 128 * 65 + 128, 0.93),
        ("cosformer", 4, 128 * 65, 0.54),
        ("local", 4, 2 * 128 * 64, 0.37),
    ],
)
def test_its_size_state_and_flops_are_those_of_the_table(name, parameters, state, flops):
    SIZES = {"cosformer": {"context": 1024}}
    made = attention.load(name)(768, 12, unrotated, **SIZES.get(name, {}))
    found = sum(p.numel() for p in made.parameters()) / 768**2
    assert found == pytest.approx(parameters, abs=0.01)
    parts = [x for x in vars(made.init_state(1, 1024)).values() if isinstance(x, torch.Tensor)]
    assert sum(x.numel() for x in parts) == 12 * state
    projections = 2 * sum(m.weight.numel() for m in made.modules() if isinstance(m, nn.Linear))
    assert (made.flops_per_token(1024) - projections) / 1e6 == pytest.approx(flops, abs=0.005)
