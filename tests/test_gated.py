"""Gated linear attention and the gated delta rule in plain PyTorch: states, gates, sequences."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import (
    delta_sample,
    gradients,
    linear_product,
    of_each,
    recurrence,
)
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling import kernels
from lmscaling.kernels import State, linear_attention, segments
from lmscaling.kernels.gated import chunked, plain
from lmscaling.kernels.gated_delta import chunked as delta

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def gated_core(q, k, v, g, state=None, *, chunk=64):
    return plain.attend(q, k, v, g, state, chunk)


def delta_core(q, k, v, g, state, beta, *, chunk=64, lengths=()):
    gates = beta.squeeze(-1), g.squeeze(-1)
    return delta.attend(q, k, v, *gates, state, lengths, 1.0, chunk)


def drawn(T, kind, H=2, K=6, V=5):
    """q, k, v, g, a state, and beta of the delta rule; leaves in float64."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, T, H, n, dtype=torch.float64) for n in (K, K, V))
    g = F.logsigmoid(torch.randn(2, T, H, K if kind == "channel" else 1, dtype=torch.float64))
    made = [q, k, v, g, torch.randn(2, H, K, V, dtype=torch.float64)]
    if kind == "delta":
        made = [q, F.normalize(k, dim=-1), *made[2:], 2 * torch.rand(2, T, H, 1).double()]
    return [x.requires_grad_() for x in made]


CORES = {"token": gated_core, "channel": gated_core, "delta": delta_core}
with_any_gate = pytest.mark.parametrize("kind", CORES)


@with_any_gate
@settings(max_examples=15)
@given(T=st.integers(1, 40), chunk=st.integers(1, 64))
def test_states_and_all_gradients_are_those_of_the_recurrence(kind, T, chunk):
    inputs = drawn(T, kind)
    found, expected = CORES[kind](*inputs, chunk=chunk), recurrence(*inputs)
    close(found, expected)
    close(gradients(found, inputs), gradients(expected, inputs))


@with_any_gate
@settings(max_examples=8)
@given(T=st.integers(1, 30), share=st.floats(0, 1))
def test_a_state_is_continued_by_more_tokens_or_by_steps(kind, T, share):
    *tokens, state = (x.detach() for x in drawn(T, kind)[:5])
    more = [x.detach() for x in drawn(T, kind)[5:]]
    whole, last = CORES[kind](*tokens, state, *more)
    n = round(share * T)
    now = state.clone()
    if n:
        head, now = CORES[kind](*(x[:, :n] for x in tokens), state, *(x[:, :n] for x in more))
        close(head, whole[:, :n])
    for t in range(n, T):
        q, k, v, g = (x[:, t] for x in tokens)
        if kind == "delta":
            given = more[0][:, t].squeeze(-1), g.squeeze(-1)
            y = delta.step(q, k, v, *given, now, 1.0)
        else:
            y = chunked.step(q, k, v, g if kind == "channel" else g.squeeze(-1), now)
        close(y, whole[:, t])
    close(now, last)


def test_the_delta_rule_starts_anew_at_each_sequence():
    lengths = (12, 1, 16)
    inputs, _ = delta_sample(lengths, 2, 6, 5)
    inputs = [x.requires_grad_() for x in inputs]
    *tokens, state = inputs[:4] + inputs[4:]
    for chunk in (4, 7, 64):
        found = delta_core(*inputs[:4], state, inputs[4], chunk=chunk, lengths=lengths)
        expected = of_each(recurrence, tokens, state, lengths)
        close(found, expected)
        close(gradients(found, inputs), gradients(expected, inputs))
    q, k, v, g, beta = (x.squeeze(-1) if x.shape[-1] == 1 else x for x in inputs[:5])
    none = delta.attend(q, k, v, beta, None, state[:1])[0]
    close(none, delta.attend(q, k, v, beta, 0 * g, state[:1])[0])


def test_the_state_of_a_prompt_is_one_that_the_kernel_of_a_step_takes(monkeypatch):
    """It asks for contiguous ones. In float64, what a GPU calls is computed in plain PyTorch."""
    q, k, v, g, _ = drawn(29, "token")
    monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    y, last = chunked.attend(q, k, v, g.squeeze(-1))
    assert last.is_contiguous()
    close(y, gated_core(q, k, v, g)[0])


@with_any_gate
@pytest.mark.parametrize("strength", [0.0, 20.0, 200.0, "once"])
def test_strong_gates_are_finite_and_right_in_float32(kind, strength):
    exact = drawn(70, kind, K=16)
    g = exact[3].detach() if strength == "once" else torch.full_like(exact[3], -strength)
    if strength == "once":
        g[:, 9] = -80
    exact[3] = g.requires_grad_()
    single = [x.detach().float().requires_grad_() for x in exact]
    for one, other in zip(
        gradients(tuple(x.double() for x in CORES[kind](*single)), single),
        gradients(CORES[kind](*exact), exact), strict=True,
    ):  # fmt: skip
        assert ((one - other).abs().max() / other.abs().max().clamp(min=1)) < 3e-5


# Linear attention as a function


def test_linear_attention_divides_what_is_gated_by_its_sum_of_weights():
    q, k, v, g, state = (x.detach() for x in drawn(9, "token"))
    lengths = (9, 1, 8)
    kv, z = torch.cat([state, state[:1]]), torch.rand(3, 2, 6).double()
    y, last = linear_attention(
        q, k, v, log_decay=g.squeeze(-1), initial=State(kv, z), lengths=lengths
    )
    tokens = [F.softplus(q), F.softplus(k), F.pad(v, (0, 1), value=1.0), g]
    sums, states = of_each(recurrence, tokens, torch.cat([kv, z[..., None]], -1), lengths)
    close(y, sums[..., :-1] / sums[..., -1:])
    close(torch.cat([last.kv_NHKV, last.k_NHK[..., None]], -1), states)
    q4 = torch.cat([q, q], 2)
    expected = linear_product(q4, k[:, :, [0, 0, 1, 1]], v[:, :, [0, 0, 1, 1]], "softplus", True)
    close(linear_attention(q4, k, v)[0], expected)


# Sequences, and what does not fit


@given(st.data())
def test_segments_and_chunks_are_those_of_plain_loops(data):
    N, chunk, more = (data.draw(st.integers(1, most)) for most in (60, 16, 3))
    rows, tokens = data.draw(st.integers(1, 3)), chunk * more
    cuts = data.draw(st.sets(st.integers(1, rows * N - 1))) if rows * N > 1 else set()
    starts = sorted({0, *cuts, *range(0, rows * N, N)})
    lengths = tuple(b - a for a, b in zip(starts, [*starts[1:], rows * N], strict=True))
    made = segments.cut(rows, N, lengths, tokens, chunk, torch.device("cpu"))
    table, ranges, chunks = [], [], []
    for at, length in zip(starts, lengths, strict=True):
        ranges.append([len(table), -(-length // tokens)])
        for first in range(at, at + length, tokens):
            n = min(tokens, at + length - first)
            table.append([first // N, first % N, n, len(chunks)])
            for part in range(first, first + n, chunk):
                chunks.append([part // N, part % N, min(chunk, first + n - part)])
    found = [x.tolist() for x in (made.table, made.ranges, made.chunks, made.first, made.last)]
    firsts = [first for first, _ in ranges]
    assert found == [table, ranges, chunks, firsts, [first + n - 1 for first, n in ranges]]
    assert (made.count, made.sequences) == (len(table), len(lengths))
    assert made.is_split == (len(table) > len(lengths))


def test_shapes_that_do_not_fit_are_refused():
    q, k, v, g, state, beta = (x.detach() for x in drawn(9, "delta"))
    gates = beta.squeeze(-1), g.squeeze(-1)
    with refused(ValueError, "beta", "(2, 8, 2)", "(2, 9, 2)"):
        delta.attend(q, k, v, gates[0][:, 1:])
    with refused(ValueError, "log_decay", "(2, 9, 2, 1)"):
        delta.attend(q, k, v, gates[0], g)
    with refused(ValueError, "initial", "(2, 2, 6, 5)", "(3, 2, 6, 5)"):
        delta.attend(q, k, v, *gates, state, (4, 5, 9))
    for lengths, values in (
        ((9, 8), ("17", "18")), ((5, 5, 8), (5, 9)), ((9, 0, 9), (0,)),
    ):  # fmt: skip
        with refused(ValueError, "lengths", *values):
            delta.attend(q, k, v, gates[0], lengths=lengths)
    with refused(ValueError, "log_decay", "(9, 2)", "(2, 9, 2)"):
        linear_attention(q, k, v, log_decay=torch.zeros(9, 2))
    with refused(ValueError, "initial.kv_NHKV", "(1, 2, 6, 5)", "(2, 2, 6, 5)"):
        linear_attention(q, k, v, initial=State(state[:1], state[:1, ..., 0]))
    with refused(ValueError, "k has 2", "3 of q"):
        linear_attention(torch.cat([q, q[:, :, :1]], 2), k, v)
