"""What the kernels of the gated delta rule compute, in Triton's interpreter or on a CUDA device.

Run by test_fused.py; see kernel_device.py.
"""

from typing import Any

import pytest
import torch
from attention_definitions import delta_sample, of_each, recurrence
from kernel_device import DEVICE, QUIET, poisoned

from lmscaling.kernels.delta_triton import op

FIXTURES = poisoned
pytestmark = QUIET


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-6), (torch.bfloat16, 0.01)])
def test_numbers_are_those_of_the_recurrence(dtype: torch.dtype, bound: float) -> None:
    """Results and gradients, relative to their norm, or absolute where that is below 1."""
    lengths = (33, 1, 6)
    inputs, slopes = delta_sample(lengths, 1, 20, 40, dtype)
    given = [x.to(DEVICE).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in given]
    q, k, v, g, beta, initial = given
    made = op.delta(q, k, v, beta.squeeze(-1), g.squeeze(-1), initial, list(lengths), 0.3)[:2]
    true = of_each(recurrence, [0.3 * exact[0], *exact[1:5]], exact[5], lengths)
    dy: list[Any] = [x.to(DEVICE) for x in slopes]
    found = [*made, *torch.autograd.grad(made, given, dy)]
    right = [*true, *torch.autograd.grad(true, exact, [x.double() for x in dy])]
    for x, y in zip(found, right, strict=True):
        assert (x.double() - y).norm() <= bound * y.norm().clamp(min=1.0)
