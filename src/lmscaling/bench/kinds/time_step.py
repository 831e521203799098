"""Time a training step of one size at every context: forward, backward, optimizer."""

from collections.abc import Iterator

from pydantic.dataclasses import dataclass

from lmscaling.config.speed import Implementation, Planner, Sweep, point, sequences
from lmscaling.config.types import STRICT, Context, Distinct, Name
from lmscaling.records.timing import Outcome, Point


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeStep:
    """A training step of a complete model: forward, backward, optimizer."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Context]
    """Tokens of a sequence."""
    tokens: Context | None = None
    """Tokens of a step: sequences are as many as fit. One sequence if not given."""
    implementations: Distinct[Implementation]


SECTION = TimeStep


def sweeps(section: TimeStep, planner: Planner) -> Iterator[Sweep]:
    """One sweep for each size."""
    points = [
        point(implementation, context=context, batch=sequences(section.tokens or 1, context))
        for context in sorted(section.contexts)
        for implementation in section.implementations
    ]
    for size in section.sizes:
        yield planner.sweep(
            kind="time_step",
            name=size,
            tokens=section.tokens,
            cell=planner.cell(size),
            points=points,
        )


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Training steps of a point's model on random tokens."""
    from lmscaling.bench import training_step

    return training_step.measure(sweep, point)
