"""A large copy and a large product: the bandwidth and the FLOP/s that a device reaches."""

from functools import partial

import torch

from lmscaling.bench.clock import device_of, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import Sweep
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Repeat the copy, or the product in the dtype of the speed study."""
    device, dtype = device_of(sweep)
    memory = Memory(device)
    if point.attention == "copy":
        source = torch.ones(point.context, dtype=torch.uint8, device=device)
        call = partial(torch.empty_like(source).copy_, source)
    else:
        shape = (point.context, point.context)
        a, b, c = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
        call = partial(torch.mm, a, b, out=c)
    return timed(call, memory, sweep.target_seconds, sweep.repeats).outcome(point, dtype)
