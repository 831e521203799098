"""Learn to copy a sequence, and time a step, at every context."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic.dataclasses import dataclass

from lmscaling.config.cell import Model
from lmscaling.config.speed import Implementation, Planner, Sweep, point, sequences
from lmscaling.config.types import (
    STRICT,
    Context,
    Distinct,
    Heads,
    Layers,
    Positive,
    Rate,
    Seed,
    Vocabulary,
    Width,
    renamed,
)
from lmscaling.errors import choose
from lmscaling.records.timing import Outcome, Point


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CopyTask:
    """Learning to repeat a sequence of random symbols, and the cost of a step while learning.

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
    train_contexts: list[Context]
    """Contexts at which the task is learned, too."""
    updates: Positive
    """Updates of learning."""
    lr: Rate
    """Learning rate; a tenth of it after 3/5 of the updates."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        for context in self.train_contexts:
            if context not in self.contexts:
                raise ValueError(
                    f"train_contexts {context} is not in contexts; {choose(context, self.contexts)}"
                )
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")


SECTION = Annotated[CopyTask, renamed(learned="train_contexts")]


def sweeps(section: CopyTask, planner: Planner) -> Iterator[Sweep]:
    """One sweep of a small model."""
    points = [
        point(
            attention,
            context=context,
            batch=sequences(section.tokens, context),
            updates=section.updates if context in section.train_contexts else 0,
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
    """Learn if the point says so, then time further steps."""
    from lmscaling.bench import copy_task

    return copy_task.measure(sweep, point)
