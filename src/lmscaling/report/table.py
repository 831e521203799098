"""Tables of the report: sections, rows of queries and the format of their values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb
from pandas import isna

from lmscaling.fits.rows import Row, interval_of
from lmscaling.fits.uncertainty import Interval

SECTIONS = {
    "question": "Research question",
    "grid": "Runs",
    "speed": "Speed and memory",
    "learning": "Training and final loss",
    "tasks": "Tasks",
    "laws": "Scaling laws",
    "forecasts": "Forecasts",
    "claims": "Claims of the literature",
    "audit": "Resources and provenance",
}
"""Headings of the sections, in order; a figure names its section as ``SECTION``."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text; the report omits tables without rows."""

    name: str
    """Anchor on the page and file stem."""
    section: str
    """A key of ``SECTIONS``."""
    title: str
    note: str
    """Explanation of the columns, in sentences."""
    query: str
    """SQL over the views of the store; the table is computed from its rows."""
    head: tuple[str, ...]
    """Column heads with units in brackets."""
    rows: tuple[tuple[str, ...], ...]
    text: frozenset[int] = frozenset({0})
    """Left-aligned columns of text; all others contain numbers."""
    folded: bool = False
    """Whether the page shows its title only; long tables are folded in any case."""

    def __post_init__(self) -> None:
        assert self.section in SECTIONS, self.section
        assert all(len(row) == len(self.head) for row in self.rows), self.name


Form = Callable[[Any], str]


class Column(NamedTuple):
    """A column of a table whose rows are those of a query or of a table in ``store/fits.sql``."""

    head: str
    """With the unit in brackets."""
    of: str | Callable[[Row], str]
    """Name of the number, which is written with its interval where it has one, or a function of the
    row."""
    form: Callable[[Any], str] | None = None
    """How a value is written; None for text, which is left-aligned."""

    def __call__(self, row: Row) -> str:
        return self.of(row) if callable(self.of) else written(row, self.of, self.form or str)


def written(row: Row, name: str, form: Callable[[Any], str] = str) -> str:
    """A number of a row with its interval, if it has one; a missing number is empty."""
    return "" if isna(row[name]) else with_interval(row[name], interval_of(row, name), form)


def of_numbers(columns: Sequence[Column], rows: Iterable[Row], **values: Any) -> Table:
    """A table with a line for each row of numbers; ``values`` are its other fields."""
    text = frozenset(i for i, column in enumerate(columns) if column.form is None)
    lines = tuple(tuple(column(row) for column in columns) for row in rows)
    return Table(head=tuple(column.head for column in columns), rows=lines, text=text, **values)


def of_rows(db: duckdb.DuckDBPyConnection, columns: Sequence[Column], **values: Any) -> Table:
    """The same for the rows of its ``query``."""
    return of_numbers(columns, query_rows(db, values["query"]), **values)


FORMS: dict[type, Form] = {str: str, int: "{:,}".format, float: "{:.3g}".format}


def of_query(
    db: duckdb.DuckDBPyConnection, name: str, section: str, title: str, *, query: str, note: str,
    **forms: Form,
) -> Table:  # fmt: skip
    """A table of the rows of a query, whose columns are named as they are shown, units in brackets.

    ``forms`` says how a column is written that ``FORMS`` does not fit, by the first word of its
    name. A missing value is empty. Columns of text without such a form are left-aligned.
    """
    rows = query_rows(db, query)
    head = tuple(rows[0]) if rows else ()
    of = [forms.get(column.split()[0]) for column in head]
    is_text = [all(isinstance(row[column], str | None) for row in rows) for column in head]
    lines = (
        tuple(
            "" if value is None else (form or FORMS[type(value)])(value)
            for form, value in zip(of, row.values(), strict=True)
        )
        for row in rows
    )
    text = frozenset(i for i, form in enumerate(of) if is_text[i] and form is None)
    return Table(name=name, section=section, title=title, note=note, query=query, head=head,
                 rows=tuple(lines), text=text)  # fmt: skip


def query_rows(
    db: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The rows of a query as dictionaries by column, with values for its parameters."""
    result = db.execute(query, values)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def format_context(context: int) -> str:
    """``4k`` for 4096; a number that is no multiple of 1024 is written out."""
    return f"{context // 1024}k" if context % 1024 == 0 else f"{context:,}"


def format_number(value: float) -> str:
    """Three significant digits; a value that ends on a five is rounded alike by processors whose
    logarithms differ in the last digit."""
    return f"{float(f'{value:.12g}'):.3g}"


def with_interval(
    value: float | None,
    interval: Interval | None,
    form: Callable[[float], str] = format_number,
) -> str:
    """``0.46 (0.44 to 0.48)``; an open end is written as ``open``, a missing value is empty, and a
    range that is no confidence interval ends with the scatter that it assumes."""
    if value is None:
        return ""
    if interval is None:
        return form(value)
    low, high = ("open" if end is None else form(end) for end in (interval.low, interval.high))
    reason = "" if interval.assumed is None else f" if seeds differ by {interval.assumed:.2g}"
    return f"{form(value)} ({low} to {high}{reason})"
