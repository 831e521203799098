"""The axes of a grid, and parts of the grid: cells to skip, to change, to branch or to evaluate.

A part is given by values of some axes, as in ``{size: 124M, context: [1024, 2048]}``, and contains
the cells that match all of them.
"""

from dataclasses import field, fields
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.attention_row import Layer, Row
from lmscaling.types import (
    STRICT,
    Context,
    Distinct,
    Epochs,
    GPUs,
    Name,
    OneOrMore,
    Rate,
    Scale,
    Seed,
    Share,
)

Scales = Distinct[Scale]

AXES = ("attention", "size", "context", "seed", "lr_scale")
"""Axes of a grid; cells are ordered by the first axis, then by the second, and so on."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Axes:
    """The axes of the grid; every combination of their values is one cell."""

    attention: Distinct[Row]
    """File stems in ``src/lmscaling/attention/``, alone or with options as in ``{gated: {rank:
    16}}``, or a pattern of them over the layers as in ``{pattern: [linear, linear, softmax]}``."""
    size: Distinct[Name]
    """Rows under ``sizes:``."""
    context: Distinct[Context]
    """Sequence lengths in tokens."""
    seed: Distinct[Seed] = field(default_factory=lambda: [0])
    """Seeds of the initial weights and, of text that is shuffled, of its order."""
    lr_scale: Scales | dict[Name, Scales] = field(default_factory=lambda: [1.0])
    """Factors by which the learning rate of the size is multiplied; or those of some attentions by
    label, as in ``{mine: [0.5, 1, 2]}``, and 1 for the others."""

    def values(self, axis: str) -> list[Any]:
        """The values of an axis; attentions by their labels, as other sections name them."""
        values = getattr(self, axis)
        if axis == "attention":
            return [row.label for row in values]
        if isinstance(values, dict):  # lr_scale
            return sorted(
                {scale for name in self.values("attention") for scale in self.rates(name)}
            )
        return values

    def rates(self, attention: str) -> list[float]:
        """The values of ``lr_scale`` of an attention."""
        if isinstance(self.lr_scale, dict):
            return self.lr_scale.get(attention, [1.0])
        return self.lr_scale

    @property
    def layers(self) -> dict[str, tuple[Layer, ...]]:
        """What the layers of each attention are, by label; nothing for a variant's name alone."""
        return {row.label: () if row.is_file else row.layers for row in self.attention}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Where:
    """A part of the grid: the cells that match every axis given here; all if none is given."""

    attention: OneOrMore[Name] | None = None
    """Attentions of the part by label, such as ``gated.rank16``. Every axis takes one value or a
    list; an axis that is left out matches all its values."""
    size: OneOrMore[Name] | None = None
    """Sizes of the part."""
    context: OneOrMore[Context] | None = None
    """Contexts of the part."""
    seed: OneOrMore[Seed] | None = None
    """Seeds of the part."""
    lr_scale: OneOrMore[Scale] | None = None
    """Learning-rate factors of the part."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The axes that are given, with their values."""
        named = {axis.name: getattr(self, axis.name) for axis in fields(Where)}
        return {axis: values for axis, values in named.items() if values is not None}

    def describe(self) -> str:
        """The axes that are given, as in a study file."""
        shown = {axis: v[0] if len(v) == 1 else v for axis, v in self.axes.items()}
        return ", ".join(f"{axis}: {value}" for axis, value in shown.items())

    def covers(self, point: dict[str, Any]) -> bool:
        """Whether a point of the grid belongs to the part."""
        return all(point[axis] in values for axis, values in self.axes.items())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Skip(Where):
    """Combinations left out of the grid."""

    reason: Annotated[str, Field(min_length=1)]
    """The reason; shown in the report."""

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("no axis is given, so every cell would be left out; give at least one")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exempt(Where):
    """Cells that use other values than the rest of the study."""

    reason: Annotated[str, Field(min_length=1)]
    """The reason; shown in the report."""
    gpus: GPUs | None = None
    """GPUs per cell."""
    update_tokens: Context | None = None
    """Tokens per optimizer update."""
    epochs: Epochs | None = None
    """Largest number of passes over the data."""
    lr: Rate | None = None
    """Peak learning rate at ``lr_scale`` 1, in place of that of the size."""

    @property
    def overrides(self) -> dict[str, Any]:
        """The values that are replaced, with their new ones."""
        values = {name: getattr(self, name) for name in ("gpus", "update_tokens", "epochs", "lr")}
        return {name: value for name, value in values.items() if value is not None}

    def __post_init__(self) -> None:
        if not self.overrides:
            raise ValueError("it changes nothing; give gpus, update_tokens, epochs or lr")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Branches(Where):
    """Decayed branches of runs. A branch continues from its trunk while its rate falls to zero."""

    shares: Distinct[Share]
    """Shares of the budget at which a branch ends; it starts from the trunk at 0.8 of its share."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Evaluate(Where):
    """Runs whose final weights are evaluated by position."""

    datasets: Distinct[Name]
    """Rows under ``datasets:`` whose validation text is used."""
