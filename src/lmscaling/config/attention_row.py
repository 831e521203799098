"""A value of ``axes.attention``: a variant, a variant with options, or a pattern of layers.

    attention:
      - softmax
      - gated: {rank: 16}
      - pattern: [linear, linear, linear, softmax]

A row has a label, which names its series in figures, tables and other sections of the study file:
``softmax``, ``gated.rank16``, ``linear_x3.softmax``.
"""

import re
from dataclasses import field
from itertools import groupby
from typing import Annotated, Any

from pydantic import BeforeValidator, JsonValue
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.errors import UserError, choose, shown
from lmscaling.types import STRICT, Name

FORMS = "a file stem in attention/, {<variant>: {<option>: <value>}} or {pattern: [<variant>, ...]}"
LARGEST = 1e9
"""Largest number that an option can be: each belongs to one layer."""
OPTION = (bool, int, float, str)
"""Types of the values of options."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Layer:
    """The attention of one layer."""

    attention: Name
    """File stem in ``src/lmscaling/attention/``."""
    options: dict[str, JsonValue] = field(default_factory=dict)
    """Keyword-only parameters of its class that the study gives; the others have their default."""

    @property
    def label(self) -> str:
        """The name and the options, as in ``gated.rank16``."""
        return ".".join([self.attention, *(f"{key}{self.options[key]}" for key in self.options)])


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AttentionRow:
    """One value of the axis: every variant has a file, and every option is one of its class."""

    layers: tuple[Layer, ...]
    """Attentions of the first layers; the following layers repeat them in this order."""

    @property
    def label(self) -> str:
        """Layers in order, each with the number of its repetitions if there are several."""
        runs = [(label, len(list(same))) for label, same in groupby(x.label for x in self.layers)]
        return ".".join(label if n == 1 else f"{label}_x{n}" for label, n in runs)

    @property
    def is_file(self) -> bool:
        """Whether it is a variant without options, for which a cell needs its name alone."""
        return len(self.layers) == 1 and not self.layers[0].options

    def __str__(self) -> str:
        return self.label


def _read(value: Any) -> Any:
    """The fields of a row from what the study file has."""
    if isinstance(value, AttentionRow):
        return value
    is_pattern = isinstance(value, dict) and list(value) == ["pattern"]
    rows = value["pattern"] if is_pattern else [value]
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"pattern is {rows!r}; allowed: a list of variants, one per layer")
    layers = [_layer(each) for each in rows]
    return {"layers": layers[:1] if all(each == layers[0] for each in layers) else layers}


def _layer(value: Any) -> dict[str, Any]:
    named = {value: None} if isinstance(value, str) else value
    if not isinstance(named, dict) or len(named) != 1:
        raise ValueError(f"{value!r} is no attention; allowed: {FORMS}")
    [(name, options)] = named.items()
    if name not in (known := registry.attentions()):
        raise ValueError(f"{name!r} has no file in attention/; {choose(name, known)}")
    if not isinstance(options, dict | None):
        raise ValueError(f"{name} has options {options!r}; allowed: {{<option>: <value>}}")
    allowed = registry.options(name)
    for key, found in (options or {}).items():
        if key not in allowed and not registry.takes_any_option(name):
            raise ValueError(f"{name} has no option {key!r}; {choose(key, allowed)}")
        is_large = isinstance(found, int | float) and found > LARGEST
        is_word = isinstance(found, OPTION) and re.fullmatch(r"[A-Za-z0-9_.]+", str(found))
        if is_large or not is_word:
            raise ValueError(
                f"option {key} of {name} is {shown(found)}; allowed: a number without a sign, up "
                f"to {LARGEST:g}, or a word"
            )
        default = allowed.get(key)  # None where the file writes no literal
        kinds = (int, float) if isinstance(default, float) else (type(default),)
        if default is not None and type(found) not in kinds:
            raise ValueError(
                f"{name} has {key}: {found!r}; allowed: a value like the default, {default!r}"
            )
    return {"attention": name, "options": options or {}}


Row = Annotated[AttentionRow, BeforeValidator(_read, json_schema_input_type=str | dict[str, Any])]


def layers(value: Any) -> tuple[Layer, ...]:
    """The layers of a value of the axis that does not stand in a study file.

    Raises:
        UserError: It is none.
    """
    try:
        return AttentionRow(**_read(value)).layers
    except ValueError as error:
        raise UserError(f"attention: {error}") from None
