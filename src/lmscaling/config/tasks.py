"""Tasks of a study: small grids of their own, on other data than the text that the study is about.

A task is a row under ``tasks:``. Its cells are trained by the same trainer and recorded in the same
folders, and no law, gap or figure of losses of the study includes them: the view ``tasks`` of the
store and the tables and figures about tasks do.
"""

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from lmscaling.config.attention_row import Row
from lmscaling.config.axes import AXES, Scales, Skip
from lmscaling.config.budget import Budget
from lmscaling.config.cell import Optimizer, Validation
from lmscaling.config.schedule import AnySchedule
from lmscaling.types import (
    STRICT,
    Context,
    Distinct,
    Epochs,
    Name,
    OneOrMore,
    Position,
    Seed,
)

if TYPE_CHECKING:
    from lmscaling.config.study import Study


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Task:
    """A grid on a dataset of its own. What it does not give is that of the study."""

    dataset: Name
    """Row under ``datasets:``."""
    tokenizer: Name | None = None
    """Row under ``tokenizers:``: ``bytes`` or that of the study."""
    size: OneOrMore[Name]
    """Rows under ``sizes:``, which nothing else in the study may use."""
    context: OneOrMore[Context]
    """Sequence lengths in tokens; of a dataset with sequences, their length."""
    attention: Distinct[Row] | None = None
    """Attentions, as on the axis of the study."""
    seed: Distinct[Seed] | None = None
    """Seeds of the initial weights and of the order of the data."""
    lr_scale: Scales | dict[Name, Scales] | None = None
    """Factors on the learning rate, as on the axis of the study."""
    skip: list[Skip] = field(default_factory=list)
    """Combinations that are left out, with the reason."""
    position: Position | None = None
    """Position encoding."""
    update_tokens: Context | None = None
    """Tokens per optimizer update."""
    budget: Budget | None = None
    """Budget of a cell."""
    epochs: Epochs | None = None
    """Largest number of passes over the data."""
    optimizer: Optimizer | None = None
    """Optimizer; values that it does not give are those of an optimizer without any."""
    schedule: AnySchedule | None = None
    """How the learning rate changes while the budget is spent."""
    validation: Validation | None = None
    """When the validation loss is measured, and on how many tokens."""

    def study(self, study: "Study") -> "Study":
        """The study whose grid has the cells of this task."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        axes = {name: own.pop(name) for name in AXES if name in own}
        scales = study.axes.lr_scale
        if self.attention and isinstance(scales, dict):
            labels = {row.label for row in self.attention}
            kept = {label: values for label, values in scales.items() if label in labels}
            axes = {"lr_scale": kept, **axes}
        off: dict[str, Any] = {"calibrate": None, "branches": None, "evaluate": None, "speed": None}
        return replace(
            study,
            axes=replace(study.axes, **axes),
            **own,
            **off,
            exceptions=[],
            documents="mixed",
            initial=None,
            match=None,
            tasks={},
        )
