"""Tables whose rows are those of a query, each an entry of ``tables.yaml``.

An entry has the section, title, note and query of a table. ``columns`` has by head what a cell
says, a Jinja expression over the columns of a row: ``form`` writes a value, ``n("gap", "+.4f")`` a
number with its interval, and a missing value is empty. A bare name is text, which is left-aligned,
as are the heads in ``left``. An entry without ``columns`` shows those of its query as they are
named; ``forms`` says by the first word of its name how one is written. A note is a template.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.resources import files
from itertools import groupby
from typing import Any

import duckdb
import jinja2
import yaml
from pandas import isna

from lmscaling.fits import optimum
from lmscaling.fits.laws import FARTHER
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.optimum import Optimum
from lmscaling.fits.power_law import PowerLaw
from lmscaling.fits.rows import Row, interval_of
from lmscaling.formatting import budget_of, bytes_of, short
from lmscaling.report import losses, rates
from lmscaling.report.table import (
    Table,
    format_context,
    format_number,
    query_rows,
    with_interval,
)

SEEN = """
    SELECT
        (SELECT coalesce(max(val_tokens), 0) FROM validations JOIN known USING (run)) AS val_tokens,
        count(v.bits_per_byte) AS bits, count(*) FILTER (s.status = 'held') AS held,
        count(*) FILTER (s.status IN ('diverged', 'exploded')) AS failed, sum(c.spikes) AS spikes,
        count(*) FILTER (compared_share > 0) AS compared, count(compared_share) AS runs
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
"""
"""What the note on the cells has to explain."""

FORMULAS = {
    "surface": LossSurface.formula, "interacting": LossSurface.interacting,
    "optimum": Optimum.formula, "time": PowerLaw.formula,
}  # fmt: skip

NAMED = {
    "number": format_number, "short": short, "bytes": bytes_of, "plain": str,
    "context": lambda tokens: format_context(round(tokens)),
    "digits": lambda value: f"{float(format(value, '.2g')):,.0f}",
}  # fmt: skip
"""Forms beside those of Python, such as ``.4f``."""

USUAL = {int: ",", float: ".3g"}
"""Forms of the columns of a query."""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """The tables of a connected store, in the order of the file."""
    entries = yaml.safe_load(files("lmscaling.report").joinpath("tables.yaml").read_text())
    facts = {
        "texts": entries.pop("texts"), "formula": FORMULAS, "farther": FARTHER,
        "seen": query_rows(db, SEEN)[0], "warnings": rates.warnings(db),
    }  # fmt: skip
    return [_table(db, name, entry, facts) for name, entry in entries.items()]


def _table(
    db: duckdb.DuckDBPyConnection, name: str, entry: dict[str, Any], facts: dict[str, Any]
) -> Table:
    rows = query_rows(db, entry["query"])
    if name in ROWS:
        rows = list(ROWS[name](rows))
    if columns := entry.get("columns"):
        left = {head for head, cell in columns.items() if re.fullmatch(r"\w+", cell)}
        left |= set(entry.get("left", ()))
        cells = [ENVIRONMENT.compile_expression(cell) for cell in columns.values()]
        lines = [tuple(_cell(cell, row) for cell in cells) for row in rows]
    else:
        columns = {h: entry.get("forms", {}).get(h.split()[0]) for h in (rows[0] if rows else ())}
        is_text = {h for h in columns if all(isinstance(row[h], str | None) for row in rows)}
        left = {head for head in is_text if not columns[head]}
        lines = [
            tuple(form(row[h], how or USUAL.get(type(row[h]))) for h, how in columns.items())
            for row in rows
        ]
    lines = _folded(columns, lines)
    note = ENVIRONMENT.from_string(entry["note"]).render(facts, rows=rows)
    return Table(
        name=name, section=entry["section"], title=entry["title"], note=" ".join(note.split()),
        query=entry["query"], head=tuple(columns), rows=tuple(lines),
        text=frozenset(i for i, head in enumerate(columns) if head in left),
    )  # fmt: skip


ALIKE = 3
"""More rows that have the same status and no number are shown as one."""
NAMES = {
    "attention",
    "reference",
    "size",
    "context (tokens)",
    "schedule",
    "budget",
    "held out",
    "points",
}
"""Heads of what a row is about, and how many points it has."""


def _folded(columns: Iterable[str], lines: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One line in place of all, where they differ in what they are about only."""
    differ = [len({*values}) > 1 for values in zip(*lines, strict=True)]
    heads = [head for head, differs in zip(columns, differ, strict=False) if differs]
    if "status" not in columns or len(lines) <= ALIKE or not NAMES.issuperset(heads):
        return lines
    told = []
    for head, values in zip(columns, zip(*lines, strict=True), strict=True):
        found = sorted({*values}, key=lambda value: (len(value), value))
        span = f"{found[0]} to {found[-1]}" if head == "points" else f"all {len(found)}"
        told.append(span if len(found) > 1 else found[0])
    return [tuple(told)]


def _cell(cell: Any, row: Row) -> str:
    said = cell(row, n=partial(number, row))
    return "" if said is None else str(said)


def form(value: Any, how: str | None = "number") -> str:
    """A value in a form of ``NAMED`` or of Python; a missing one is empty."""
    if isna(value):
        return ""
    return NAMED[how](value) if how in NAMED else format(value, how or "")


def ends(low: Any, high: Any, how: str) -> str:
    """``1k to 8k``, or nothing."""
    return "" if isna(low) else f"{form(low, how)} to {form(high, how)}"


def number(row: Row, name: str, how: str = "number") -> str:
    """A number of a row with its interval, if it has one."""
    value, interval = row[name], interval_of(row, name)
    return "" if isna(value) else with_interval(value, interval, partial(form, how=how))


def _with_laws(rows: Iterable[Row]) -> Iterator[Row]:
    """A line for each budget and one for the power law; one for all if no budget has sizes."""
    of = ("source", "schedule", "attention", "context")
    for _, law in groupby(rows, key=lambda row: [row[name] for name in of]):
        budgets = list(law)
        first, empty = budgets[0], {"number": "", "lack": None, "moved": None}
        if {row["status"] for row in budgets} <= {"too_few", "unknown_schedule"}:
            why, unit = optimum.STATUSES[first["status"]], first["unit"].replace("updates", "steps")
            yield first | empty | {"at": f"all, {unit}", "why": why}
            continue
        for row in budgets:
            at, best = budget_of(row["budget"], row["unit"]), number(row, "best", "short")
            yield row | {"at": at, "number": best, "excluded": ""}
        power = number(first, "p")
        best, lack, why = f"t^{power}" if power else "", first["law_lack"], first["law_why"]
        yield first | empty | {"at": "power law", "number": best, "lack": lack, "why": why}


ROWS = {"best_sizes": _with_laws, "final_losses": losses.rows}
"""What makes the rows of a table of those of its query."""

ENVIRONMENT = jinja2.Environment(undefined=jinja2.StrictUndefined)
ENVIRONMENT.filters |= {"form": form, "ends": ends}
