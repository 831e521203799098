"""Rows of queries, and their numbers as a reader wants them."""

from typing import Any

import duckdb


def rows(db: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The rows of a query by column."""
    result = db.execute(query)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def shown(row: dict[str, Any], forms: dict[str, str]) -> tuple[str, ...]:
    """Columns of a row as text, by their format; nothing where there is no number."""
    return tuple("" if row[name] is None else format(row[name], f) for name, f in forms.items())
