"""Where the faster of two ways to compute attention changes as contexts grow."""

from typing import Any

import duckdb

from lmscaling.formatting import Table
from lmscaling.report import queries

CROSSINGS = """
    SELECT kind, size, batch, challenger, baseline, status, context, low, high, shortest, longest,
        least_ratio, most_ratio, source, setup
    FROM crossings
    ORDER BY kind DESC, source, setup, challenger, baseline DESC, params, size, batch
"""

KINDS = {"time_step": "training step", "time_decode": "sampled token"}

FASTER = {
    "always": "at all",
    "never": "at none",
    "from": "from {at} on",
    "until": "up to {at}",
    "several": "changes, last at {at}",
}
"""Where the first way of a pair is faster, by the status of a crossing."""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Pairs of ways, by what is timed and by setup."""
    rows = queries.rows(db, CROSSINGS)
    setups = _setups(rows)
    return [
        Table(
            name="crossings",
            section="speed",
            title="Where the faster changes",
            note="Median times of both ways at the same contexts, in tokens, of one setup. The "
            "context at which they take the same time is read off straight lines in logarithms "
            "between the two neighbours that were measured; “times as fast” is the range, over "
            "contexts, of the second's time over the first's. "
            + " ".join(f"{name.capitalize()}: {setup}." for (_, setup), name in setups.items()),
            query=CROSSINGS,
            head=("pair", "time of a", "source", "size", "batch", "first is faster",
                  "between contexts", "contexts compared", "times as fast"),
            rows=tuple(_row(row, setups) for row in rows),
            text=frozenset({0, 1, 2, 3, 5}),
        )
    ]  # fmt: skip


def _setups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """A name for each source and setup, with a number where a source has several."""
    pairs = sorted({(row["source"], row["setup"]) for row in rows})
    sources = [source for source, _ in pairs]
    numbers = [sources[:i].count(source) + 1 for i, source in enumerate(sources)]
    return {
        pair: pair[0] if sources.count(pair[0]) == 1 else f"{pair[0]} {n}"
        for pair, n in zip(pairs, numbers, strict=True)
    }


def _row(row: dict[str, Any], setups: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """A context between two that were measured is rough."""
    at = "" if row["context"] is None else f"{float(format(row['context'], '.2g')):,.0f}"
    return (
        f"{row['challenger']} against {row['baseline']}",
        KINDS[row["kind"]],
        setups[row["source"], row["setup"]],
        row["size"],
        str(row["batch"]),
        FASTER[row["status"]].format(at=at),
        "" if row["low"] is None else _range(row["low"], row["high"]),
        _range(row["shortest"], row["longest"]),
        f"{row['least_ratio']:.3g} to {row['most_ratio']:.3g}",
    )


def _range(low: int, high: int) -> str:
    """Two contexts, multiples of 1024 as ``1k to 512k``."""
    return " to ".join(f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}" for n in (low, high))
