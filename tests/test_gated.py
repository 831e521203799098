"""Gated linear attention in plain PyTorch: its recurrence, its gates, and their gradients."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import Core, gradients, recurrence, slopes
from delta_rule import recurrence as delta_recurrence

from lmscaling import kernels
from lmscaling.kernels.gated import chunked, plain
from lmscaling.kernels.gated_delta import plain as delta

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
to_1e_12 = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def drawn(T, gate, H=3, K=6, V=5):
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, T, H, n, dtype=torch.float64) for n in (K, K, V))
    g = F.logsigmoid(torch.randn(2, T, H, {"token": 1, "channel": K}[gate], dtype=torch.float64))
    return [x.requires_grad_() for x in (q, k, v, g, torch.randn(2, H, K, V, dtype=torch.float64))]


def gated_core(q, k, v, g, state=None, *, chunk=64):
    return plain.attend(q, k, v, g, state, chunk)


def delta_core(q, k, v, beta, g, state, *, chunk=64):
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
