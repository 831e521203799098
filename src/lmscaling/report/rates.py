"""What the best learning rates say of a comparison of attentions."""

from collections import defaultdict
from collections.abc import Iterable

import duckdb

from lmscaling.fits.rows import Row
from lmscaling.report.table import query_rows


def warnings(db: duckdb.DuckDBPyConnection) -> list[str]:
    """What makes a comparison of the attentions of a store unfair."""
    return unfair(query_rows(db, "FROM best_rates"))


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
