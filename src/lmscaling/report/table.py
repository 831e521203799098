"""Tables of the report: sections, rows of queries and the format of their values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from lmscaling.fits.uncertainty import Interval

SECTIONS = {
    "answer": "Answer",
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
"""Headings of the sections, in order; a figure names its section as ``SECTION``. What is in the
first one stands on the first screen."""


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
