"""Time a large copy and a large product: the bandwidth and the FLOP/s that a device reaches."""

from collections.abc import Iterator
from functools import partial

from pydantic.dataclasses import dataclass

from lmscaling.config.speed import Planner, Sweep
from lmscaling.config.types import STRICT, Bytes, Width
from lmscaling.records.timing import Outcome, Point


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeCeiling:
    """What a device can do at best; views compare the times of layers with it."""

    copy_bytes: Bytes
    """Bytes that are copied: as many are read as are written."""
    matmul_width: Width
    """Rows and columns of both factors of a product."""


SECTION = TimeCeiling


def sweeps(section: TimeCeiling, planner: Planner) -> Iterator[Sweep]:
    """One sweep of two points, whose context is their size."""
    sizes = {"copy": section.copy_bytes, "matmul": section.matmul_width}
    points = [Point(attention=name, context=size) for name, size in sizes.items()]
    yield planner.sweep(kind="time_ceiling", name="device", points=points)


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Repeat the copy, or the product in the dtype of the speed study."""
    import torch

    from lmscaling.bench.clock import device_of, timed
    from lmscaling.bench.memory import Memory

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
