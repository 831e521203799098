"""What the kernels over all pairs of tokens and that of the loss compute; run by test_fused.py."""

# The interpreter's classes are imported only where it runs.
# pyright: reportPossiblyUnboundVariable=false

import pytest
import torch
import torch.nn.functional as F
from kernel_device import (
    DEVICE,
    INTERPRETED,
    assert_as_near_as_plain_pytorch,
    assert_near,
    outcome,
    quadratic,
    sample,
)

from lmscaling.bench.checks import exactness
from lmscaling.kernels import cross_entropy, feature_maps
from lmscaling.kernels import cross_entropy_triton as loss
from lmscaling.kernels.tiled_triton import op

TILES_OF_DEVICE = op.FORWARD, op.QUERIES, op.KEYS
SMALL = {64: (32, 16, 1, 1)}, {64: (32, 16, 1, 1)}, {64: (16, 32, 1, 1)}
"""Tiles so small that 63 tokens have whole blocks, split diagonals and a ragged end."""
if INTERPRETED:
    from triton.runtime.interpreter import InterpreterBuilder

    op.FORWARD, op.QUERIES, op.KEYS = SMALL
SINGLE, HALF = torch.float32, torch.bfloat16


@pytest.fixture
def tiles_of_device(monkeypatch):
    for name, tiles in zip(("FORWARD", "QUERIES", "KEYS"), TILES_OF_DEVICE, strict=True):
        monkeypatch.setattr(op, name, tiles)


SIZES = ((1, 1, 1, 16, 16), (1, 17, 3, 24, 24), (1, 63, 1, 64, 64), (2, 40, 1, 24, 16))
CASES = [
    pytest.param(
        SIZES[(i + normalize) % 4], (HALF, SINGLE)[(i + i // 2 + normalize) % 2], phi, normalize,
        id=f"{phi}-{normalize}", marks=() if normalize == (i < 2) else pytest.mark.ci,
    )
    for i, phi in enumerate(feature_maps.FEATURE_MAPS) for normalize in (True, False)
]  # fmt: skip


def check(tensors, *form):
    free = min(x.numel() for x in tensors) ** 0.5
    found = outcome(op.attend, tensors, *form)
    assert_as_near_as_plain_pytorch(found, tensors, *form, free=free)


@pytest.mark.parametrize(("size", "dtype", "phi", "normalize"), CASES)
def test_numbers_are_as_near_to_float64_as_those_of_plain_pytorch(size, dtype, phi, normalize):
    q, k, v, dy = sample(*size, dtype=dtype)
    if (phi, normalize) == ("identity", True):  # a sum of products of any sign cannot divide
        q, k = q.abs(), k.abs()
    check((q, k, v, dy), phi, normalize)


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_a_sample_has_a_ragged_end(dtype):
    check(sample(1, 63, 1, 24, 24, dtype), "softplus", True)


def test_no_bit_changes_with_what_comes_later():
    q, k, v, dy = given = sample(1, 60, 1, 16, 16, HALF)

    def later(x):
        return x.index_fill(1, torch.tensor([33], device=DEVICE), 100.0)

    before = outcome(op.attend, given, "relu", True)
    y = op.attend(later(q), later(k), later(v), "relu", True)
    assert torch.equal(before[0][:, :33], y[:, :33])
    assert not torch.equal(before[0][:, 33:], y[:, 33:])
    after = outcome(op.attend, (q, k, v, later(dy)), "relu", True)
    for a, b in zip(before[2:], after[2:], strict=True):  # it reaches no later key or value
        assert torch.equal(a[:, 34:], b[:, 34:])


@pytest.mark.ci
def test_errors_stay_small_at_400_tokens_whatever_the_mean_of_the_values(tiles_of_device):
    q, k, v, dy = sample(1, 400, 1, 16, 16, HALF)
    given = q, k, v + 3, dy
    exact = outcome(quadratic, [x.double() for x in given], "softplus", True)
    assert_near(outcome(op.attend, given, "softplus", True), exact, 0.01)


@pytest.mark.ci
@pytest.mark.parametrize("dtype", [HALF] if INTERPRETED else [SINGLE, HALF])
@pytest.mark.parametrize("width", [64] if INTERPRETED else [16, 24, 64, 128])
def test_tiles_of_a_device_pass_the_check_before_a_measurement(width, dtype, tiles_of_device):
    """Two whole blocks and a part of one in the interpreter, of one head."""
    shape = (1, 200, 1, width) if INTERPRETED else (2, 200, 3, width)
    given = "linear", op.attend, torch.device(DEVICE), dtype, shape
    assert exactness.first_fault(exactness.every(*given)) is None


@pytest.mark.ci
@pytest.mark.usefixtures("unpoisoned")
def test_operators_are_what_pytorch_asks_of_them():
    q, k, v, dy = sample(1, 20, 1, 16, 16)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(op.forward, (*leaves, "softplus", True))
    _, y32, inverse = op.forward(q, k, v, "softplus", True)
    torch.library.opcheck(op.backward, (q, k, v, "softplus", dy, y32, inverse))
    whole = torch.compile(op.attend, fullgraph=True, backend="aot_eager")
    found = [outcome(f, (q, k, v, dy), "softplus", True) for f in (whole, op.attend)]
    assert all(map(torch.equal, *found))


# The kernel of the loss
def logits_of(N, V, dtype, spread=3.0):
    """Logits and targets; the first target is the first entry and the last one the last."""
    seeded = torch.Generator().manual_seed(N + V)
    logits_NV = (spread * torch.randn(N, V, generator=seeded)).to(DEVICE, dtype)
    y_N = torch.randint(0, V, (N,), generator=seeded)
    y_N[0], y_N[-1] = 0, V - 1
    return logits_NV, y_N.to(DEVICE)


def exact(logits_NV, y_N):
    loss_N = F.cross_entropy(logits_NV.double(), y_N, reduction="none")
    p_NV = logits_NV.double().softmax(1)
    return loss_N, (p_NV - F.one_hot(y_N, logits_NV.shape[1])) / len(y_N)


@pytest.mark.parametrize(
    ("V", "spread", "dtype"),
    [(1, 3.0, SINGLE), (7, 1e4, HALF), pytest.param(320, 3.0, HALF, id="sample"),
     (4096, 1e4, SINGLE), (4097, 3.0, HALF),
     pytest.param(50304, 3.0, SINGLE, marks=pytest.mark.ci)],
)  # fmt: skip
def test_kernel_gives_the_loss_and_gradient_of_float64(V, spread, dtype):
    logits, y = logits_of(3, V, dtype, spread)
    expected, gradient = exact(logits, y)
    found = loss.cross_entropy(logits, y, 1 / 3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(logits.double(), gradient, rtol=unit + 1e-5, atol=1e-7)


def test_kernel_gives_the_gradients_of_a_head(monkeypatch):
    """Under autocast to bfloat16, by parts, those of logits and gradients rounded alike."""
    if INTERPRETED:
        monkeypatch.setattr(cross_entropy, "on_triton_device", lambda x: True)
    seeded = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, 16, generator=seeded).to(DEVICE).requires_grad_() for n in (40, 200)]
    y = torch.randint(0, 200, (40,), generator=seeded).to(DEVICE)
    with torch.autocast(DEVICE, HALF):
        value = cross_entropy.mean(leaves[0], leaves[1], y, 13)
    h, weight = (x.detach().to(HALF) for x in leaves)
    losses, gradient = exact(h @ weight.T, y)
    h, weight, gradient = h.double(), weight.double(), gradient.to(HALF).double()
    expected = [losses.mean(), gradient @ weight, gradient.T @ h]
    assert_near([value, *torch.autograd.grad(value, leaves)], expected, 2**-9)


@pytest.mark.skipif(not INTERPRETED, reason="only the interpreter can count")
@pytest.mark.parametrize(("dtype", "scale"), [(SINGLE, 1.0), (HALF, None)])
def test_kernel_reads_a_logit_twice_and_writes_it_once(scale, dtype, monkeypatch):
    """And leaves the logits of a loss without gradient."""
    moved = {"load": 0, "store": 0}

    def count(name, mask_at):
        method = getattr(InterpreterBuilder, f"create_masked_{name}")

        def counted(self, *given):
            moved[name] += int(given[mask_at].data.sum())
            return method(self, *given)

        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", counted)

    logits, y = logits_of(2, 5000, dtype)
    before = logits.clone()
    count("load", 1)
    count("store", 2)
    found = loss.cross_entropy(logits, y, scale)
    reads, writes = (2, 1) if scale else (1, 0)
    n = logits.numel()  # besides, a target and its logit are read, and a loss is written
    assert moved == {"load": reads * n + 2 * len(y), "store": writes * n + len(y)}
    assert torch.equal(logits, before) == (scale is None)
    torch.testing.assert_close(found.double(), exact(before, y)[0], rtol=1e-6, atol=1e-6)
