"""Checked fields and the canonical form of their values.

Every configuration class is a frozen pydantic dataclass that refuses unknown keys. This module
holds what they share: the types of their fields, and the dump and digest that give a cell its
identity.
"""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


Split = Literal["train", "validation"]


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        fixed = re.sub(r"[^A-Za-z0-9_.]+", "_", name).lstrip("._") or "x"
        raise ValueError(
            f"{name!r} cannot be a folder name; allowed: letters, digits, '_' and '.', "
            f"the first a letter or digit; nearest is {fixed!r}"
        )
    return name


def _distinct(values: list[Any]) -> list[Any]:
    twice = sorted({str(v) for v in values if values.count(v) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} stands there twice; list every value once")
    return values


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Name = Annotated[str, AfterValidator(_check_name)]
Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Position = Literal["learned", "rope", "none"]

T = TypeVar("T")
Distinct = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]
"""A list with at least one value and none twice."""
OneOrMore = Annotated[
    Distinct[T],
    BeforeValidator(
        lambda v: v if isinstance(v, list) else [v], json_schema_input_type=T | list[T]
    ),
]
"""The same; a single value may stand without brackets."""


def renamed(**keys: str) -> BeforeValidator:
    """Accepts former names of keys; of two names for one key, the one written later counts."""

    def rename(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {keys.get(key, key): value for key, value in values.items()}

    return BeforeValidator(rename)


def dump(value: Any, exclude_defaults: bool = False) -> dict[str, Any]:
    """The fields as JSON has them.

    ``exclude_defaults`` leaves out, at every depth, the fields that are at their default.
    """
    return TypeAdapter(type(value)).dump_python(
        value, mode="json", exclude_defaults=exclude_defaults
    )


def less(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy without some keys."""
    return {k: v for k, v in values.items() if k not in keys}


def digest(values: dict[str, Any]) -> str:
    """Eight hexadecimal digits that depend on the values, not on their order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
