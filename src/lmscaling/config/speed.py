"""What the kinds of measurements in ``bench/kinds/`` share: a sweep, and the types of their keys.

A sweep holds all implementations and contexts of one size or preset, so that one job on one device
measures everything that is compared. An implementation is written ``attention/implementation``, as
in ``linear/chunked``: a file in ``attention/``, and in ``kernels/<attention>/`` a file or a
function of ``forms.py``. An attention alone uses the implementation of its own choice.
"""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Cell
from lmscaling.config.places import StudyError
from lmscaling.config.types import (
    STRICT,
    Name,
    Number,
    Positive,
    Seconds,
    Width,
    digest,
    dump,
)
from lmscaling.errors import choose
from lmscaling.records.timing import Point

PEERS = {"fla_chunk": "flash-linear-attention"}
"""Linear attention of other libraries by name, as ``peer/<name>``, and their packages."""


def _check_implementation(text: str) -> str:
    attention, slash, implementation = text.partition("/")
    if attention == "peer" and implementation in PEERS:
        return text
    if "." in attention and not slash:
        return text  # the label of a row of axes.attention, which ``Planner.sweep`` looks up
    if attention not in registry.attentions():
        raise ValueError(
            f"{text!r} has no file in attention/; {choose(attention, registry.attentions())}"
        )
    known = registry.implementations(attention)
    if slash and implementation not in known:
        raise ValueError(
            f"{text!r} has no file in kernels/{attention}/; {choose(implementation, known)}"
        )
    return text


def _check_kernel(text: str) -> str:
    if "/" not in text:
        raise ValueError(
            f"{text!r} names no implementation; "
            f"{choose(text, [f'{text}/{i}' for i in registry.implementations(text)])}"
        )
    return text


def _check_power_of_two(chunk: int) -> int:
    if chunk & (chunk - 1):
        raise ValueError(
            f"{chunk} is not a power of two; nearest is {2 ** (chunk.bit_length() - 1)}"
        )
    return chunk


Implementation = Annotated[str, AfterValidator(_check_implementation)]
Kernel = Annotated[Implementation, AfterValidator(_check_kernel)]
Chunk = Annotated[Positive, AfterValidator(_check_power_of_two)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Heads:
    """The shape of one attention alone."""

    n_head: Positive
    d_head: Width


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sweep:
    """``sweep.json``: one job of the speed study, with all its points."""

    kind: Name
    """File stem in ``bench/kinds/``."""
    name: Name
    """Size, or preset."""
    gpus: Literal[0, 1]
    """0 measures the CPU."""
    timeout_seconds: float
    """See ``Speed``; here and below."""
    repeats: int
    target_seconds: float
    cell: Cell | None = None
    """The model that is measured; attention and context are those of the point."""
    layer: Heads | None = None
    """The layer that is measured if there is no model."""
    tokens: int | None = None
    """Tokens of a training step, where there is not one sequence: each context has one batch."""
    points: list[Point] = field(default_factory=list)
    """The points of each series in growing order of context."""
    layers: dict[Name, tuple[Layer, ...]] = field(default_factory=dict)
    """Layers of the points whose attention is no file but the label of a row of
    ``axes.attention``."""

    @property
    def folder(self) -> str:
        """Folder of its records below ``speed/``, by the model and the tokens, not the points."""
        cell = self.cell
        model = cell and dump(cell.model, exclude_defaults=True) | {"position": cell.position}
        layer = self.layer and dump(self.layer)
        values = {"model": model, "layer": layer, "gpus": self.gpus}
        if self.tokens:
            values["tokens"] = self.tokens
        return f"{self.kind}/{self.name}-{digest(values)}"

    @property
    def heads(self) -> Heads | None:
        """Those of the model or the layer; none of a device."""
        model = self.cell and self.cell.model
        return self.layer or (
            model and Heads(n_head=model.n_head, d_head=model.d_model // model.n_head)
        )

    def cell_of(self, point: Point) -> Cell:
        """The cell of a point: its attention and its context."""
        assert self.cell
        return replace(
            self.cell,
            attention=point.attention,
            layers=self.layers.get(point.attention, ()),
            context=point.context,
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Speed:
    """The speed study: what is timed, on one device, with random weights and tokens."""

    timeout_seconds: Seconds
    """A point that does not end by then is recorded as too slow, and ends its series."""
    repeats: Annotated[int, Field(ge=3, le=10**6), Number]
    """Measurements of each point, at most; at least three."""
    target_seconds: Seconds
    """Measurements of a point go on for about so long."""


class Planner:
    """What a kind's ``sweeps(section, planner)`` may use of the study around its section."""

    def __init__(
        self,
        speed: Speed,
        gpus: int,
        cell: Callable[[str], Cell],
        layers: dict[str, tuple[Layer, ...]],
    ) -> None:
        self.cell, self.layers = cell, layers
        self.values: dict[str, Any] = dump(speed) | {"gpus": 1 if gpus else 0}

    def sweep(self, **values: Any) -> Sweep:
        """A sweep with the common numbers of the speed study, unless they are given.

        Raises:
            StudyError: A label is not on the axis.
        """
        common = ("timeout_seconds", "repeats", "target_seconds", "gpus")
        labels = {point.attention for point in values["points"] if "." in point.attention}
        for label in labels - self.layers.keys():
            raise StudyError(
                f"speed.{values['kind']} {label!r} is no row of axes.attention; "
                f"{choose(label, self.layers)}",
                *("speed", values["kind"]),
            )
        layers = {label: self.layers[label] for label in sorted(labels)}
        numbers = {key: self.values[key] for key in common}
        return Sweep(**numbers | values, layers=layers)


def point(way: str, **values: Any) -> Point:
    """A point of ``attention/implementation`` or of an attention alone."""
    attention, _, implementation = way.partition("/")
    return Point(attention=attention, implementation=implementation, **values)


def sequences(tokens: int, context: int) -> int:
    """How many sequences have so many tokens at once, at least one."""
    return max(1, tokens // context)
