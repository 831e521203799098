"""Time and memory of a step of the copy task at every context."""

from collections.abc import Iterator
from dataclasses import replace

from pydantic.dataclasses import dataclass

from lmscaling.config.cell import Model
from lmscaling.config.speed import Implementation, Planner, Sweep, point, sequences
from lmscaling.config.types import (
    STRICT,
    Context,
    Distinct,
    Heads,
    Layers,
    Rate,
    Seed,
    Vocabulary,
    Width,
)
from lmscaling.records.timing import Outcome, Point


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CopyTask:
    """The cost of a training step on sequences of random symbols and their copy. Nothing is
    learned: that is for a task of a dataset of kind ``copy``.

    Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.1.
    """

    attentions: Distinct[Implementation]
    """Files in ``attention/``."""
    n_layer: Layers
    n_head: Heads
    d_model: Width
    symbols: Vocabulary
    """Different symbols; one more token separates a sequence from its copy."""
    contexts: Distinct[Context]
    """Tokens, separator and copy included, at which a step is timed."""
    tokens: Context
    """Tokens per update; sequences are as many as fit."""
    lr: Rate = 1e-3
    """Learning rate of the steps; no time depends on it."""
    seed: Seed = 0
    """Seed of the symbols and the weights."""

    def __post_init__(self) -> None:
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")


SECTION = CopyTask


def sweeps(section: CopyTask, planner: Planner) -> Iterator[Sweep]:
    """One sweep of a small model."""
    points = [
        point(
            attention,
            context=context,
            batch=sequences(section.tokens, context),
        )
        for context in sorted(section.contexts)
        for attention in section.attentions
    ]
    model = Model(
        n_layer=section.n_layer,
        n_head=section.n_head,
        d_model=section.d_model,
        vocab_size=section.symbols + 1,
    )
    cell = planner.cell(planner.sizes[0])
    cell = replace(cell, size="copy", model=model, lr=section.lr, seed=section.seed)
    yield planner.sweep(kind="copy_task", name="copy", cell=cell, points=points)


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Time steps."""
    from lmscaling.bench import copy_task

    return copy_task.measure(sweep, point)
