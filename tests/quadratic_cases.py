"""What the kernels over all pairs of tokens compute, in Triton's interpreter or on a CUDA device.

Run by test_fused.py; see kernel_device.py.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from kernel_device import (
    DEVICE,
    INTERPRETED,
    QUIET,
    assert_as_near_as_plain_pytorch,
    distance,
    poisoned,
    quadratic,
    sample,
    unpoisoned,
)
from torch import Tensor

from lmscaling.bench.checks import exactness
from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton import launch, op

FIXTURES = poisoned, unpoisoned
pytestmark = QUIET

TILES_OF_DEVICE = launch.FORWARD, launch.QUERIES, launch.KEYS
SMALL = {64: (32, 16, 1, 1)}, {64: (32, 16, 1, 1)}, {64: (16, 32, 1, 1)}
"""Tiles so small that 63 tokens have whole blocks, split diagonals and a ragged end."""
if INTERPRETED:
    launch.FORWARD, launch.QUERIES, launch.KEYS = SMALL
SINGLE, HALF = torch.float32, torch.bfloat16


def outcome(
    attend: Callable[..., Tensor], tensors: Sequence[Tensor], *form: object
) -> list[Tensor]:
    """y, dq, dk, dv."""
    *leaves, dy = (x.detach().requires_grad_() for x in tensors)
    y = attend(*leaves, *form)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def check(tensors: Sequence[Tensor], *form: object) -> None:
    found = outcome(op.attend, tensors, *form)
    free = min(x.numel() for x in tensors) ** 0.5
    assert_as_near_as_plain_pytorch(found, tensors, *form, free=free)


SIZES = ((1, 1, 1, 16, 16), (1, 17, 3, 24, 24), (1, 63, 1, 64, 64), (2, 40, 1, 24, 16))
CASES = [
    pytest.param(
        SIZES[(i + normalize) % 4], (HALF, SINGLE)[(i + i // 2 + normalize) % 2], phi, normalize,
        id=f"{phi}-{normalize}", marks=() if normalize == (i < 2) else pytest.mark.ci,
    )
    for i, phi in enumerate(feature_maps.FEATURE_MAPS)
    for normalize in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("size", "dtype", "phi", "normalize"), CASES)
def test_numbers_are_as_near_to_float64_as_those_of_plain_pytorch(
    size: tuple[int, int, int, int, int], dtype: torch.dtype, phi: str, normalize: bool
) -> None:
    q, k, v, dy = sample(*size, dtype)
    if (phi, normalize) == ("identity", True):  # a sum of products of any sign cannot divide
        q, k = q.abs(), k.abs()
    check((q, k, v, dy), phi, normalize)


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_a_sample_for_tritons_that_run_no_more(dtype: torch.dtype) -> None:
    """A ragged end, and a window of grouped queries, whose tiles outside it are not read."""
    check(sample(1, 63, 1, 24, 24, dtype), "softplus", True)
    q, k, v, dy = sample(1, 63, 2, 16, 16, dtype)
    k, v = k[:, :, :1], v[:, :, :1]
    check((q, k, v, dy), "relu", False, 17)
    if dtype == SINGLE or not INTERPRETED:
        return  # whose tiles are larger
    v[:, :16], dy[:, 48:] = torch.nan, torch.nan
    y, dq, dk, dv = outcome(op.attend, (q, k, v, dy), "relu", False, 15)
    for x in (y[:, 32:], dq[:, 32:48], dk[:, 16:32], dv[:, :32]):
        assert x.isfinite().all()


def test_no_bit_changes_with_what_comes_later() -> None:
    tensors = sample(1, 60, 1, 16, 16, HALF)
    before = outcome(op.attend, tensors, "relu", True)
    changed = [x.clone() for x in tensors]
    for x in changed[:3]:
        x[:, 33] = 100.0
    after = op.attend(changed[0], changed[1], changed[2], "relu", True)
    assert torch.equal(before[0][:, :33], after[:, :33])
    assert not torch.equal(before[0][:, 33:], after[:, 33:])
    changed = [*tensors[:3], changed[3]]
    changed[3][:, 33] = 100.0  # its gradient reaches no later key or value
    for a, b in zip(before[2:], outcome(op.attend, changed, "relu", True)[2:], strict=True):
        assert torch.equal(a[:, 34:], b[:, 34:])


@pytest.mark.ci
def test_errors_stay_small_at_400_tokens_whatever_the_mean_of_the_values() -> None:
    q, k, v, dy = sample(1, 400, 1, 16, 16, HALF)
    v = v + 3
    exact = quadratic([x.double() for x in (q, k, v, dy)], "softplus", True)
    for x, true in zip(outcome(op.attend, (q, k, v, dy), "softplus", True), exact, strict=True):
        assert distance(x, true) <= 0.01 * true.norm().item()


@pytest.mark.ci
@pytest.mark.parametrize("dtype", [HALF] if INTERPRETED else [SINGLE, HALF])
@pytest.mark.parametrize("width", [64] if INTERPRETED else [16, 24, 64, 128])
def test_tiles_of_a_device_pass_the_check_before_a_measurement(
    width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, tiles in zip(("FORWARD", "QUERIES", "KEYS"), TILES_OF_DEVICE, strict=True):
        monkeypatch.setattr(launch, name, tiles)
    assert exactness.fault("linear", op.attend, torch.device(DEVICE), dtype, width) is None


@pytest.mark.ci
@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("normalize", [True])
def test_operators_are_what_pytorch_asks_of_them(normalize: bool) -> None:
    q, k, v, dy = sample(1, 20, 1, 16, 16)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(op.forward, (*leaves, "softplus", normalize))
    _, y32, inverse = op.forward(q, k, v, "softplus", normalize)
    torch.library.opcheck(op.backward, (q, k, v, dy, y32, inverse, "softplus"))
    whole = torch.compile(op.attend, fullgraph=True, backend="aot_eager")
    found = [outcome(f, (q, k, v, dy), "softplus", normalize) for f in (whole, op.attend)]
    assert all(map(torch.equal, *found))
