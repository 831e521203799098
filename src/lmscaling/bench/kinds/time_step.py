"""Time a training step of one size at every context: forward, backward, optimizer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.speed import Chunk, Implementation, Planner, Sweep, point, sequences
from lmscaling.config.types import STRICT, Context, Distinct, Name, Vocabulary
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
    chunks: Distinct[Chunk] | None = None
    """Tokens per chunk: implementations that take one are timed at each, and the fastest of each
    context counts. On a GPU the fused kernels, ``chunked``, have chunks of their own."""
    vocab_size: Vocabulary | None = None
    """Tokens of the vocabulary; those of the study's tokenizer if not given."""

    def __post_init__(self) -> None:
        if self.chunks and not any(map(registry.takes_chunk, self.implementations)):
            raise ValueError("no implementation here takes chunks; leave chunks out")


def _check_sizes(sections: list[TimeStep]) -> list[TimeStep]:
    sizes = [size for section in sections for size in section.sizes]
    for size in sizes:
        if sizes.count(size) > 1:
            raise ValueError(f"size {size!r} is named twice; name it in one section")
    return sections


SECTION = Annotated[list[TimeStep], AfterValidator(_check_sizes)]


def sweeps(sections: list[TimeStep], planner: Planner) -> Iterator[Sweep]:
    """One sweep for each size."""
    for section in sections:
        points = [
            point(way, context=context, batch=sequences(section.tokens or 1, context), chunk=chunk)
            for context in sorted(section.contexts)
            for way in section.implementations
            for chunk in _chunks(section, way, context, planner)
        ]
        for size in section.sizes:
            cell = planner.cell(size)
            if section.vocab_size:
                cell = replace(cell, model=replace(cell.model, vocab_size=section.vocab_size))
            named = {"kind": "time_step", "name": size, "tokens": section.tokens}
            yield planner.sweep(**named, cell=cell, points=points)


def _chunks(section: TimeStep, way: str, context: int, planner: Planner) -> list[int] | list[None]:
    """The chunk sizes that an implementation is timed at; None stands for its own."""
    is_fused = planner.values["gpus"] and way.endswith("/chunked")
    takes_chunk = registry.takes_chunk(way) and not is_fused
    fitting = [c for c in section.chunks or () if takes_chunk and c <= context]
    return fitting or [None]


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Training steps of a point's model on random tokens."""
    from lmscaling.bench import training_step

    return training_step.measure(sweep, point)
