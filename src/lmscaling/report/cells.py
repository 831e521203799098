"""Tables of the runs: every cell, decayed endpoints, and what was found broken."""

import math
from typing import Any

import duckdb

from lmscaling.formatting import Table
from lmscaling.report import queries

CELLS = """
    SELECT s.name, s.status, s.params, s.updates, s.tokens, s.train_seconds / 3600 AS hours,
        v.val_loss, s.attempts, c.spikes, c.spikes_per_10000_updates, c.highest_spike,
        c.median_recovery, coalesce(s.skipped, nullif(s.message, ''), '') AS note,
        (SELECT coalesce(max(val_tokens), 0) FROM validations) AS val_tokens
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
    ORDER BY s.place
"""

FORMS = {
    "name": "", "status": "", "params": ",", "updates": ",", "tokens": ".3g", "hours": ".3g",
    "val_loss": ".4f", "attempts": "",
}  # fmt: skip
HEAD = ("cell", "status", "N", "updates", "tokens", "hours", "validation loss (nats per token)",
        "attempts")  # fmt: skip
SPIKED = {"spikes_per_10000_updates": ".3g", "highest_spike": ".2f", "median_recovery": ",.0f"}
SPIKED_HEAD = ("spikes per 10,000 updates", "highest spike (nats)", "median recovery (updates)")

SPIKE = (
    "A spike is an update whose training loss lies more than 7 robust standard deviations, and "
    "more than 0.05 nats, above the median of the 128 updates before it; its height is counted "
    "from that median. An upset begins with a spike and is over with the first of 8 updates in a "
    "row that are none above the median before it; recovery is how many updates that took. Spikes "
    "are counted, never clipped."
)

ENDPOINTS = """
    SELECT e.name, e.params, e.update AS updates, e.tokens, e.hours, e.flops, e.val_loss,
        e.trunk_val_loss, e.trunk_val_loss - e.val_loss AS gain
    FROM endpoints e JOIN cells c ON c.run = e.trunk
    ORDER BY c.place, e.share
"""

ENDPOINT_FORMS = {
    "name": "", "params": ",", "updates": ",", "tokens": ".3g", "hours": ".3g", "flops": ".3g",
    "val_loss": ".4f", "trunk_val_loss": ".4f", "gain": ".4f",
}  # fmt: skip

BROKEN = """
    FROM (
        SELECT 'training losses that are no number' AS what,
            sum(nonfinite_losses)::BIGINT AS number, count(*) FILTER (nonfinite_losses > 0) AS runs
        FROM stability JOIN status USING (run)
        UNION ALL
        SELECT 'damaged lines of logs, left out', sum(damaged_lines)::BIGINT,
            count(*) FILTER (damaged_lines > 0)
        FROM runs
        UNION ALL
        SELECT 'rows that a later attempt trained again, kept but not shown',
            sum(superseded_rows)::BIGINT, count(*) FILTER (superseded_rows > 0)
        FROM runs
    )
    WHERE number > 0
"""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Cells, endpoints, and what was found broken."""
    return [_cells(db), _endpoints(db), _broken(db)]


def _cells(db: duckdb.DuckDBPyConnection) -> Table:
    rows = queries.rows(db, CELLS)
    spiked = any(row["spikes"] for row in rows)
    forms = FORMS | (SPIKED if spiked else {}) | {"note": ""}
    val_tokens = rows[0]["val_tokens"] if rows else 0
    return Table(
        name="cells",
        section="grid",
        title="Cells",
        note="N counts parameters without embeddings; tokens and updates are those of training; "
        f"hours are productive time; the loss is that on {val_tokens:,} validation tokens."
        + (f" {SPIKE}" if spiked else ""),
        query=CELLS,
        head=(*HEAD, *(SPIKED_HEAD if spiked else ()), "note"),
        rows=tuple(queries.shown(_plain(row), forms) for row in rows),
        text=frozenset({0, 1, len(forms) - 1}),
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """One attempt is the rule and needs no number."""
    recovery = row["median_recovery"]
    never = recovery is not None and math.isinf(recovery)
    return row | {
        "status": row["status"].replace("_", " "),
        "attempts": None if row["attempts"] == 1 else row["attempts"],
        "median_recovery": None if never else recovery,
        "note": "; ".join(filter(None, [row["note"], "no recovery" if never else ""])),
    }


def _endpoints(db: duckdb.DuckDBPyConnection) -> Table:
    return Table(
        name="endpoints",
        section="learning",
        title="Decayed endpoints",
        note="A branch leaves its trunk and ends, with its learning rate fallen to zero, at the "
        "share of the budget that its name gives behind b. Its numbers count the whole trajectory, "
        "trunk part included; the trunk's loss is that of its validation nearest in time.",
        query=ENDPOINTS,
        head=("branch", "N", "updates", "tokens", "hours", "FLOPs",
              "validation loss (nats per token)", "trunk's, then", "gain"),
        rows=tuple(queries.shown(row, ENDPOINT_FORMS) for row in queries.rows(db, ENDPOINTS)),
    )  # fmt: skip


def _broken(db: duckdb.DuckDBPyConnection) -> Table:
    forms = {"what": "", "number": ",", "runs": ","}
    return Table(
        name="broken",
        section="audit",
        title="What was found broken",
        note="Counted over all runs whose logs are here.",
        query=BROKEN,
        head=("what", "number", "runs"),
        rows=tuple(queries.shown(row, forms) for row in queries.rows(db, BROKEN)),
    )
