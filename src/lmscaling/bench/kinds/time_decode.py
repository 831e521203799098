"""Time the sampling of one token after every context."""

from collections.abc import Iterator

from pydantic.dataclasses import dataclass

from lmscaling.config.speed import Implementation, Planner, Sweep, point
from lmscaling.config.types import STRICT, Context, Distinct, Name, Positive
from lmscaling.records.timing import Outcome, Point


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeDecode:
    """Sampling one token after so many others: a cache of keys and values, or a state."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Context]
    """Tokens before the one that is sampled."""
    attentions: Distinct[Implementation]
    """Files in ``attention/``."""
    batches: Distinct[Positive]
    """Sequences that are sampled at once."""


SECTION = TimeDecode


def sweeps(section: TimeDecode, planner: Planner) -> Iterator[Sweep]:
    """One sweep for each size; each batch is a series of its own."""
    points = [
        point(attention, context=context, batch=batch)
        for context in sorted(section.contexts)
        for batch in section.batches
        for attention in section.attentions
    ]
    for size in section.sizes:
        yield planner.sweep(kind="time_decode", name=size, cell=planner.cell(size), points=points)


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Sampling steps of a point's model."""
    from lmscaling.bench import decode

    return decode.measure(sweep, point)
