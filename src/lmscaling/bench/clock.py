"""How long a call takes on a device, with or without the cost of launching it.

``timed`` is without: on CUDA a call is captured in a graph and replayed between two events, several
times in one graph if it is short; a call that cannot be captured is launched. ``launched`` is for
calls that a program launches piece by piece, such as a training step. Caches stay as the previous
call left them, as in a model, where a projection has just written what attention reads.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from lmscaling.bench.memory import Memory
from lmscaling.config.speed import Sweep
from lmscaling.records.timing import Outcome, Point

WARM_UP = 3
"""Calls that are not counted in addition to the first, which compiles, tunes and loads, and the
second, whose time decides how many there can be."""
SHORT_SECONDS = 1e-3
"""Calls are repeated within one measurement up to this: an event is good to about a microsecond."""
MOST_CALLS = 64
RESOLUTION_SECONDS = 0.5e-6
"""Of events; CUDA runtime API, cudaEventElapsedTime."""
LONG_SECONDS = 0.05
"""A call this long hides its launches, and its graph would double the memory that it needs."""
LEAST_REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """Measurements of one call."""

    seconds: list[float]
    """Of one call each, sorted."""
    warm_up: int
    """Calls before these."""
    captured: bool
    """Whether launches were replayed from a CUDA graph."""
    peak_memory_bytes: int | None
    """The peak of the calls and of what ``memory`` watched before them."""
    wall_over_cpu: float | None = None
    """Of the counted calls on one thread of a CPU."""

    def outcome(self, point: Point, dtype: torch.dtype, **more: Any) -> Outcome:
        """A point with these times; ``more`` are columns that only its kind has."""
        names = ("least", "lower", "median", "upper", "most")
        quantiles = np.quantile(self.seconds, (0, 0.25, 0.5, 0.75, 1)).tolist()
        values = asdict(point) | {
            "dtype": str(dtype).removeprefix("torch."),
            "captured": self.captured,
            "warm_up": self.warm_up,
            "repeats": len(self.seconds),
            **{f"{name}_seconds": x for name, x in zip(names, quantiles, strict=True)},
            "mean_seconds": statistics.fmean(self.seconds),
            "sd_seconds": statistics.stdev(self.seconds),
            "peak_memory_bytes": self.peak_memory_bytes,
            "wall_over_cpu": self.wall_over_cpu,
        }
        return Outcome(**values | more)


def device_of(sweep: Sweep) -> tuple[torch.device, torch.dtype]:
    """Where a sweep is measured, and the dtype of its products: bfloat16 on a GPU, else float32.

    A CPU is measured on one thread: threads that wait for each other take many times as long where
    another program has a core.
    """
    if sweep.gpus:
        return torch.device("cuda"), torch.bfloat16
    torch.set_num_threads(1)
    return torch.device("cpu"), torch.float32


def timed(call: Callable[[], object], memory: Memory, budget_seconds: float, most: int) -> Timing:
    """Measure for about ``budget_seconds``, at most ``most`` times and at least three times.

    Args:
        call: What is measured.
        memory: Watches the device on which it runs.
        budget_seconds: About how long.
        most: Most measurements.
    """
    if memory.device.type == "cuda":
        return _on_cuda(call, memory, budget_seconds, most)
    return launched(call, memory, budget_seconds, most)


def launched(
    call: Callable[[], object],
    memory: Memory,
    budget_seconds: float,
    most: int,
    least: int = LEAST_REPEATS,
    on_wall: bool = False,
) -> Timing:
    """Measure like ``timed``, ``least`` times at least, with a wait for the device before and after
    each call. One thread of a CPU is measured in CPU seconds, which other programs change least,
    unless ``on_wall``."""
    counts_cpu = memory.device.type == "cpu" and torch.get_num_threads() == 1 and not on_wall
    clock = time.process_time if counts_cpu else time.perf_counter
    call()
    second = _waited(call, memory.device, clock)
    repeats = max(least, _repeats(second, budget_seconds, most))
    begun = time.perf_counter()
    seconds = sorted(_waited(call, memory.device, clock) for _ in range(repeats))
    ratio = (time.perf_counter() - begun) / sum(seconds) if counts_cpu else None
    return Timing(seconds, 2, False, memory.peak_bytes(), ratio)


def _waited(call: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = clock()
    call()
    wait()
    return clock() - begun


def _repeats(seconds: float, budget_seconds: float, most: int) -> int:
    return min(most, max(LEAST_REPEATS, int(budget_seconds / max(seconds, 1e-9))))


def _on_cuda(
    call: Callable[[], object], memory: Memory, budget_seconds: float, most: int
) -> Timing:
    torch.cuda.synchronize()
    # A graph is captured on a stream of its own; what is tuned and allocated first must be too.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        warm_up, estimate = 2, _between_events(call)
        if estimate < LONG_SECONDS:
            for _ in range(WARM_UP):
                call()
            warm_up, estimate = warm_up + WARM_UP + 1, _between_events(call)
    torch.cuda.synchronize()
    peak = memory.peak_bytes()  # before a graph takes as much again
    calls = min(MOST_CALLS, math.ceil(SHORT_SECONDS / estimate))
    graph = _captured(call, calls) if estimate < LONG_SECONDS else None
    run = graph.replay if graph else lambda: [call() for _ in range(calls)]
    run()
    repeats = _repeats(estimate * calls, budget_seconds, most)
    seconds = sorted(_between_events(run) / calls for _ in range(repeats))
    return Timing(seconds, warm_up + calls, graph is not None, peak)


def _between_events(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return max(begin.elapsed_time(end) / 1e3, RESOLUTION_SECONDS)


def _captured(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph | None:
    """The calls as a graph; None if one of them cannot be captured, or memory runs out."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph
