"""What cases of kernels share: Triton's interpreter or, without it, a CUDA device.

Test files run the cases in processes of their own, since the interpreter must be chosen before
triton is imported.
"""

import os
from collections.abc import Iterator, Sequence

import pytest
import torch
from attention_definitions import linear_product
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    import interpreter  # noqa: F401  # mends bfloat16 and products

QUIET = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
"""Rows behind the last token are computed and not written; there a sum of weights can be zero."""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Empty tensors hold NaN, so that what is not written is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def unpoisoned(poisoned: None) -> None:
    """PyTorch's own checks compare what empty tensors hold."""
    torch.use_deterministic_algorithms(False)


def sample(
    B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the gradient of y."""
    seeded = torch.Generator().manual_seed(B + T + H + K + V)

    def normal(width: int) -> Tensor:
        return torch.randn(B, T, H, width, generator=seeded).to(DEVICE, dtype)

    return normal(K), normal(K), normal(V), normal(V)


def quadratic(
    tensors: Sequence[Tensor], feature_map: str, normalize: bool, window: int = 0
) -> list[Tensor]:
    """y, dq, dk, dv from all pairs of tokens, by autograd, in the dtype of the arguments."""
    *leaves, dy = (x.detach().requires_grad_() for x in tensors)
    q, k, v = leaves
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    y_BTHV = linear_product(q, k, v, feature_map, normalize, window)
    return [y_BTHV.detach(), *torch.autograd.grad(y_BTHV, leaves, dy)]


def distance(x: Tensor, y: Tensor) -> float:
    return torch.linalg.vector_norm(x.double() - y.double()).item()


def assert_as_near_as_plain_pytorch(
    found: Sequence[Tensor], tensors: Sequence[Tensor], *form: object, free: float
) -> None:
    """At most twice as far from float64 as all pairs of tokens in the dtype of the arguments.

    One unit of rounding is added, of the result or, where that is larger, of ``free``.
    """
    dtype = tensors[0].dtype
    exact = quadratic([x.double() for x in tensors], *form)  # pyright: ignore[reportArgumentType]
    plain = quadratic(tensors, *form)  # pyright: ignore[reportArgumentType]
    unit = torch.finfo(dtype).eps / 2
    for name, x, true, yardstick in zip(("y", "dq", "dk", "dv"), found, exact, plain, strict=True):
        allowed = 2 * distance(yardstick, true) + unit * max(true.norm().item(), free)
        assert x.dtype == dtype, name
        assert distance(x, true) <= allowed, name
