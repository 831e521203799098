"""The optimal learning rate of cells that were trained with several rates."""

from collections import defaultdict
from collections.abc import Iterable

import duckdb
from pandas import isna

from lmscaling.report.table import Column, Row, Table, format_number, of_rows, query_rows

QUERY = "FROM best_rates"
NOTE = (
    "With two rates on each side of it, the optimum is the minimum of a polynomial in the "
    "logarithm of the rate, with its interval from the scatter of seeds, which are paired over "
    "rates. With one rate on a side it is the vertex of the parabola through the lowest loss and "
    "its two neighbours, whose error is unknown. The gain is the loss at the study's rate minus "
    "that at the optimum, or at the best tried rate if there is no optimum. Only rates that are "
    "finished with every seed are used. A run that deviates from the others of its seed and rate, "
    "where there are three seeds, is left out."
)


def _gain(row: Row) -> str:
    return "" if isna(row["gain"]) or row["tried"] == 1 else f"{row['gain']:.4f}"


COLUMNS = (
    Column("attention", "attention"),
    Column("size", "size"),
    Column("context (tokens)", "context", "{:,}".format),
    Column("rates", "tried", str),
    Column("optimum (per update)", "rate", format_number),
    Column("multiple of the study's rate", "scale", format_number),
    Column("gain (nats per token)", _gain, str),
    Column("status", "why"),
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Optimal rates by attention, size and context."""
    note = NOTE + "".join(f" Warning: {warning}." for warning in warnings(db))
    title = "Optimal learning rates"
    return [of_rows(db, COLUMNS, name="rates", section="learning", title=title, note=note,
                     query=QUERY)]  # fmt: skip


def warnings(db: duckdb.DuckDBPyConnection) -> list[str]:
    """What makes a comparison of the attentions of a store unfair."""
    return unfair(query_rows(db, QUERY))


def unfair(rates: Iterable[Row]) -> list[str]:
    """What makes a comparison of attentions unfair, a sentence each: one was tuned and another was
    not, or the best rate of one is at the edge of those that were tried."""
    said: dict[str, list[str]] = defaultdict(list)
    at: dict[str, list[Row]] = defaultdict(list)
    for row in rates:
        at[f"{row['size']} at context {row['context']:,}"].append(row)
    for place, rows in at.items():
        if any(row["tried"] == 1 for row in rows):
            tuned = (f"{row['attention']} {_tuned(row['tried'])}" for row in rows)
            said[", ".join(tuned)].append(place)
    for place, rows in at.items():
        for row in (row for row in rows if row["status"] == "edge"):
            what = f"{row['attention']} has its lowest loss at the edge of the rates tried"
            said[what].append(place)
    return [f"rates: {what} ({_places(places)})" for what, places in said.items()]


def _tuned(tried: int) -> str:
    return f"tuned over {tried}" if tried > 1 else "not tuned"


def _places(names: Iterable[str]) -> str:
    known = list(names)
    return "; ".join(known) if len(known) < 4 else f"{len(known)} sizes and contexts"
