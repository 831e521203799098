"""The context at which one implementation of attention becomes faster than another."""

from collections.abc import Callable
from typing import Any

import duckdb

from lmscaling.report.table import Column, Row, Table, format_context, of_numbers, query_rows

CROSSINGS = """
    SELECT kind, size, batch, most_batch, challenger, coalesce(fused, baseline) AS baseline, status,
        context, low, high, shortest, longest, least_ratio, most_ratio, source, setup
    FROM crossings
    ORDER BY kind DESC, source, setup, challenger, crossings.baseline DESC, params, size, batch
"""

KINDS = {"time_step": "training step", "time_decode": "sampled token"}
FASTER = {
    "always": "all",
    "never": "none",
    "from": "above {at}",
    "until": "below {at}",
    "several": "several ranges, last crossing at {at}",
}
"""The contexts at which the first implementation is faster, by the status of a crossing."""


def _range(row: Row, low: str, high: str, form: Callable[[Any], str] = format_context) -> str:
    return "" if row[low] is None else f"{form(row[low])} to {form(row[high])}"


def _faster(row: Row) -> str:
    """The interpolated context is rounded to two digits."""
    at = "" if row["context"] is None else f"{float(format(row['context'], '.2g')):,.0f}"
    return FASTER[row["status"]].format(at=at)


COLUMNS = (
    Column("first against second", lambda row: f"{row['challenger']} against {row['baseline']}"),
    Column("timed", lambda row: KINDS[row["kind"]]),
    Column("source", "named"),
    Column("size", "size"),
    Column(
        "batch size",
        lambda row: " to ".join(f"{n}" for n in dict.fromkeys((row["batch"], row["most_batch"]))),
        str,
    ),
    Column("first is faster at (tokens)", _faster),
    Column("crossing between (tokens)", lambda row: _range(row, "low", "high"), str),
    Column("compared at (tokens)", lambda row: _range(row, "shortest", "longest"), str),
    Column(
        "speed ratio", lambda row: _range(row, "least_ratio", "most_ratio", "{:.3g}".format), str
    ),
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Speed crossings: one row for each pair of implementations, timed operation and setup."""
    rows = query_rows(db, CROSSINGS)
    setups = _setups(rows)
    return [
        of_numbers(
            COLUMNS,
            (row | {"named": setups[row["source"], row["setup"]]} for row in rows),
            name="crossings",
            section="speed",
            title="Speed crossings of two implementations",
            note="Median times of both implementations at the same contexts and in the same setup. "
            "The context of equal times is interpolated between the two nearest measured contexts, "
            "linearly in the logarithms. The speed ratio is the time of the second implementation "
            "divided by that of the first, as a range over contexts. Of several softmax "
            "implementations that store no matrix the fastest at each context counts. "
            + " ".join(f"{name.capitalize()}: {setup}." for (_, setup), name in setups.items()),
            query=CROSSINGS,
        )
    ]


def _setups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """A name for each source and setup, numbered if a source has several setups."""
    pairs = sorted({(row["source"], row["setup"]) for row in rows})
    sources = [source for source, _ in pairs]
    numbers = [sources[:i].count(source) + 1 for i, source in enumerate(sources)]
    return {
        pair: pair[0] if sources.count(pair[0]) == 1 else f"{pair[0]} {n}"
        for pair, n in zip(pairs, numbers, strict=True)
    }
