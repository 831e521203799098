"""Gates, states and sequences of the fused kernels; see fused_cases.py and kernel_device.py."""

from typing import Any

import pytest
import torch
from attention_definitions import of_each, recurrence
from fused_cases import DTYPES, pack, plan, softplus, unpack
from kernel_device import DEVICE, QUIET, distance, poisoned, sample
from torch import Tensor
from torch.nn.functional import pad

from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton import decode, launch
from lmscaling.kernels.chunked_triton.plan import block

FIXTURES = poisoned
pytestmark = QUIET


def summed(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, normalize: bool, lengths: Any = ()
) -> tuple[Tensor, Tensor]:
    """Token by token: y, and the states with the sums of keys as a last column, of softplus."""
    phi = feature_maps.find("softplus")
    given = [phi.of(q), phi.of(k), pad(v, (0, 1), value=1.0), g.expand(q.shape[:3]).unsqueeze(-1)]
    y, last = of_each(recurrence, given, state, lengths)
    return y[..., :-1] / y[..., -1:] if normalize else y[..., :-1], last


def joined(state: Tensor) -> Tensor:
    """States with a column of sums as the kernels read them, padded by zeros."""
    *_, K, V = state.shape
    kv = pad(state[..., :-1], (0, block(V - 1) - V + 1, 0, block(K) - K)).flatten(2)
    return torch.cat([kv, pad(state[..., -1], (0, block(K) - K))], -1).float()


def parted(state: Tensor, K: int, V: int) -> Tensor:
    """The inverse of ``joined``."""
    kv, k = state.split([block(K) * block(V), block(K)], -1)
    return torch.cat([kv.unflatten(-1, (block(K), -1))[..., :K, :V], k[..., :K, None]], -1)


SINGLE, HALF = DTYPES
GATES: list[tuple[str, float, int, int, tuple[int, ...], bool, torch.dtype]] = [
    # gate, largest negative logarithm, chunk, segments, tokens of each sequence, normalize, dtype
    ("none", 0.0, 16, 2, (), True, HALF),
    ("none", 0.0, 16, 1, (1, 33, 14), False, SINGLE),
    ("head", 0.1, 32, 1, (), False, SINGLE),
    ("head", 0.5, 16, 3, (33, 15), True, HALF),
    ("token", 0.3, 32, 2, (), True, SINGLE),
    ("token", 5.0, 16, 1, (1, 33, 14), False, HALF),
    ("token", 80.0, 16, 3, (), True, SINGLE),
]


@pytest.mark.parametrize("case", GATES, ids=str)
def test_numbers_are_near_to_float64_with_gates_and_states(
    case: tuple[str, float, int, int, tuple[int, ...], bool, torch.dtype],
) -> None:
    """Relative errors: 1e-5 in float32, 1 % in bfloat16; of gates in strong decay 1e-4.

    Gradients are differences: an error of a tenth of that of their terms is allowed too.
    """
    gate, strongest, chunk, segments, lengths, normalize, dtype = case
    B, T, H, K, V = 1, 48, 2, 24, 16
    N = len(lengths) or B
    q, k, v, dy = sample(B, T, H, K, V, dtype)
    seeded = torch.Generator().manual_seed(1)

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(*sizes, generator=seeded).to(DEVICE)

    decay = -strongest * uniform(*((H,) if gate == "head" else (B, T, H)))
    state = uniform(N, H, K, V + 1) - 0.5
    state[..., -1] += 0.5
    dstate = uniform(N, H, K, V + 1)
    if not normalize:  # the sum of features serves the division only
        dstate[..., -1] = 0
    shape, chosen = softplus(q, v, normalize=normalize, gate=gate), plan(chunk, segments, True)
    given: Any = {"initial": joined(state), "lengths": lengths}
    given["log_decay"] = None if gate == "none" else decay
    made = launch.forward(pack(q, k, v), shape, chosen, keep=True, final=True, **given)
    got = launch.backward(
        pack(q, k, v), dy, made, shape, chosen, dfinal=joined(dstate), **given
    )  # fmt: skip
    last, dinitial = parted(made.final, K, V), parted(got.dinitial, K, V)
    found = [made.y_BTHV, last, *unpack(got.dqkv_BTW, shape), got.dgate, dinitial]

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
def test_same_numbers_one_token_at_a_time(
    dtype: torch.dtype, tolerance: float, normalize: bool, gated: bool
) -> None:
    q, k, v, _ = sample(1, 40, 2, 24, 16, dtype)
    shape = softplus(q, v, normalize=normalize, gate="token" if gated else "none")
    g = -torch.rand(1, 40, 2).to(DEVICE) if gated else None

    def read(n: int) -> tuple[Tensor, Tensor, Tensor]:
        given = {"log_decay": None if g is None else g[:, :n], "final": True}
        made = launch.forward(pack(q, k, v)[:, :n], shape, plan(16, 1, gated), **given)
        state = parted(made.final, 24, 16)
        return made.y_BTHV, state[..., :-1].contiguous(), state[..., -1].contiguous()

    (whole, *last), (_, kv, k_sum) = read(40), read(37)
    state = kv, k_sum
    if not gated:
        sums = launch.state(pack(q, k, v)[:, :37], shape, plan(16, 2))
        torch.testing.assert_close(sums[0], kv)
        if normalize:
            torch.testing.assert_close(sums[1], k_sum)
    for t in range(37, 40):
        gate = None if g is None else g[:, t]
        y = decode.step(q[:, t], k[:, t], v[:, t], kv, k_sum, "softplus", normalize, gate)
        assert distance(y, whole[:, t]) <= tolerance * whole[:, t].double().norm().item()
    for x, y in list(zip(state, last, strict=True))[: 1 + normalize]:
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_same_bits_of_a_sequence_among_others_as_alone() -> None:
    q, k, v, dy = sample(1, 60, 1, 16, 16, torch.bfloat16)
    shape, chosen = softplus(q, v, gate="token"), plan(16, one_pass=True)
    decay = -torch.rand(1, 60, 1).to(DEVICE)

    def parts(first: int, last: int, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        rows, g = pack(q, k, v)[:, first:last], decay[:, first:last]
        options = {"log_decay": g, "lengths": lengths}
        made = launch.forward(rows, shape, chosen, keep=True, **options)
        gradient = launch.backward(rows, dy[:, first:last], made, shape, chosen, **options)
        return made.y_BTHV, gradient.dqkv_BTW, gradient.dgate

    together, alone = parts(0, 60, (21, 39)), parts(21, 60, ())
    for x, y in zip(together, alone, strict=True):
        assert torch.equal(x[:, 21:], y)
