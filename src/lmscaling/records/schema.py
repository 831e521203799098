"""One schema: a record class alone says columns, types, units, defaults and meanings.

A record is a frozen dataclass with a string under each field. The columns of the store, the fields
of the JSON files and the comments in ``store.duckdb`` are all derived from it here. Records outlive
the version that wrote them: a field that is added has its default in the shipped records, and a
field that only a newer version knows is kept.
"""

import ast
import inspect
import json
import sys
import textwrap
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any

from lmscaling.errors import UserError

UNKNOWN = "unknown_fields"
"""Column with the fields of a record that this version does not know, as JSON; else null."""

SQL_TYPES = {"int": "BIGINT", "float": "DOUBLE", "str": "VARCHAR", "bool": "BOOLEAN"}
"""DuckDB's type of a field; everything else is JSON."""

LARGEST = {"BIGINT": 2**63 - 1, "DOUBLE": sys.float_info.max}
"""No number may be larger, infinite or NaN."""


@dataclass(frozen=True)
class Column:
    """One column of a table: one field of a record class."""

    sql: str
    meaning: str
    default: Any
    """``dataclasses.MISSING`` if every record must have the field."""


@cache
def columns(*kinds: type) -> dict[str, Column]:
    """The columns of one or more record classes by name, without ``record`` and ``UNKNOWN``."""
    return {
        field.name: Column(_sql_type(field), meanings(kind).get(field.name, ""), _default(field))
        for kind in kinds
        for field in fields(kind)
    }


def types(*kinds: type) -> dict[str, str]:
    """The SQL type of every column of one or more record classes."""
    return {name: column.sql for name, column in columns(*kinds).items()}


def read(kind: type, values: Any, where: str, remedy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a record of any version, and those that this version does not know.

    Args:
        kind: Record class.
        values: Value of the JSON text.
        where: Role and path of the file, for the error.
        remedy: What the user can do if the record is damaged, for the error.

    Raises:
        UserError: A field without a default is missing, or has a value of another type.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where} holds {json.dumps(values)[:40]}; allowed: an object; {remedy}")
    known = columns(kind)
    for name, column in known.items():
        if name not in values and column.default is MISSING:
            raise UserError(f"{where} has no field {name!r}; {remedy}")
        if not _is_of(values.get(name), column.sql):
            found = json.dumps(values[name])[:40]
            raise UserError(f"{where} has {name} {found}; allowed: {column.sql}; {remedy}")
    given = {name: values.get(name, column.default) for name, column in known.items()}
    return given, {k: v for k, v in values.items() if k not in {"record", *known}}


def _sql_type(field: Field[Any]) -> str:
    name = getattr(field.type, "__name__", "")
    text = str(field.type) if name in ("", "Union", "UnionType") else name
    return SQL_TYPES.get(text.removesuffix(" | None"), "JSON")


def _is_of(value: Any, sql: str) -> bool:
    allowed = {"BIGINT": int, "DOUBLE": int | float, "VARCHAR": str, "BOOLEAN": bool}.get(sql)
    if value is None or allowed is None:
        return True
    if sql in LARGEST:  # True is an int
        is_number = isinstance(value, allowed) and not isinstance(value, bool)
        return is_number and abs(value) <= LARGEST[sql]
    return isinstance(value, allowed)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def meanings(kind: type) -> dict[str, str]:
    """The string under each field of a class and of its bases, on one line, without back quotes."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = " ".join(words.replace("``", "").split())
    return found
