"""Time a training step of many sequences: the share of its peak that a device reaches."""

from collections.abc import Iterator

from pydantic.dataclasses import dataclass

from lmscaling.bench.kinds.time_step import TimeStep, measure
from lmscaling.config.speed import Planner, Sweep, point, sequences
from lmscaling.config.types import STRICT, Context

__all__ = ["SECTION", "measure", "sweeps"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeThroughput(TimeStep):
    """A training step of as many sequences as fill a device: the share of its peak it reaches."""

    tokens: Context
    """Tokens at once: sequences are as many as fit."""


SECTION = TimeThroughput


def sweeps(section: TimeThroughput, planner: Planner) -> Iterator[Sweep]:
    """One sweep for each size."""
    points = [
        point(implementation, context=context, batch=sequences(section.tokens, context))
        for context in sorted(section.contexts)
        for implementation in section.implementations
    ]
    for size in section.sizes:
        cell = planner.cell(size)
        yield planner.sweep(kind="time_throughput", name=size, cell=cell, points=points)
