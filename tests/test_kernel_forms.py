"""What holds for every form of every kernel in plain PyTorch, of random small calls.

A new file of ``kernels/linear`` is tested by being there. Then what gates, states and sequences add
to linear attention and to the delta rule.

"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import gradients, linear_product, of_each, recurrence
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling import kernels, registry
from lmscaling.kernels import decode
from lmscaling.kernels.chunked_triton import plan as plans
from lmscaling.kernels.feature_maps import FEATURE_MAPS
from lmscaling.kernels.gated import chunked as gated
from lmscaling.kernels.gated import plain
from lmscaling.kernels.gated_delta import plain as delta

SINGLE, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float64
TOKENS = "q", "k", "v", "g", "beta"
"""Tensors of a call; g are logarithms of gates ``[B, T, H, K]``, beta has ``[B, T, H]``."""


def of_linear(name):
    attend = kernels.load("linear", name)

    def form(c):
        chunk = [1 << c.chunk.bit_length()] if kernels.takes_chunk(attend) else []
        return attend(c.q, c.k, c.v, *c.map, *chunk)

    return form, lambda c: linear_product(c.q, c.k, c.v, *c.map)


def of_gates(gates, each):
    """By gates as they are given, and as gates of each token."""
    return (
        lambda c: gated.attend(c.q, c.k, c.v, gates(c), None, c.chunk)[0],
        lambda c: recurrence(c.q, c.k, c.v, each(c), empty(c))[0],
    )


def by_channels(c):
    return recurrence(c.q, c.k, c.v, c.g, empty(c))[0]


def by_form(name):
    attend = kernels.load("gated", name)
    return lambda c: attend(c.q, c.k, c.v, c.g)[0]


def by_delta(c):
    return delta.attend(c.q, c.k, c.v, c.beta, c.g[..., 0], scale=1.0, chunk=c.chunk)[0]


def empty(c):
    return c.v.new_zeros(len(c.v), *c.k.shape[2:], c.v.shape[-1])


FORMS = {
    **{f"linear-{name}": of_linear(name) for name in registry.implementations_of("linear")},
    "gated-head": of_gates(
        lambda c: c.g[0, 0, :, 0], lambda c: c.g[:1, :1, :, :1].expand(*c.q.shape[:3], 1)
    ),
    "gated-token": of_gates(lambda c: c.g[..., 0], lambda c: c.g[..., :1]),
    "gated-channel": of_gates(lambda c: c.g, lambda c: c.g),
    **{f"gated-{name}": (by_form(name), by_channels) for name in ("recurrent", "parallel")},
    "gated_delta": (
        by_delta, lambda c: recurrence(c.q, c.k, c.v, c.g[..., :1], empty(c), c.beta[..., None])[0]
    ),
}  # fmt: skip
"""What computes a call, and its definition."""


@st.composite
def calls(draw, dtype=DOUBLE):
    """Small calls of any form: lengths that a chunk divides or not, widths that differ."""
    B, T, H, K, V = (draw(st.integers(1, most)) for most in (3, 19, 3, 5, 5))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    q, k, v, g = (torch.randn(B, T, H, n, dtype=DOUBLE) for n in (K, K, V, K))
    kind = draw(st.sampled_from([*FEATURE_MAPS])), draw(st.booleans())
    if kind == ("identity", True):
        q, k = q.abs() + 0.1, k.abs() + 0.1  # a sum of any sign cannot divide
    made = q, k / k.norm(dim=-1, keepdim=True), v, F.logsigmoid(g), 2 * torch.rand(B, T, H).double()
    tokens = zip(TOKENS, (x.to(dtype) for x in made), strict=True)
    return SimpleNamespace(**dict(tokens), map=kind, chunk=draw(st.integers(1, 20)))


close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
with_any_form = pytest.mark.parametrize("form", FORMS)
few = settings(max_examples=12)


@with_any_form
@settings(max_examples=20)
@given(c=calls())
def test_each_form_at_any_chunk_is_its_definition_with_all_gradients(form, c):
    """So it is linear in values, and sequences and heads are computed apart."""
    inputs, made = [getattr(c, name).requires_grad_() for name in TOKENS], []
    for compute in FORMS[form]:
        y = compute(c)
        slope = torch.cos(torch.arange(y.numel(), dtype=DOUBLE)).view(y.shape)
        d = torch.autograd.grad(y, inputs, slope, allow_unused=True)
        made.append([y, *(x for x in d if x is not None)])
    close(*made)


@with_any_form
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=["float32", "bfloat16"])
@few
@given(data=st.data())
def test_later_tokens_change_no_bit_of_earlier_outputs(form, dtype, data):
    c = data.draw(calls(dtype))
    cut, attend = data.draw(st.integers(0, c.v.shape[1])), FORMS[form][0]
    y = attend(c)
    for name in TOKENS:
        if (form, name) != ("gated-head", "g"):  # its gates are of no token
            x = getattr(c, name)
            setattr(c, name, torch.cat([x[:, :cut], -x[:, cut:].flip(1).abs() / 3], 1))
    assert y.dtype == dtype
    assert torch.equal(y[:, :cut], attend(c)[:, :cut])


@few
@given(c=calls(), dtype=st.sampled_from([DOUBLE, SINGLE, HALF]), share=st.floats(0, 1))
def test_a_prompt_and_steps_give_what_the_whole_sequence_gives(c, dtype, share):
    q, k, v = (x.to(dtype) for x in (c.q, c.k, c.v))
    (feature_map, normalize), prompt = c.map, round(share * v.shape[1])
    exact = linear_product(q.double(), k.double(), v.double(), feature_map, normalize)
    whole = decode.prefill(k, v, feature_map)
    kv, k_sum = decode.prefill(k[:, :prompt], v[:, :prompt], feature_map)
    assert kv.dtype == k_sum.dtype == torch.promote_types(dtype, torch.float32)
    weights = linear_product(q.double(), k.double(), v.double().abs(), feature_map, normalize)
    # Sums in the state's dtype, then one rounding.
    allowed = 16 * torch.finfo(kv.dtype).eps + torch.finfo(dtype).eps / 2
    for t in range(prompt, v.shape[1]):
        y = decode.step(q[:, t], k[:, t], v[:, t], kv, k_sum, feature_map, normalize)
        assert y.dtype == dtype
        assert (y - exact[:, t]).norm() <= allowed * weights[:, t].norm()
    # The state that steps leave is that of a longer prompt, as far as it is used.
    torch.testing.assert_close(kv, whole[0])
    if normalize:
        torch.testing.assert_close(k_sum, whole[1])


# States, gates and sequences
def delta_core(q, k, v, g, state, beta, *, chunk=64):
    gates = beta.squeeze(-1), g.squeeze(-1)
    return delta.attend(q, k, v, *gates, state, 1.0, chunk)


def drawn(T, kind, H=2, K=6, V=5):
    """q, k, v, g, a state, and beta of the delta rule; leaves in float64."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, T, H, n, dtype=torch.float64) for n in (K, K, V))
    g = F.logsigmoid(torch.randn(2, T, H, K if kind == "channel" else 1, dtype=torch.float64))
    made = [q, k, v, g, torch.randn(2, H, K, V, dtype=torch.float64)]
    if kind == "delta":
        made = [q, F.normalize(k, dim=-1), *made[2:], 2 * torch.rand(2, T, H, 1).double()]
    return [x.requires_grad_() for x in made]


CORES = {"token": plain.attend, "channel": plain.attend, "delta": delta_core}
with_any_gate = pytest.mark.parametrize("kind", CORES)


@with_any_gate
@settings(max_examples=15)
@given(T=st.integers(1, 40), chunk=st.integers(1, 64))
def test_states_and_all_gradients_are_those_of_the_recurrence(kind, T, chunk):
    inputs = drawn(T, kind)
    found, expected = CORES[kind](*inputs, chunk=chunk), recurrence(*inputs)
    close(found, expected)
    close(gradients(found, inputs), gradients(expected, inputs))


def test_a_delta_rule_without_decay_is_one_whose_decay_is_nothing():
    q, k, v, g, state, beta = drawn(29, "delta")
    rule = partial(delta.attend, q, k, v, beta.squeeze(-1), initial_BHKV=state)
    found, same = (rule(log_decay_BTH=gates) for gates in (None, 0 * g.squeeze(-1)))
    close(found, same)


def test_the_state_of_a_prompt_is_one_that_the_kernel_of_a_step_takes(monkeypatch):
    """It asks for contiguous ones. In float64, what a GPU calls is computed in plain PyTorch."""
    q, k, v, g, _ = drawn(29, "token")
    monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    y, last = gated.attend(q, k, v, g.squeeze(-1))
    assert last.is_contiguous()
    close(y, plain.attend(q, k, v, g)[0])


@pytest.mark.parametrize("form", ["recurrent", "parallel"])
def test_a_form_goes_on_from_a_state_and_gives_the_next(form):
    q, k, v, g, state = (x.detach() for x in drawn(29, "channel"))
    close(kernels.load("gated", form)(q, k, v, g, state), recurrence(q, k, v, g, state))


@with_any_gate
@pytest.mark.parametrize("strength", [0.0, 20.0, 200.0, "once"])
def test_strong_gates_are_finite_and_right_in_float32(kind, strength):
    exact = drawn(70, kind, K=16)
    g = exact[3].detach() if strength == "once" else torch.full_like(exact[3], -strength)
    if strength == "once":
        g[:, 9] = -80
    exact[3] = g.requires_grad_()
    single = [x.detach().float().requires_grad_() for x in exact]
    found = gradients(tuple(x.double() for x in CORES[kind](*single)), single)
    for one, other in zip(found, gradients(CORES[kind](*exact), exact), strict=True):
        assert ((one - other).abs().max() / other.abs().max().clamp(min=1)) < 3e-5


def test_gates_start_anew_at_each_sequence():
    q, k, v, g, state = (x.detach() for x in drawn(9, "token"))
    lengths, initial = (9, 1, 8), torch.cat([state, state[:1]])
    found = gated.attend(q, k, v, g.squeeze(-1), initial, lengths=lengths)
    close(found, of_each(recurrence, [q, k, v, g], initial, lengths))


@given(st.data())
def test_segments_and_chunks_are_those_of_plain_loops(data):
    N, chunk, more = (data.draw(st.integers(1, most)) for most in (60, 16, 3))
    rows, tokens = data.draw(st.integers(1, 3)), chunk * more
    cuts = data.draw(st.sets(st.integers(1, rows * N - 1))) if rows * N > 1 else set()
    starts = sorted({0, *cuts, *range(0, rows * N, N)})
    lengths = tuple(b - a for a, b in zip(starts, [*starts[1:], rows * N], strict=True))
    made = plans.cut(rows, N, lengths, tokens, chunk, torch.device("cpu"))
    table, ranges, chunks = [], [], 0
    for at, length in zip(starts, lengths, strict=True):
        ranges.append([len(table), -(-length // tokens)])
        for first in range(at, at + length, tokens):
            n = min(tokens, at + length - first)
            table.append([first // N, first % N, n, chunks])
            chunks += -(-n // chunk)
    assert [x.tolist() for x in made] == [table, ranges]
    assert made.is_split == (len(table) > len(lengths))


def test_shapes_that_do_not_fit_are_refused():
    q, k, v, g, state, beta = (x.detach() for x in drawn(9, "delta"))
    beta, gates = beta.squeeze(-1), g.squeeze(-1)
    rule, sequences = partial(delta.attend, q, k, v), partial(gated.attend, q, k, v, gates)
    for call, *values in (
        (lambda: rule(beta[:, 1:]), "beta", "(2, 8, 2)", "(2, 9, 2)"),
        (lambda: rule(beta, g), "log_decay", "(2, 9, 2, 1)"),
        (lambda: rule(beta, gates, state[:1]), "initial", "(1, 2, 6, 5)", "(2, 2, 6, 5)"),
        (lambda: sequences(lengths=(9, 8)), "lengths", "17", "18"),
        (lambda: sequences(lengths=(5, 5, 8)), "lengths", 5, 9),
        (lambda: sequences(lengths=(9, 0, 9)), "lengths", 0),
    ):
        with refused(ValueError, *values):
            call()
