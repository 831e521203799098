"""Types of checked fields, and the canonical form of their values.

Every configuration class is a frozen pydantic dataclass that refuses unknown keys. The dump and
digest of its values identify a cell.
"""

import hashlib
import json
import re
from collections import Counter
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic_core import PydanticCustomError

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
    repeated = sorted(text for text, n in Counter(map(str, values)).items() if n > 1)
    if repeated:
        raise ValueError(f"{', '.join(repeated)} is listed more than once; list every value once")
    return values


def _check_number(value: Any) -> Any:
    """A boolean is no number, although it is one to Python."""
    if isinstance(value, bool):
        raise PydanticCustomError("boolean", "a boolean")
    return value


Name = Annotated[str, AfterValidator(_check_name)]

Number = BeforeValidator(_check_number)
"""Part of every number's type. The bounds of the types below are wide: they refuse what cannot be
meant, and leave to the user what is merely unwise. config/limits.md lists them for users."""

Positive = Annotated[int, Field(ge=1, le=10**9), Number]
"""A count without a bound of its own: of updates, files, repetitions, sequences."""
Layers = Annotated[int, Field(ge=1, le=1_000), Number]
"""The deepest published transformers have a thousand layers (arXiv:2203.00555)."""
Heads = Annotated[int, Field(ge=1, le=10_000), Number]
Width = Annotated[int, Field(ge=1, le=2**17), Number]
"""Several times the width of the largest published models."""
Vocabulary = Annotated[int, Field(ge=1, le=10**7), Number]
Context = Annotated[int, Field(ge=1, le=2**30), Number]
"""A billion tokens; also those of an update, which is at least one sequence."""
Tokens = Annotated[int, Field(ge=1, le=10**15), Number]
"""Several times all text that has been collected for training; also bytes."""
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), Number]
"""What the random generators of NumPy and PyTorch have in common."""
GPUs = Annotated[int, Field(ge=0, le=1_000), Number]
"""A cell runs on one node, which is checked with the cell."""
Epochs = Annotated[int, Field(ge=1, le=10_000), Number]
Shards = Annotated[int, Field(ge=1, le=10**6), Number]
"""Each shard is two files in one folder."""
Rate = Annotated[float, Field(ge=1e-12, le=10), Number]
"""A learning rate of Adam is near the relative change of a weight in one update."""
Scale = Annotated[float, Field(ge=1e-6, le=1e6), Number]
"""A factor on a learning rate; the product must be a learning rate too."""
Seconds = Annotated[float, Field(ge=1e-4, le=1e7), Number]
"""Up to four months."""
Estimate = Annotated[float, Field(ge=1, le=1e20), Number]
"""An estimated number of tokens or bytes."""
Fraction = Annotated[float, Field(gt=0, lt=1), Number]
HeldOut = Annotated[float, Field(ge=1e-9, le=0.9), Number]
"""A share of documents that training does not read; less than one of a billion is none."""
Share = Annotated[float, Field(ge=1e-4, le=1), Number]
"""A share of a budget; less than one of ten thousand is shorter than any warm-up."""
Flag = Annotated[bool, Field(strict=True)]
"""``true`` or ``false``, and no number or word that Python would take for them."""
InitStd = Annotated[float, Field(ge=1e-4, le=10), Number]
"""Standard deviation of initial weights; GPT-2 has 0.02, and none that learns has 10."""
Position = Literal["learned", "rope", "none"]
Documents = Literal["mixed", "masked"]
Timed = Literal["wall", "processor"]
WidthRule = Literal["mup"]

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


_adapter = cache(TypeAdapter)


def dump(value: Any, exclude_defaults: bool = False) -> dict[str, Any]:
    """The fields of a dataclass as JSON values.

    ``exclude_defaults`` leaves out fields with their default value, at every depth.
    """
    adapter = _adapter(type(value))
    return adapter.dump_python(value, mode="json", exclude_defaults=exclude_defaults)


def less(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of ``values`` without some keys."""
    return {k: v for k, v in values.items() if k not in keys}


def digest(values: dict[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of the values; their order does not matter."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
