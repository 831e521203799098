"""What the kernels over all pairs of tokens compute; run by test_fused.py, see kernel_device.py."""

import pytest
import torch
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
from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton import launch, op

TILES_OF_DEVICE = launch.FORWARD, launch.QUERIES, launch.KEYS
SMALL = {64: (32, 16, 1, 1)}, {64: (32, 16, 1, 1)}, {64: (16, 32, 1, 1)}
"""Tiles so small that 63 tokens have whole blocks, split diagonals and a ragged end."""
if INTERPRETED:
    launch.FORWARD, launch.QUERIES, launch.KEYS = SMALL
SINGLE, HALF = torch.float32, torch.bfloat16


@pytest.fixture
def tiles_of_device(monkeypatch):
    for name, tiles in zip(("FORWARD", "QUERIES", "KEYS"), TILES_OF_DEVICE, strict=True):
        monkeypatch.setattr(launch, name, tiles)


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
def test_a_sample_has_a_ragged_end_and_a_window_outside_which_no_tile_is_read(dtype):
    check(sample(1, 63, 1, 24, 24, dtype), "softplus", True)
    q, k, v, dy = sample(1, 63, 2, 16, 16, dtype)
    k, v = k[:, :, :1], v[:, :, :1]  # grouped queries
    check((q, k, v, dy), "relu", False, 17)
    if dtype == SINGLE or not INTERPRETED:
        return  # whose tiles are larger
    v[:, :16], dy[:, 48:] = torch.nan, torch.nan
    y, dq, dk, dv = outcome(op.attend, (q, k, v, dy), "relu", False, 15)
    for x in (y[:, 32:], dq[:, 32:48], dk[:, 16:32], dv[:, :32]):
        assert x.isfinite().all()


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
    torch.library.opcheck(op.backward, (q, k, v, dy, y32, inverse, "softplus"))
    whole = torch.compile(op.attend, fullgraph=True, backend="aot_eager")
    found = [outcome(f, (q, k, v, dy), "softplus", True) for f in (whole, op.attend)]
    assert all(map(torch.equal, *found))
