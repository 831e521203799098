"""The contract of every module in ``attention/``; a new file is tested by being there."""

import pytest
import torch
import torch._dynamo.testing
from torch.nn.attention import (
    _registry,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)

from lmscaling import attention, registry
from lmscaling.bench.checks import variant
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.kernels.softmax import _pytorch

NAMES = registry.attentions()
IMPLEMENTATIONS = [(name, each) for name in NAMES for each in registry.implementations(name)]
with_any_position = pytest.mark.parametrize(
    "rotate", [unrotated, Rotary(16)], ids=["unrotated", "rope"]
)


def built(name, rotate):
    """An attention of two heads of 16 channels."""
    return attention.build(name, 32, 2, rotate, context=70)


@pytest.mark.parametrize("rotated", [False, True], ids=["unrotated", "rope"])
@pytest.mark.parametrize("name", NAMES)
def test_it_passes_the_check_before_training(name, rotated):
    """Causality, shape, dtype, gradients, repetition, sequences of a batch, and decoding."""
    variant.check(variant.Variant(name=name, rotated=rotated), torch.device("cpu"))


@with_any_position
@pytest.mark.parametrize("name", NAMES)
def test_steps_give_what_the_whole_sequence_gives(name, rotate):
    torch.manual_seed(0)
    attend = built(name, rotate)
    x = torch.randn(3, 70, 32)
    state, outs = attend.init_state(3, 70), []
    with torch.no_grad():
        for t in range(70):
            out, state = attend.decode_step(x[:, t], state)
            outs.append(out)
        torch.testing.assert_close(torch.stack(outs, 1), attend(x), rtol=1e-4, atol=1e-5)


@with_any_position
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("prompt", [1, 63, 69])
def test_a_prompt_is_forward_and_leaves_the_state_for_steps(name, rotate, batch, prompt):
    torch.manual_seed(0)
    attend = built(name, rotate)
    x = torch.randn(batch, 70, 32)
    out, state = attend.prefill(x[:, :prompt], attend.init_state(batch, 70))
    assert not out.requires_grad
    outs = [out]
    for t in range(prompt, 70):
        out, state = attend.decode_step(x[:, t], state)
        outs.append(out.unsqueeze(1))
    torch.testing.assert_close(torch.cat(outs, 1), attend(x), rtol=1e-4, atol=1e-5)


def test_a_full_cache_takes_no_further_token():
    attend = attention.load("softmax")(32, 2, unrotated)
    x = torch.randn(1, 6, 32)
    with pytest.raises(ValueError, match="6 tokens do not fit into a state for 5; allowed: 5"):
        attend.prefill(x, attend.init_state(1, 5))
    _, state = attend.prefill(x[:, :5], attend.init_state(1, 5))
    with pytest.raises(ValueError, match="6 tokens do not fit into a state for 5; allowed: 5"):
        attend.decode_step(x[:, 5], state)


@with_any_position
@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTATIONS)
def test_every_implementation_computes_the_same(name, implementation, rotate):
    torch.manual_seed(0)
    attend = built(name, rotate).double()
    x = torch.randn(2, 37, 32, dtype=torch.float64)
    expected = attend(x)
    attend.implementation = implementation
    assert attend.implementation == implementation
    torch.testing.assert_close(attend(x), expected)


@pytest.mark.ci
@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTATIONS)
def test_a_compiler_never_writes_out_a_loop_over_tokens(name, implementation):
    attend = built(name, unrotated)
    attend.implementation = implementation
    operations = []
    for T in (6, 12):
        torch._dynamo.reset()
        compiler = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        x = torch.randn(2, T, 32)
        compiled = torch.compile(attend, backend=compiler, dynamic=False)
        torch.testing.assert_close(compiled(x), attend(x))
        operations.append(compiler.op_count)
    assert operations[0] == operations[1] > 0


@pytest.mark.parametrize("name", sorted({name for name, _ in IMPLEMENTATIONS}))
def test_an_unknown_implementation_lists_the_known(name):
    attend = built(name, unrotated)
    before = attend.implementation
    with pytest.raises(UserError, match="implementation 'flsh' has no file; "):
        attend.implementation = "flsh"
    assert attend.implementation == before


@pytest.mark.parametrize("name", NAMES)
def test_its_flops_are_positive_and_never_fall_with_the_context(name):
    attend = attention.build(name, 64, 4, context=65536)
    flops = [attend.flops_per_token(context) for context in (1, 64, 1024, 65536)]
    assert flops[0] > 0
    assert flops == sorted(flops)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_rotated_queries_and_keys_reach_the_kernels_in_the_dtype_of_autocast(name):
    """In float32 the products of a GPU would take many times as long."""
    attend, dtypes = built(name, Rotary(16)), []
    inner = attend._attend

    def recorded(q, k, v, *rest):
        dtypes.extend([q.dtype, k.dtype, v.dtype])
        return inner(q, k, v, *rest)

    attend._attend = recorded
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(torch.randn(1, 5, 32)).dtype == torch.bfloat16
    assert dtypes == [torch.bfloat16] * 3


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_rotated_positions_make_the_order_of_earlier_tokens_matter(name):
    torch.manual_seed(0)
    x = torch.randn(1, 40, 32, dtype=torch.float64)
    swapped = x[:, [*range(37), 38, 37, 39]]
    for rotate, moves in ((unrotated, False), (Rotary(16), True)):
        attend = built(name, rotate).double()
        moved = (attend(x)[:, -1] - attend(swapped)[:, -1]).abs().max()
        assert (moved > 1e-6) == moves


@pytest.mark.parametrize("name", NAMES)
def test_what_is_tuned_changes_nothing_but_rounding(name):
    torch.manual_seed(0)
    attend = built(name, unrotated).double()
    x = torch.randn(2, 300, 32, dtype=torch.float64)
    expected, flops = attend(x), attend.flops_per_token(300)
    # What a GPU may choose from is right on a CPU too.
    choices = [*attend.tunable("cpu").items(), *attend.tunable("cuda").items()]
    for attribute, values in choices:
        assert getattr(attend, attribute) == values[0]
        for value in values:
            setattr(attend, attribute, value)
            torch.testing.assert_close(attend(x), expected)
            assert attend.flops_per_token(300) == flops
        setattr(attend, attribute, values[0])


def test_softmax_has_two_back_ends_on_a_gpu_where_cudnn_takes_the_width_of_a_head():
    softmax = attention.load("softmax")
    assert softmax(1600, 25, unrotated).tunable("cuda") == {"implementation": ("flash", "cudnn")}
    for d_model in (8, 24, 512):
        assert softmax(d_model, 2, unrotated).tunable("cuda") == {}
    assert softmax(1600, 25, unrotated).tunable("cpu") == {}


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that FlashAttention-4 supports, as far as it can be asked without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    yield monkeypatch
    restore_flash_attention_impl(_raise_warn=False)


def activated(hopper):
    """Install FlashAttention-4."""
    handle = type("Handle", (), {"remove": lambda self: None})
    hopper.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", handle)


def test_flash_attention_is_of_the_version_that_was_chosen_last_in_the_whole_process(hopper):
    activated(hopper)
    attend = attention.load("softmax")(32, 2, unrotated)
    for name, active in {"flash4": "FA4", "flash": None, "cudnn": None}.items():
        attend.implementation = "flash4"
        attend.implementation = name
        assert current_flash_attention_impl() == active
    attend.implementation = "flash4"
    _pytorch.use_flash(2)  # as every call of another implementation does
    assert current_flash_attention_impl() is None


def test_flash4_is_tried_where_it_can_be_chosen_and_elsewhere_says_what_it_lacks(hopper):
    attend = attention.load("softmax")(1600, 25, unrotated)
    assert attend.tunable("cuda") == {"implementation": ("flash", "cudnn")}
    with pytest.raises(RuntimeError, match=r"pip install flash-attn-4.*flash_attn"):
        attend.implementation = "flash4"
    activated(hopper)
    assert attend.tunable("cuda") == {"implementation": ("flash", "cudnn", "flash4")}
    assert current_flash_attention_impl() is None
    hopper.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    hopper.setattr(torch.cuda, "get_device_name", lambda: "A100")
    assert attend.tunable("cuda") == {"implementation": ("flash", "cudnn")}
    with pytest.raises(RuntimeError, match=r"needs an H100, H200 or B200.*A100"):
        attend.implementation = "flash4"


def test_a_turned_query_and_key_know_only_their_distance():
    rotate, q, k = Rotary(8), *torch.randn(2, 1, 8, dtype=torch.float64)
    near = rotate(q, 3) @ rotate(k, 1).T
    torch.testing.assert_close(rotate(q, 70_003) @ rotate(k, 70_001).T, near)
    torch.testing.assert_close(rotate(q, 0), q)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(x, 0)[:, 3:4], rotate(x[:, 3:4], 3))


def test_rotated_linear_attention_divides_by_what_is_not_rotated():
    """Su et al. 2021, eq. 19, by its definition."""
    torch.manual_seed(0)
    rotate = Rotary(16)
    attend = attention.load("linear")(32, 2, rotate).double()
    x = torch.randn(1, 70, 32, dtype=torch.float64)
    q, k, v = attend.qkv(x).view(1, 70, 3, 2, 16).permute(2, 0, 3, 1, 4)
    q, k = torch.nn.functional.softplus(q), torch.nn.functional.softplus(k)
    weights = (rotate(q, 0) @ rotate(k, 0).transpose(-1, -2)).tril()
    out = weights @ v / (q @ k.transpose(-1, -2)).tril().sum(-1, keepdim=True)
    torch.testing.assert_close(attend(x), attend.out(out.transpose(1, 2).flatten(2)))


def test_heads_of_odd_width_cannot_be_turned():
    with pytest.raises(ValueError, match="d_head is 5; allowed: even"):
        Rotary(5)


def test_the_flops_of_softmax_grow_with_the_context_and_those_of_linear_do_not():
    softmax, linear = (attention.load(n)(64, 4, unrotated) for n in ("softmax", "linear"))
    assert softmax.flops_per_token(2048) - softmax.flops_per_token(1024) == 2 * 64 * 1024
    assert linear.flops_per_token(2048) == linear.flops_per_token(1024)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UserError, match=f"nearest is 'softmax'; allowed: {', '.join(NAMES)}"):
        attention.load("sofmax")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("gated_dleta", {}, "nearest is 'gated_delta'"),
        ("gated", {"rnk": 3}, "gated has no option 'rnk'; nearest is 'rank'; allowed: rank, temp"),
        ("softmax", {"window": 3}, "softmax has no option 'window'; none is defined"),
        ("linear", {"d_model": 10, "n_head": 3}, "d_model is 10 and n_head is 3; allowed: a posit"),
        ("linear", {"n_head": 0}, "n_head is 0; allowed: a positive multiple"),
        ("cosformer", {}, "cosformer has no context; give the most tokens that its model reads"),
        ("local", {"window": 0}, "window of local is 0; allowed: at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(name, given, said):
    with pytest.raises(UserError, match=said) as caught:
        attention.build(name, **{"d_model": 32, "n_head": 2} | given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_one_trains_in_a_model_of_ones_own(name):
    """One layer with a residual connection learns the token before; its weights can be kept."""
    torch.manual_seed(0)
    context = {"context": 24} if attention.takes_context(name) else {}
    attend = attention.build(name, 32, 2, attention.Rotary(16), **context)
    read, write = torch.nn.Embedding(4, 32), torch.nn.Linear(32, 4)
    parameters = [p for part in (read, attend, write) for p in part.parameters()]
    optimizer, losses = torch.optim.Adam(parameters, 1e-2), []
    for _ in range(40):
        tokens = torch.randint(4, (8, 24))
        x = read(tokens)
        logits = write(x + attend(x))[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < losses[0] - 0.05
    other = attention.build(name, 32, 2, attention.Rotary(16), **context)
    other.load_state_dict(attend.state_dict())
    x = torch.randn(1, 24, 32)
    torch.testing.assert_close(other(x), attend(x))
