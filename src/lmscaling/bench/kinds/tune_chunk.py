"""Find the fastest chunk size of a training step at every context."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic.dataclasses import dataclass

from lmscaling.bench.kinds.time_step import measure
from lmscaling.config.speed import Chunk, Implementation, Planner, Sweep, point, sequences
from lmscaling.config.types import STRICT, Distinct

__all__ = ["SECTION", "measure", "sweeps"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuneChunk:
    """The same step at every chunk size; ``time_step`` uses the fastest of each context.

    Sizes, contexts and tokens are those of ``time_step``.
    """

    needs: ClassVar[str] = "time_step"
    implementations: Distinct[Implementation]
    """Those that take a chunk size."""
    chunks: Distinct[Chunk]
    """Tokens per chunk."""


SECTION = TuneChunk


def sweeps(section: TuneChunk, planner: Planner) -> Iterator[Sweep]:
    """One sweep for each size of ``time_step``."""
    step = planner.section(section.needs)
    points = [
        point(
            implementation,
            context=context,
            batch=sequences(step.tokens or 1, context),
            chunk=chunk,
        )
        for context in sorted(step.contexts)
        for implementation in section.implementations
        for chunk in section.chunks
        if chunk <= context
    ]
    for size in step.sizes:
        yield planner.sweep(
            kind="tune_chunk",
            name=size,
            tokens=step.tokens,
            cell=planner.cell(size),
            points=points,
        )
