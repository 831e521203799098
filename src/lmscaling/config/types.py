"""Types of checked fields, and the canonical form of their values.

Every configuration class is a frozen pydantic dataclass that refuses unknown keys. The dump and
digest of its values identify a cell.
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
    repeated = sorted({str(v) for v in values if values.count(v) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} is listed more than once; list every value once")
    return values


Name = Annotated[str, AfterValidator(_check_name)]
Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Position = Literal["learned", "rope", "none"]
Documents = Literal["mixed", "masked"]

T = TypeVar("T")
Distinct = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]
"""A list of at least one value, without duplicates."""
OneOrMore = Annotated[
    Distinct[T],
    BeforeValidator(
        lambda v: v if isinstance(v, list) else [v], json_schema_input_type=T | list[T]
    ),
]
"""The same; a single value needs no brackets."""


def renamed(**keys: str) -> BeforeValidator:
    """Accepts former names of keys; of two names for one key, the one written later counts."""

    def rename(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {keys.get(key, key): value for key, value in values.items()}

    return BeforeValidator(rename)


def dump(value: Any, exclude_defaults: bool = False) -> dict[str, Any]:
    """The fields of a dataclass as JSON values.

    ``exclude_defaults`` leaves out fields with their default value, at every depth.
    """
    return TypeAdapter(type(value)).dump_python(
        value, mode="json", exclude_defaults=exclude_defaults
    )


def less(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of ``values`` without some keys."""
    return {k: v for k, v in values.items() if k not in keys}


def digest(values: dict[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of the values; their order does not matter."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
