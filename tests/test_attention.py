"""What every module in ``attention/`` keeps, a new one too; then limits, starts and sizes."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import DECAYING, OURS, gradients, output
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import _registry

from lmscaling import attention, kernels, registry
from lmscaling.bench.checks import variant
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated

NAMES = OURS
OPTIONS = {
    "favor": {"features": 6}, "gated": {"rank": 3, "temperature": 4.0}, "local": {"window": 5},
    "gated_delta": {"largest_beta": 2.0}, "taylor2": {"order": 4, "width": 4},
    "power": {"width": 4},
}  # fmt: skip
CONTINUED = [*DECAYING, "taylor2", "favor", "cosformer", "power"]  # those that take a second prompt
with_any = pytest.mark.parametrize("name", NAMES)
rotations = st.sampled_from([unrotated, Rotary(8)])
few = settings(max_examples=8)
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def layer(name, rotate=unrotated, D=16, H=2, seed=0, **options):
    torch.manual_seed(seed)
    options = OPTIONS.get(name, {}) | options
    return attention.build(name, D, H, rotate, context=80, **options).double()


def tokens(T, B=2, D=16):
    torch.manual_seed(T)
    return torch.randn(B, T, D, dtype=torch.float64)


@with_any
@few
@given(rotate=rotations, T=st.integers(1, 70))
def test_a_layer_is_its_definition_with_all_gradients(name, rotate, T):
    made, x = layer(name, rotate), tokens(T).requires_grad_()
    found, expected = made(x), output(name, made, x)
    close(found, expected)
    inputs = [x, *made.parameters()]
    close(gradients(found, inputs), gradients(expected, inputs))


@with_any
@few
@given(rotate=rotations, T=st.integers(2, 70), share=st.floats(0, 1))
def test_later_tokens_change_no_bit_of_earlier_outputs(name, rotate, T, share):
    made, x, cut = layer(name, rotate), tokens(T), round(share * T)
    before = made(x)[:, :cut]
    x[:, cut:] = 9.0 + 9.0 * torch.randn_like(x[:, cut:])
    assert torch.equal(made(x)[:, :cut], before)


@with_any
@few
@given(
    rotate=rotations, T=st.integers(1, 40), B=st.integers(1, 3), share=st.floats(0, 1),
    choice=st.integers(0, 9), chunk=st.sampled_from([1, 2, 4, 8, 64]),
)  # fmt: skip
def test_all_forms_of_a_layer_are_one(name, rotate, T, B, share, choice, chunk):
    """Implementations, chunks, prompts with steps behind, and what a device may choose from."""
    made, x = layer(name, rotate), tokens(T, B)
    expected, flops, prompt = made(x), made.flops_per_token(T), round(share * T)
    state, found = made.init_state(B, T), []
    first = prompt // 3 if name in CONTINUED else 0
    for part in (x[:, :first], x[:, first:prompt]):
        if part.shape[1]:
            y, state = made.prefill(part, state)
            found.append(y)
    for t in range(prompt, T):
        y, state = made.decode_step(x[:, t], state)
        found.append(y.unsqueeze(1))
    assert not any(y.requires_grad for y in found)
    close(torch.cat(found, 1), expected)
    assert getattr(state, "length", T) == T
    known = registry.implementations(name)
    options = {**made.tunable("cpu"), **made.tunable("cuda")}
    if known:
        options["implementation"] = (made.implementation, known[choice % len(known)])
    if hasattr(made, "chunk"):
        options["chunk"] = (made.chunk, chunk)
    for attribute, values in options.items():
        assert getattr(made, attribute) == values[0]
        setattr(made, attribute, values[choice % (len(values) - 1) + 1])
        close(made(x), expected)
        assert made.flops_per_token(T) == flops
        setattr(made, attribute, values[0])


@with_any
def test_it_passes_the_check_before_training_keeps_its_weights_and_counts_its_flops(name):
    variant.check(variant.Variant(name=name, rotated=True), torch.device("cpu"))
    made, other = layer(name), layer(name, seed=1)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(tokens(9)), made(tokens(9)))
    attend = attention.build(name, 64, 4, context=65536)
    flops = [attend.flops_per_token(context) for context in (1, 64, 512, 1024, 65536)]
    assert flops[0] > 0
    assert flops == sorted(flops)  # with the context
    growth = flops[3] - flops[2]
    assert growth == {"softmax": 2 * 64 * 512, "linear": 0}.get(name, growth)


@pytest.mark.parametrize("level", [-20.0, -80.0])
@pytest.mark.parametrize("name", ["elu", "linear"])
def test_small_features_divide_as_in_float64(name, level):
    """In float32, outputs and gradients; ``elu(x) + 1`` itself would be zero below -17."""
    found = []
    for dtype in (torch.float64, torch.float32):
        made = layer(name).to(dtype)
        D = made.out.in_features
        with torch.no_grad():
            made.qkv.weight[: 2 * D] /= 8
            made.qkv.bias[:D] = level
        x = tokens(8).to(dtype).requires_grad_()
        y = made(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, made.qkv.weight))))
    for exact, single in zip(*found, strict=True):
        assert (single - exact).abs().max() <= 1e-4 * exact.abs().max()


@pytest.mark.ci
@pytest.mark.parametrize("implementation", registry.implementations("linear"))
def test_a_compiler_never_writes_out_a_loop_over_tokens(implementation):
    attend, operations = layer("linear").float(), []
    attend.implementation = implementation
    for T in (6, 12):
        torch.compiler.reset()
        compiler, x = CompileCounter(), torch.randn(2, T, 16)
        compiled = torch.compile(attend, backend=compiler, dynamic=False)
        torch.testing.assert_close(compiled(x), attend(x))
        operations.append(compiler.op_count)
    assert operations[0] == operations[1] > 0


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_rotated_queries_and_keys_reach_the_kernels_in_the_dtype_of_autocast(name, monkeypatch):
    """In float32 the products of a GPU would take many times as long."""
    dtypes = []

    def recorded(q, k, v, *rest):
        dtypes.extend([q.dtype, k.dtype, v.dtype])
        return v

    monkeypatch.setattr(kernels, "load", lambda *_: recorded)
    attend = layer(name, Rotary(8)).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(torch.randn(1, 5, 16)).dtype == torch.bfloat16
    assert dtypes == [torch.bfloat16] * 3


@given(width=st.sampled_from([2, 8, 64]), start=st.integers(0, 70_000))
def test_a_pair_turns_by_its_position_times_a_power_of_ten_thousand(width, start):
    """Su et al. 2021, eq. 15 and 34: theta_i = 10000^(-2i / d), for each token in turn."""
    x = torch.randn(2, 3, width, dtype=torch.float64)
    pairs = torch.complex(*x.chunk(2, -1))
    thetas = [10_000.0 ** (-2 * i / width) for i in range(width // 2)]
    angles = torch.tensor([[(start + t) * theta for theta in thetas] for t in range(3)],
                          dtype=torch.float64)  # fmt: skip
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(Rotary(width)(x, start), torch.cat([turned.real, turned.imag], -1))
    low = x.bfloat16()  # rounded once
    assert torch.equal(Rotary(width)(low, start), Rotary(width)(low.float(), start).bfloat16())


def test_a_gpu_has_two_or_three_back_ends_of_softmax_and_says_what_flash4_lacks(monkeypatch):
    """Of a GPU that FlashAttention-4 supports, as far as it can be asked without one."""
    two = {"implementation": ("flash", "cudnn")}
    for d_model, n_head, expected in ((16, 2, two), (512, 2, {}), (24, 2, {}), (1600, 25, two)):
        attend = attention.build("softmax", d_model, n_head)  # of a width that cuDNN takes
        assert (attend.tunable("cuda"), attend.tunable("cpu")) == (expected, {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert attend.tunable("cuda") == two
    with pytest.raises(RuntimeError, match=r"flash-attn-4.*flash_attn"):
        attend.implementation = "flash4"
    installed = type("Handle", (), {"remove": lambda self: None})
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", installed)
    assert attend.tunable("cuda") == {"implementation": ("flash", "cudnn", "flash4")}
    assert _registry.current_flash_attention_impl() is None
    for name, active in {"flash4": "FA4", "flash": None, "cudnn": None}.items():
        attend.implementation = "flash4"  # of the version chosen last, in the whole process
        attend.implementation = name
        assert _registry.current_flash_attention_impl() == active
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A100")
    assert attend.tunable("cuda") == two
    with pytest.raises(RuntimeError, match=r"H100, H200.*A100"):
        attend.implementation = "flash4"


def test_many_features_of_favor_are_softmax_of_small_queries_and_keys():
    favor, softmax = layer("favor", D=32, features=4096), layer("softmax", D=32)
    favor.load_state_dict(softmax.state_dict(), strict=False)
    found = []
    for each in (favor, softmax):
        each.out = nn.Identity()
        with torch.no_grad():
            each.qkv.weight[:64] *= 0.5
        found.append(each(tokens(40, D=32)))
    assert (found[0] - found[1]).norm() < 0.03 * found[1].norm()


def test_favor_is_right_in_float32_for_large_inputs_and_cosformer_finite_without_any_feature():
    made, x = layer("favor", D=32, features=24), tokens(70, D=32)
    with torch.no_grad():
        made.qkv.weight[:64] *= 60
    exact = made(x)
    assert not output("favor", made.float(), x.float()).isfinite().all()
    assert (made(x.float()) - exact).norm() < 1e-3 * exact.norm()
    made = layer("cosformer")
    nn.init.zeros_(made.qkv.weight)
    nn.init.constant_(made.qkv.bias, -1.0)
    assert gradients(made(tokens(9)), [*made.parameters()])[0].isfinite().all()


@pytest.mark.parametrize(("D", "H"), [(16, 2), (768, 12)])
@pytest.mark.parametrize("name", DECAYING)
def test_the_output_norm_gives_one_in_each_head_at_the_start_at_any_width(name, D, H):
    """Read behind the output gate, which is opened to 1000."""
    made = layer(name, D=D, H=H).float()
    for module in made.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    made.out = nn.Identity()
    with torch.no_grad():
        made.qkvr.weight[-D:], made.qkvr.bias[-D:] = 0, 1000
    norms = made(F.layer_norm(torch.randn(2, 128, D), (D,))).unflatten(-1, (H, -1)) / 1000
    assert norms.square().mean((0, 1, 3)).sqrt().tolist() == pytest.approx([1.0] * H, abs=0.05)


@pytest.mark.parametrize("name", DECAYING)
def test_heads_start_with_the_half_lives_of_the_options(name):
    """Tokens of zeros write nothing, so what is left of a state is the decay."""
    for half_lives in ([2.0, 8.0, 32.0, 128.0], [16.0]):
        H = len(half_lives)
        made = layer(name, D=16 * H, H=H, shortest=2.0, longest=128.0)
        nn.init.zeros_(made.qkvr.bias)
        state = made.init_state(1, 9)
        state.kv_BHKV.fill_(1.0)
        _, after = made.prefill(torch.zeros(1, 9, 16 * H, dtype=torch.float64), state)
        found = -9 * math.log(2) / after.kv_BHKV[0, :, 0, 0].log()
        assert found.tolist() == pytest.approx(half_lives, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters", "state", "flops"),
    [("elu", 4, 64 * 65, 0.29), ("retention", 4, 32 * 64, 0.17), ("local", 4, 2 * 128 * 64, 0.37),
     ("gated", 4 + 24.5 / 768, 32 * 64, 0.17), ("mamba2", 4 + 12 / 768, 32 * 64, 0.17),
     ("gated_delta", 4 + 24 / 768, 32 * 64, 0.23), ("taylor2", 2.5, 153 * 65, 0.53),
     ("favor", 4, 128 * 65 + 128, 0.93), ("cosformer", 4, 128 * 65, 0.54),
     ("power", 1 + 1164 / 768, 136 * 65, 0.48)],
)  # fmt: skip
def test_its_size_state_and_flops_are_those_of_the_table(name, parameters, state, flops):
    """Parameters over D^2, state of a head, MFLOP of a token beside projections."""
    made = attention.build(name, 768, 12, context=1024)
    found = sum(p.numel() for p in made.parameters()) / 768**2
    assert found == pytest.approx(parameters, abs=0.01)
    parts = [x for x in vars(made.init_state(1, 1024)).values() if isinstance(x, torch.Tensor)]
    assert sum(x.numel() for x in parts) == 12 * state
    projections = 2 * sum(m.weight.numel() for m in made.modules() if isinstance(m, nn.Linear))
    assert (made.flops_per_token(1024) - projections) / 1e6 == pytest.approx(flops, abs=0.005)


def test_a_full_cache_unknown_names_and_odd_widths_are_refused():
    attend, x = layer("softmax"), tokens(6)
    full = attend.prefill(x[:, :5], attend.init_state(2, 5))[1]
    with refused(ValueError, "6 tokens", "state for 5"):
        attend.decode_step(x[:, 5], full)
    with refused(ValueError, "6 tokens", "state for 5"):
        attend.prefill(x, attend.init_state(2, 5))
    with refused(UserError, "'sofmax'", "'softmax'", ", ".join(registry.attentions())):
        attention.load("sofmax")
    with refused(ValueError, "d_head is 5"):
        Rotary(5)
    for name in filter(registry.implementations, NAMES):
        attend = layer(name)
        before = attend.implementation
        with refused(UserError, "implementation", "'flsh'"):
            attend.implementation = "flsh"
        assert attend.implementation == before


@pytest.mark.parametrize(
    ("name", "given", "values"),
    [("gated_dleta", {}, ("'gated_dleta'", "'gated_delta'")),
     ("gated", {"rnk": 3}, ("gated", "'rnk'", "'rank'", "temp")),
     ("gated", {"temperature": -1.0}, ("temperature", "gated", -1.0)),
     ("softmax", {"windw": 3}, ("softmax", "'windw'")), ("mamba2", {"d_model": 6}, ("width", 3)),
     ("linear", {"d_model": 10, "n_head": 3}, ("d_model", 10, "n_head", 3)),
     ("linear", {"n_head": 0}, ("n_head", 0)), ("cosformer", {}, ("cosformer", "context")),
     ("taylor2", {"order": 0}, ("order", "taylor2", 0, 2)),
     ("taylor2", {"order": 3}, ("order", "taylor2", 3, 4)),
     ("retention", {"shortest": 9.0, "longest": 3.0}, ("shortest", 9, "longest", 3)),
     *(("gated_delta", {"largest_beta": x}, ("largest_beta", x)) for x in (2.5, 0.0)),
     *((name, {option: 0}, (option, name, 0)) for name, option in
       (("local", "window"), ("favor", "features"), ("gated", "rank")))],
)  # fmt: skip
def test_what_cannot_be_built_is_refused(name, given, values):
    with refused(UserError, *values) as caught:
        attention.build(name, **{"d_model": 32, "n_head": 2} | given)
    assert "\n" not in str(caught.value)
