"""One attention alone, without its projections: a pass forward, or forward and backward.

Linear implementations run with softplus and normalised; inputs are views of one packed projection,
and their gradients go back into one, as in a model.

Legend: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.bench import device as place
from lmscaling.bench.checks.exactness import Attend
from lmscaling.bench.clock import timed
from lmscaling.bench.memory import Memory
from lmscaling.bench.result import Outcome
from lmscaling.config.sweeps import Point, Sweep

PASSES = ("forward", "forward+backward")


def measure(sweep: Sweep, point: Point) -> Outcome:
    """The passes of one implementation on random numbers.

    Raises:
        UserError: The implementation has no file.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    assert sweep.layer
    attend = kernels.load(point.attention, point.implementation)
    device, dtype = place.of(sweep)
    memory = Memory(device)
    shape = (point.batch, point.context, sweep.layer.n_head, sweep.layer.d_head)
    passes = call(attend, point.attention, point.passes, shape, dtype, device)
    return Outcome.of(timed(passes, memory, sweep.point_seconds, sweep.repeats), dtype)


def call(
    attend: Attend,
    kind: str,
    passes: str,
    shape_BTHK: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Callable[[], object]:
    """What is to be timed: ``passes`` of an implementation of a kind, on random numbers."""
    options = () if kind == "softmax" else ("softplus", True)
    B, T, H, K = shape_BTHK
    packed = torch.randn(B, T, 3, H, K, device=device, dtype=dtype)
    if passes == "forward":
        return partial(attend, *packed.unbind(2), *options)
    dy = torch.randn_like(packed[:, :, 0])
    packed.requires_grad_()

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(*packed.unbind(2), *options), packed, dy)

    return both
