"""The axes of a grid, and parts of it: what is skipped, exempt, branched, evaluated.

A part is named by the values of some axes, ``{size: 124M, context: [1024, 2048]}``, and holds the
cells that agree with all of them.
"""

from dataclasses import field, fields
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT, Distinct, Name, OneOrMore, Positive, Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Axes:
    """The grid: every combination is one cell."""

    attention: Distinct[Name]
    """File stems in ``src/lmscaling/attention/``."""
    size: Distinct[Name]
    """Row names under ``sizes:``."""
    context: Distinct[Positive]
    """Sequence lengths in tokens."""
    seed: Distinct[Annotated[int, Field(ge=0)]] = field(default_factory=lambda: [0])
    """Seeds of the initial weights; the data order has none."""
    lr_scale: Distinct[Annotated[float, Field(gt=0)]] = field(default_factory=lambda: [1.0])
    """Factors on the learning rate of the size."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Where:
    """A part of the grid: the cells that agree with every axis named here; all if none is."""

    attention: OneOrMore[Name] | None = None
    """These attentions only; here and below one value or a list, every value if left out."""
    size: OneOrMore[Name] | None = None
    """These sizes only."""
    context: OneOrMore[Positive] | None = None
    """These contexts only."""
    seed: OneOrMore[int] | None = None
    """These seeds only."""
    lr_scale: OneOrMore[float] | None = None
    """These factors on the learning rate only."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The axes it names, with their values."""
        named = {axis.name: getattr(self, axis.name) for axis in fields(Where)}
        return {axis: values for axis, values in named.items() if values is not None}

    @property
    def words(self) -> str:
        """The axes it names, as a reader writes them."""
        shown = {axis: v[0] if len(v) == 1 else v for axis, v in self.axes.items()}
        return ", ".join(f"{axis}: {value}" for axis, value in shown.items())

    def covers(self, point: dict[str, Any]) -> bool:
        """Whether a point of the grid lies in it."""
        return all(point[axis] in values for axis, values in self.axes.items())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Skip(Where):
    """Combinations left out of the grid."""

    reason: Annotated[str, Field(min_length=1)]
    """Why, in words; shown in the report."""

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("no axis is named, so every cell would be left out; name one")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exempt(Where):
    """Cells that differ from the rest of the study in what is named here."""

    reason: Annotated[str, Field(min_length=1)]
    """Why, in words; shown in the report."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Devices per cell."""
    update_tokens: Positive | None = None
    """Tokens per optimizer update."""
    epochs: Positive | None = None
    """Times that the data may be read."""

    @property
    def instead(self) -> dict[str, int]:
        """The fields of the study that it replaces."""
        values = {name: getattr(self, name) for name in ("gpus", "update_tokens", "epochs")}
        return {name: value for name, value in values.items() if value is not None}

    def __post_init__(self) -> None:
        if not self.instead:
            raise ValueError("it changes nothing; name gpus, update_tokens or epochs")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Branches(Where):
    """Decayed branches of runs: each goes on from its trunk while its rate falls to zero."""

    shares: Distinct[Share]
    """Shares of the budget at which a branch ends; it leaves the trunk at 0.8 of that."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Evaluate(Where):
    """Runs whose final weights are evaluated position by position."""

    datasets: Distinct[Name]
    """Rows under ``datasets:`` whose validation text is used."""
