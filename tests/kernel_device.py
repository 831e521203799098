"""What cases of kernels share: Triton's interpreter or, without it, a CUDA device. It is chosen
before triton is imported, so test_fused.py runs the cases in a process with this plugin of pytest.
"""

import os

import pytest
import torch
from attention_definitions import linear_product

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    import interpreter  # noqa: F401  # mends bfloat16 and products


def pytest_configure(config):
    """Rows behind the last token are computed and not written; there a sum can be zero."""
    config.addinivalue_line("filterwarnings", "ignore:.* encountered in:RuntimeWarning")


@pytest.fixture(autouse=True)
def poisoned():
    """Empty tensors hold NaN, so that reading what nobody has written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def unpoisoned(poisoned):
    """PyTorch's own checks compare what empty tensors hold."""
    torch.use_deterministic_algorithms(False)


def sample(B, T, H, K, V, dtype=torch.float32):
    """q, k, v and the gradient of y."""
    seeded = torch.Generator().manual_seed(B + T + H + K + V)
    made = (torch.randn(B, T, H, width, generator=seeded) for width in (K, K, V, V))
    q, k, v, dy = (x.to(DEVICE, dtype) for x in made)
    return q, k, v, dy


def outcome(attend, tensors, *form):
    *leaves, dy = (x.detach().requires_grad_() for x in tensors)
    y = attend(*leaves, *form)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def quadratic(q, k, v, *form):
    """y from all pairs of tokens, in the dtype of the arguments."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    return linear_product(q, k, v, *form)


def distance(x, y):
    return torch.linalg.vector_norm(x.double() - y.double()).item()


def assert_as_near_as_plain_pytorch(found, tensors, *form, free):
    """At most twice as far from float64 as all pairs of tokens in the dtype of the arguments.
    One unit of rounding is added, of the result or, where that is larger, of ``free``."""
    dtype = tensors[0].dtype
    exact, plain = (outcome(quadratic, [x.to(t) for x in tensors], *form)
                    for t in (torch.float64, dtype))  # fmt: skip
    unit = torch.finfo(dtype).eps / 2
    for name, x, true, yardstick in zip(("y", "dq", "dk", "dv"), found, exact, plain, strict=True):
        allowed = 2 * distance(yardstick, true) + unit * max(true.norm().item(), free)
        assert x.dtype == dtype, name
        assert distance(x, true) <= allowed, name


def assert_near(found, exact, bound):
    for x, true in zip(found, exact, strict=True):
        assert distance(x, true) <= bound * true.double().norm().item()
