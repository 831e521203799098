"""Gates, states, sequences and documents of the fused kernels; run by test_fused.py."""

from typing import Any

import pytest
import torch
from attention_definitions import of_each, recurrence
from fused_cases import DTYPES, pack, plan, softplus, unpack
from kernel_device import DEVICE, INTERPRETED, distance, sample
from torch.nn.functional import pad

from lmscaling import attention, kernels
from lmscaling.attention import Documents
from lmscaling.kernels import decode, feature_maps
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.chunked_triton.plan import block
from lmscaling.kernels.gated import chunked as gated_kernels
from lmscaling.kernels.rotary import Rotary, unrotated


def summed(q, k, v, g, state, normalize, lengths=()):
    """Token by token: y, and the states with the sums of keys as a last column, of softplus."""
    phi = feature_maps.find("softplus")
    given = [phi.of(q), phi.of(k), pad(v, (0, 1), value=1.0), g.expand(q.shape[:3]).unsqueeze(-1)]
    y, last = of_each(recurrence, given, state, lengths)
    return y[..., :-1] / y[..., -1:] if normalize else y[..., :-1], last


def joined(state):
    """States with a column of sums as the kernels read them, padded by zeros."""
    *_, K, V = state.shape
    kv = pad(state[..., :-1], (0, block(V - 1) - V + 1, 0, block(K) - K)).flatten(2)
    return torch.cat([kv, pad(state[..., -1], (0, block(K) - K))], -1).float()


def parted(state, K, V):
    kv, k = state.split([block(K) * block(V), block(K)], -1)
    return torch.cat([kv.unflatten(-1, (block(K), -1))[..., :K, :V], k[..., :K, None]], -1)


SINGLE, HALF = DTYPES
GATES = [
    # gate, largest negative logarithm, chunk, segments, tokens of each sequence, normalize, dtype
    ("none", 0.0, 16, 2, (), True, HALF),
    ("none", 0.0, 16, 1, (1, 33, 14), False, SINGLE),
    ("head", 0.1, 32, 1, (), False, SINGLE),
    ("head", 0.5, 16, 3, (33, 15), True, HALF),
    pytest.param(("token", 0.3, 32, 2, (), True, SINGLE), id="sample"),
    ("token", 5.0, 16, 1, (1, 33, 14), False, HALF),
    ("token", 80.0, 16, 3, (), True, SINGLE),
]


@pytest.mark.parametrize("case", GATES)
def test_numbers_are_near_to_float64_with_gates_and_states(case):
    """Relative errors: 1e-5 in float32, 1 % in bfloat16; of gates in strong decay 1e-4.
    Gradients are differences: an error of a tenth of that of their terms is allowed too."""
    gate, strongest, chunk, segments, lengths, normalize, dtype = case
    B, T, H, K, V = 1, 48, 2, 24, 16
    N = len(lengths) or B
    q, k, v, dy = sample(B, T, H, K, V, dtype)
    seeded = torch.Generator().manual_seed(1)

    def uniform(*sizes):
        return torch.rand(*sizes, generator=seeded).to(DEVICE)

    decay = -strongest * uniform(*((H,) if gate == "head" else (B, T, H)))
    state = uniform(N, H, K, V + 1) - 0.5
    state[..., -1] += 0.5
    dstate = uniform(N, H, K, V + 1)
    if not normalize:  # the sum of features serves the division only
        dstate[..., -1] = 0
    shape, chosen = softplus(q, v, normalize=normalize, gate=gate), plan(chunk, segments)
    given: Any = {"initial": joined(state), "lengths": lengths}
    given["log_decay"] = None if gate == "none" else decay
    made = op.forward(pack(q, k, v), shape, chosen, keep=True, final=True, **given)
    given["dfinal"] = joined(dstate)
    dqkv, dgate, dinitial = op.backward(pack(q, k, v), dy, made, shape, chosen, **given)
    last, dinitial = parted(made.final, K, V), parted(dinitial, K, V)
    found = [made.y_BTHV, last, *unpack(dqkv, shape), dgate, dinitial]

    exact = [x.detach().double().requires_grad_() for x in (q, k, v, decay, state)]
    y, states = summed(*exact, normalize=normalize, lengths=lengths)
    slopes = [dy.double(), dstate.double()]
    true = [y, states, *torch.autograd.grad([y, states], exact, slopes)]
    if gate == "none":
        del found[5], true[5]
    if not normalize:
        for each in (found, true):
            each[1], each[-1] = each[1][..., :-1], each[-1][..., :-1]
    for i, (x, y) in enumerate(zip(found, true, strict=True)):
        near = 0.01 if dtype == HALF else 1e-4 if strongest > 1 else 1e-5
        terms = dy.double().norm().item() if i > 1 else 0.0
        assert distance(x, y) <= near * max(y.norm().item(), 0.1 * terms), i


@pytest.mark.parametrize(
    ("dtype", "tolerance", "normalize", "gated"),
    [(SINGLE, 1e-5, True, True), (SINGLE, 1e-5, False, False), (HALF, 2**-7, True, False)],
)
def test_same_numbers_one_token_at_a_time(dtype, tolerance, normalize, gated, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    q, k, v, _ = sample(1, 40, 2, 24, 16, dtype)
    shape = softplus(q, v, normalize=normalize, gate="token" if gated else "none")
    g = -torch.rand(1, 40, 2).to(DEVICE) if gated else None

    def read(n):
        gate, chosen = None if g is None else g[:, :n], plan(16)
        made = op.forward(pack(q, k, v)[:, :n], shape, chosen, log_decay=gate, final=True)
        state = parted(made.final, 24, 16)
        return made.y_BTHV, state[..., :-1].contiguous(), state[..., -1].contiguous()

    (whole, *last), (_, kv, k_sum) = read(40), read(37)
    if not gated:
        sums = op.state(pack(q, k, v)[:, :37], shape, plan(16, 2))
        torch.testing.assert_close(sums[0], kv)
        if normalize:
            torch.testing.assert_close(sums[1], k_sum)
    for t in range(37, 40):
        gate = None if g is None else g[:, t]
        y = decode.step(q[:, t], k[:, t], v[:, t], kv, k_sum, "softplus", normalize, gate)
        assert distance(y, whole[:, t]) <= tolerance * whole[:, t].double().norm().item()
    used = slice(1 + normalize)
    torch.testing.assert_close([kv, k_sum][used], last[used], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "rotate"),
    [("linear", unrotated), ("mamba2", unrotated),
     pytest.param("retention", Rotary(16), marks=pytest.mark.ci)],
)  # fmt: skip
def test_documents_of_a_row_are_computed_as_each_alone(name, rotate, monkeypatch):
    """Outputs and all gradients, within 1e-4 of the largest number."""
    if INTERPRETED:
        monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
        monkeypatch.setattr(gated_kernels, "_runs_gates", lambda device: True)
    # Without the kernels, documents would become rows of padded batches.
    monkeypatch.setattr(Documents, "each", None)
    torch.manual_seed(0)
    attend = attention.build(name, 32, 2, rotate, context=40).to(DEVICE)
    x_BTD = torch.randn(2, 40, 32, device=DEVICE, requires_grad=True)
    dy_BTD = torch.randn(x_BTD.shape, device=DEVICE)
    inputs = [x_BTD, *attend.parameters()]

    def outcome(y_BTD):
        return [y_BTD, *torch.autograd.grad(y_BTD, inputs, dy_BTD)]

    exact, rows = attend.double(), ((33, 1, 6), (32, 8))
    parts = [exact(x[None]) for n, x_TD in zip(rows, x_BTD.double(), strict=True)
             for x in x_TD.split(n)]  # fmt: skip
    expected = outcome(torch.cat(parts, 1).view(2, 40, 32).float())
    starts_BT = torch.zeros(2, 40, dtype=torch.bool)
    starts_BT[[0, 0, 1], [33, 34, 32]] = True
    found = outcome(attend.float().forward_documents(x_BTD, Documents(starts_BT.to(DEVICE))))
    for one, right in zip(found, expected, strict=True):
        assert (one - right).abs().max() <= 1e-4 * right.abs().max()
