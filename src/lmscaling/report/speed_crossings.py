"""The context at which one implementation of attention becomes faster than another."""

from typing import Any

import duckdb

from lmscaling.report.table import Table, format_context, query_rows

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


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """One row for each pair of implementations, timed operation and setup."""
    rows = query_rows(db, CROSSINGS)
    setups = _setups(rows)
    return [
        Table(
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
            head=("first against second", "timed", "source", "size", "batch size",
                  "first is faster at (tokens)", "crossing between (tokens)",
                  "compared at (tokens)", "speed ratio"),
            rows=tuple(_row(row, setups) for row in rows),
            text=frozenset({0, 1, 2, 3, 5}),
        )
    ]  # fmt: skip


def _setups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """A name for each source and setup, numbered if a source has several setups."""
    pairs = sorted({(row["source"], row["setup"]) for row in rows})
    sources = [source for source, _ in pairs]
    numbers = [sources[:i].count(source) + 1 for i, source in enumerate(sources)]
    return {
        pair: pair[0] if sources.count(pair[0]) == 1 else f"{pair[0]} {n}"
        for pair, n in zip(pairs, numbers, strict=True)
    }


def _row(row: dict[str, Any], setups: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """The interpolated context is rounded to two digits."""
    at = "" if row["context"] is None else f"{float(format(row['context'], '.2g')):,.0f}"
    return (
        f"{row['challenger']} against {row['baseline']}",
        KINDS[row["kind"]],
        setups[row["source"], row["setup"]],
        row["size"],
        " to ".join(f"{n}" for n in dict.fromkeys((row["batch"], row["most_batch"]))),
        FASTER[row["status"]].format(at=at),
        "" if row["low"] is None else _range(row["low"], row["high"]),
        _range(row["shortest"], row["longest"]),
        f"{row['least_ratio']:.3g} to {row['most_ratio']:.3g}",
    )


def _range(low: int, high: int) -> str:
    return f"{format_context(low)} to {format_context(high)}"
