"""Tables of the scaling laws: fitted parameters with 95 % intervals, optima and hold-out errors.

A parameter that the points do not determine is left empty, and the status gives the reason.
"""

from collections.abc import Callable, Iterator
from itertools import groupby

import duckdb
from pandas import isna

from lmscaling.fits import optimum, power_law
from lmscaling.fits.optimum import Optimum
from lmscaling.formatting import short
from lmscaling.report import surfaces
from lmscaling.report.table import (
    Column,
    Row,
    Table,
    format_context,
    format_number,
    of_numbers,
    of_rows,
    query_rows,
    written,
)

MEASURED = (
    "Brackets contain 95 % intervals by the scatter of seeds that the study measured, or, where "
    "they say so, the range if seeds differ by that much: runs of one seed do not show that one of "
    "them went wrong."
)
CHECKED = (
    "Lack of fit is tested against seeds, and a law is refused at p < 0.05; the run without which "
    "the result changes most is named."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """All tables of laws, in the order of the report."""
    best_sizes = list(_with_laws(query_rows(db, BEST_SIZES["query"])))
    return [
        *surfaces.tables(db),
        of_numbers(SIZES, best_sizes, **BEST_SIZES),
        of_rows(db, TIMES, **TIME_LAWS),
        of_rows(db, CONTEXTS, **BEST_CONTEXTS),
    ]


def _two(value: float) -> str:
    return f"{value:.2g}"


def _two_digits(value: float) -> str:
    return f"{float(format(value, '.2g')):,.0f}"


def _moved(form: Callable[[float], str]) -> Callable[[Row], str]:
    """The result without the run that moves it most."""
    return lambda row: (
        "" if isna(row["moved"]) else f"{form(row['moved'])} without {row['without']}"
    )


def _with_laws(rows: list[Row]) -> Iterator[Row]:
    """A line for each budget and one for the power law; one for all if no budget has sizes."""
    of = ("source", "schedule", "attention", "context")
    for _, law in groupby(rows, key=lambda row: [row[name] for name in of]):
        budgets = list(law)
        first, empty = budgets[0], {"number": "", "lack": None, "moved": None}
        if {row["status"] for row in budgets} <= {"too_few", "unknown_schedule"}:
            why = optimum.STATUSES[first["status"]]
            yield first | empty | {"at": f"all, {first['unit']}", "why": why}
            continue
        for row in budgets:
            at, number = f"{row['budget']:.3g} {row['unit']}", written(row, "best", short)
            yield row | {"at": at, "number": number, "excluded": ""}
        power = written(first, "p", format_number)
        number, lack, why = f"t^{power}" if power else "", first["law_lack"], first["law_why"]
        yield first | empty | {"at": "power law", "number": number, "lack": lack, "why": why}


SIZES = (
    Column("attention", "attention"),
    Column("context (tokens)", "context", format_context),
    Column("source", "source"),
    Column("fitted losses", "losses"),
    Column("budget", "at", str),
    Column("best N (parameters)", "number", str),
    Column("p of lack of fit", "lack", _two),
    Column("without one run", _moved(short)),
    Column("excluded", "excluded"),
    Column("status", "why"),
)
BEST_SIZES = {
    "name": "best_sizes",
    "section": "laws",
    "title": "Best size by budget",
    "note": f"Minimum of a {Optimum.formula} at one budget, and the exponent of its growth with "
    f"the budget t. {MEASURED} {CHECKED}",
    "query": "FROM best_sizes",
}
TIMES = (
    Column("size", "size"),
    Column("context (tokens)", "context", format_context),
    Column("attention", "attention"),
    Column("source", "source"),
    Column("fitted losses", "losses"),
    Column("unit of x", "unit"),
    Column("E (nats)", "E", format_number),
    Column("k", "k", format_number),
    Column("gamma", "gamma", format_number),
    Column("p of lack of fit", "lack", _two),
    Column("gamma without one run", _moved(format_number)),
    Column("p of one E", "one_E", _two),
    Column("status", "why"),
)
TIME_LAWS = {
    "name": "time_laws",
    "section": "laws",
    "title": "Power law of the loss over time",
    "note": f"{power_law.PowerLaw.formula}, with x in hours, or in updates if budgets count "
    "updates; each attention has its own E, and the test of one E for all errs in at most 5 % "
    "of studies. "
    f"Intervals of E are conservative (97 to 99 %). {MEASURED} {CHECKED}",
    "query": "FROM time_laws",
}
CONTEXTS = (
    Column("attention", "attention"),
    Column("size", "size"),
    Column("source", "source"),
    Column("fitted losses", "losses"),
    Column("best context (tokens)", "best", _two_digits),
    Column("lowest loss at (tokens)", "lowest", lambda value: format_context(round(value))),
    Column("p of lack of fit", "lack", _two),
    Column("without one run", _moved(_two_digits)),
    Column("excluded", "excluded"),
    Column("status", "why"),
)
BEST_CONTEXTS = {
    "name": "best_contexts",
    "section": "laws",
    "title": "Best training context",
    "note": f"Minimum of a {Optimum.formula} at the end of the budget. {MEASURED} {CHECKED}",
    "query": "FROM best_contexts",
}
