"""The contract of every module in ``attention/``; a new file is tested by being there."""

import math

import pytest
import torch
import torch._dynamo.testing
from attention_definitions import AVERAGING, DECAYING, gradients, output
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import (
    _registry,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)

from lmscaling import attention, kernels, registry
from lmscaling.bench.checks import variant
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated

NAMES = registry.attentions()
OPTIONS = {
    "favor": {"features": 6},
    "gated": {"rank": 3, "temperature": 4.0},
    "gated_delta": {"largest_beta": 2.0},
    "local": {"window": 5},
    "taylor2": {"order": 4, "width": 4},
}
with_any = pytest.mark.parametrize("name", NAMES)
rotations = st.sampled_from([unrotated, Rotary(8)])
few = settings(max_examples=8)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def layer(name, rotate=unrotated, D=16, H=2, **options):
    """An attention of two heads of 8 channels in float64."""
    torch.manual_seed(0)
    options = OPTIONS.get(name, {}) | options
    return attention.build(name, D, H, rotate, context=80, **options).double()


def tokens(T, B=2, D=16):
    torch.manual_seed(T)
    return torch.randn(B, T, D, dtype=torch.float64)


# What it computes


@with_any
@few
@given(rotate=rotations, T=st.integers(1, 70))
def test_a_layer_is_its_definition_with_all_gradients(name, rotate, T):
    assert name in AVERAGING or name in DECAYING
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
    rotate=rotations,
    T=st.integers(1, 40),
    B=st.integers(1, 3),
    share=st.floats(0, 1),
    choice=st.integers(0, 9),
    chunk=st.sampled_from([1, 2, 4, 8, 64]),
)
def test_all_forms_of_a_layer_are_one(name, rotate, T, B, share, choice, chunk):
    """Implementations, chunks, a prompt with steps behind it, and what a device may choose from."""
    made, x = layer(name, rotate), tokens(T, B)
    expected, flops, prompt = made(x), made.flops_per_token(T), round(share * T)
    state, found = made.init_state(B, T), []
    if prompt:
        y, state = made.prefill(x[:, :prompt], state)
        assert not y.requires_grad
        found = [y]
    for t in range(prompt, T):
        y, state = made.decode_step(x[:, t], state)
        assert not y.requires_grad
        found.append(y.unsqueeze(1))
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


@pytest.mark.parametrize("name", [*DECAYING, "taylor2", "favor", "cosformer"])
def test_a_second_prompt_continues_the_first(name):
    made, x = layer(name, Rotary(8)), tokens(29)
    first, state = made.prefill(x[:, :13], made.init_state(2, 29))
    second, state = made.prefill(x[:, 13:], state)
    close(torch.cat([first, second], 1), made(x))
    close(state.kv_BHKV, made.prefill(x, made.init_state(2, 29))[1].kv_BHKV)


@with_any
def test_sequences_are_computed_apart_and_weights_can_be_kept(name):
    made, x = layer(name), tokens(20, 3)
    close(made(x[[2, 0, 1]]), made(x)[[2, 0, 1]])
    other = layer(name)
    torch.nn.init.zeros_(other.out.weight)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), made(x))


@with_any
def test_it_passes_the_check_before_training(name):
    """Shape, dtype under autocast, gradients, repetition, and decoding in float32."""
    variant.check(variant.Variant(name=name, rotated=True), torch.device("cpu"))


@with_any
def test_its_flops_are_positive_and_never_fall_with_the_context(name):
    attend = attention.build(name, 64, 4, context=65536)
    flops = [attend.flops_per_token(context) for context in (1, 64, 1024, 65536)]
    assert flops[0] > 0
    assert flops == sorted(flops)
    growth = flops[2] - attend.flops_per_token(512)
    assert growth == {"softmax": 2 * 64 * 512, "linear": 0}.get(name, growth)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "implementation"),
    [(n, each) for n in ("softmax", "linear") for each in registry.implementations(n)],
)
def test_a_compiler_never_writes_out_a_loop_over_tokens(name, implementation):
    attend = layer(name).float()
    attend.implementation = implementation
    operations = []
    for T in (6, 12):
        torch._dynamo.reset()
        compiler = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        x = torch.randn(2, T, 16)
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


# Rotations


@given(width=st.sampled_from([2, 8, 64]), near=st.integers(0, 9), far=st.integers(0, 70_000))
def test_a_turned_query_and_key_know_only_their_distance(width, near, far):
    rotate, q, k = Rotary(width), *torch.randn(2, 1, width, dtype=torch.float64)
    expected = rotate(q, near) @ rotate(k, 0).T
    torch.testing.assert_close(rotate(q, far + near) @ rotate(k, far).T, expected)
    torch.testing.assert_close(rotate(q, 0), q)


@pytest.mark.parametrize("width", [8, 64])
def test_a_pair_turns_by_its_position_times_a_power_of_ten_thousand(width):
    """Su et al. 2021, eq. 15 and 34: theta_i = 10000^(-2i / d), for each token in turn."""
    half = width // 2
    first = torch.cat([torch.ones(half), torch.zeros(half)]).double().expand(2, 3, width)
    turned = Rotary(width)(first, 1000)
    for t in range(3):
        angles = [(1000 + t) * 10_000.0 ** (-2 * pair / width) for pair in range(half)]
        expected = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        torch.testing.assert_close(turned[1, t], torch.tensor(expected, dtype=torch.float64))


def test_a_rotation_keeps_the_dtype_and_rounds_bfloat16_once():
    low = torch.randn(1, 3, 8).to(torch.bfloat16)
    turned = Rotary(8)(low, 60_000)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, Rotary(8)(low.float(), 60_000).to(torch.bfloat16))


# Flash attention on a GPU


def test_softmax_has_two_back_ends_on_a_gpu_where_cudnn_takes_the_width_of_a_head():
    for d_model, n_head, more in ((1600, 25, True), (16, 2, True), (512, 2, False), (24, 2, False)):
        expected = {"implementation": ("flash", "cudnn")} if more else {}
        attend = attention.build("softmax", d_model, n_head)
        assert attend.tunable("cuda") == expected
        assert attend.tunable("cpu") == {}


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that FlashAttention-4 supports, as far as it can be asked without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    yield monkeypatch
    restore_flash_attention_impl(_raise_warn=False)


def test_flash4_is_tried_where_it_can_be_chosen_and_elsewhere_says_what_it_lacks(hopper):
    attend = attention.build("softmax", 1600, 25)
    without, names = {"implementation": ("flash", "cudnn")}, ("flash", "cudnn", "flash4")
    assert attend.tunable("cuda") == without
    with pytest.raises(RuntimeError, match=r"flash-attn-4.*flash_attn"):
        attend.implementation = "flash4"
    installed = type("Handle", (), {"remove": lambda self: None})
    hopper.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", installed)
    assert attend.tunable("cuda") == {"implementation": names}
    assert current_flash_attention_impl() is None
    for name, active in {"flash4": "FA4", "flash": None, "cudnn": None}.items():
        attend.implementation = "flash4"  # of the version chosen last, in the whole process
        attend.implementation = name
        assert current_flash_attention_impl() == active
    hopper.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    hopper.setattr(torch.cuda, "get_device_name", lambda: "A100")
    assert attend.tunable("cuda") == without
    with pytest.raises(RuntimeError, match=r"H100, H200.*A100"):
        attend.implementation = "flash4"


# Refusals


def test_a_full_cache_takes_no_further_token():
    attend, x = layer("softmax"), tokens(6)
    with refused(ValueError, "6 tokens", "state for 5"):
        attend.prefill(x, attend.init_state(2, 5))
    _, state = attend.prefill(x[:, :5], attend.init_state(2, 5))
    with refused(ValueError, "6 tokens", "state for 5"):
        attend.decode_step(x[:, 5], state)


def test_unknown_names_and_odd_widths_are_refused():
    with refused(UserError, "'sofmax'", "'softmax'", ", ".join(NAMES)):
        attention.load("sofmax")
    with refused(ValueError, "d_head is 5"):
        Rotary(5)
    for name in NAMES:
        if registry.implementations(name):
            attend = layer(name)
            before = attend.implementation
            with refused(UserError, "implementation", "'flsh'"):
                attend.implementation = "flsh"
            assert attend.implementation == before


@pytest.mark.parametrize(
    ("name", "given", "values"),
    [
        ("gated_dleta", {}, ("'gated_dleta'", "'gated_delta'")),
        ("gated", {"rnk": 3}, ("gated", "'rnk'", "'rank'", "temp")),
        ("softmax", {"windw": 3}, ("softmax", "'windw'")),
        ("linear", {"d_model": 10, "n_head": 3}, ("d_model", 10, "n_head", 3)),
        ("linear", {"n_head": 0}, ("n_head", 0)),
        ("cosformer", {}, ("cosformer", "context")),
        ("local", {"window": 0}, ("window", "local", 0)),
        ("taylor2", {"order": 3}, ("order", "taylor2", 3, 4)),
        ("taylor2", {"order": 0}, ("order", "taylor2", 0, 2)),
        ("favor", {"features": 0}, ("features", "favor", 0)),
        ("gated", {"rank": 0}, ("rank", "gated", 0)),
        ("gated", {"temperature": -1.0}, ("temperature", "gated", -1.0)),
        ("gated_delta", {"largest_beta": 2.5}, ("largest_beta", 2.5)),
        ("gated_delta", {"largest_beta": 0.0}, ("largest_beta", 0.0)),
        ("retention", {"shortest": 9.0, "longest": 3.0}, ("shortest", 9, "longest", 3)),
        ("mamba2", {"d_model": 6}, ("width", 3)),
    ],
)
def test_what_cannot_be_built_is_refused(name, given, values):
    with refused(UserError, *values) as caught:
        attention.build(name, **{"d_model": 32, "n_head": 2} | given)
    assert "\n" not in str(caught.value)
