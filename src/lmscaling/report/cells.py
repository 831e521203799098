"""Tables of the runs: cells, decayed branches, and damaged logs."""

import math
from typing import Any

import duckdb

from lmscaling.config import code
from lmscaling.report.table import Table, format_row, query_rows

CELLS = """
    SELECT s.name, s.status, s.params, s.updates, s.tokens, s.train_seconds / 3600 AS hours,
        v.val_loss, v.bits_per_byte, s.attempts, c.spikes, c.spikes_per_10000_updates,
        c.highest_spike, c.median_recovery, c.compared_share,
        coalesce(s.skipped, nullif(s.message, ''), '') AS note, s.is_stale,
        (SELECT coalesce(max(val_tokens), 0) FROM validations JOIN known USING (run)) AS val_tokens
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
    ORDER BY s.place
"""

FORMS = {
    "name": "", "status": "", "params": ",", "updates": ",", "tokens": ".3g", "hours": ".3g",
    "val_loss": ".4f",
}  # fmt: skip
HEAD = ("cell", "status", "N", "updates", "tokens", "hours", "validation loss (nats per token)")
SPIKED = {"spikes_per_10000_updates": ".3g", "highest_spike": ".2f", "median_recovery": ",.0f"}
SPIKED_HEAD = ("spikes per 10,000 updates", "highest spike (nats)", "median recovery (updates)")

BITS = (
    "Bits per byte are the validation loss / ln 2 / the UTF-8 bytes per token of the validation "
    "text; with them studies with different tokenizers can be compared. The bytes are those of "
    "all validation documents, the tokens those of the same documents with the end-of-text token "
    "before each, which has no byte."
)

FAILED = (
    "A run has failed if it diverged, which is an infinite or NaN loss, or exploded: the median "
    "training loss and the median validation loss of its last twentieth both lie above the lowest "
    "such medians by more than 0.1 nats and by more than six standard deviations of seeds. The "
    "rule was fixed before the losses were seen. A failed run has no final loss, enters no law, "
    "and is an arrow at the upper edge of a figure."
)

HELD = (
    "The last attempt of a held run failed and is no result. The next snakemake continues it from "
    "its checkpoint, after repeated failures once lmscaling reset --go-on --status held "
    "has been typed."
)

SPIKE = (
    "A spike is an update whose training loss exceeds the median of the preceding 128 updates by "
    "more than 7 robust standard deviations and more than 0.05 nats; its height is measured from "
    "that median. {judged} The loss has recovered at the first of 8 consecutive updates that do "
    "not exceed the median before the spike; recovery is the number of updates until then. Spikes "
    "are counted, never clipped."
)

JUDGED = (
    "For {n} of {runs} runs the same is asked of the difference of their losses from those of at "
    "least three other runs on the same text at the same update, because text that is hard for "
    "every run is no spike of one; the other runs have too few others."
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
        SELECT 'non-finite training losses' AS what,
            sum(nonfinite_losses)::BIGINT AS number, count(*) FILTER (nonfinite_losses > 0) AS runs
        FROM stability JOIN status USING (run)
        UNION ALL
        SELECT 'damaged log lines, excluded', sum(damaged_lines)::BIGINT,
            count(*) FILTER (damaged_lines > 0)
        FROM runs
        UNION ALL
        SELECT 'updates repeated by a later attempt, excluded',
            sum(superseded_rows)::BIGINT, count(*) FILTER (superseded_rows > 0)
        FROM runs
    )
    WHERE number > 0
"""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Cells, decayed branches, and damaged logs."""
    return [_cells(db), _endpoints(db), _damage(db)]


def _cells(db: duckdb.DuckDBPyConnection) -> Table:
    rows = query_rows(db, CELLS)
    spiked = any(row["spikes"] for row in rows)
    in_bits = any(row["bits_per_byte"] for row in rows)
    forms = FORMS | ({"bits_per_byte": ".4f"} if in_bits else {}) | {"attempts": ""}
    forms |= (SPIKED if spiked else {}) | {"note": ""}
    held = any(row["status"] == "held" for row in rows)
    failed = any(row["status"] in ("diverged", "exploded") for row in rows)
    val_tokens = rows[0]["val_tokens"] if rows else 0
    return Table(
        name="cells",
        section="grid",
        title="Cells",
        note="N counts parameters without embeddings; updates and tokens are those of training; "
        f"hours are productive time; the loss is measured on {val_tokens:,} validation tokens."
        + (f" {BITS}" if in_bits else "")
        + (f" {FAILED}" if failed else "")
        + (f" {HELD}" if held else "")
        + (f" {_spike(rows)}" if spiked else ""),
        query=CELLS,
        head=(*HEAD, *(["bits per byte"] if in_bits else []), "attempts",
              *(SPIKED_HEAD if spiked else ()), "note"),
        rows=tuple(format_row(_simplified(row), forms) for row in rows),
        text=frozenset({0, 1, len(forms) - 1}),
    )  # fmt: skip


def _spike(rows: list[dict[str, Any]]) -> str:
    """What a spike is, and how many runs were compared with others."""
    shares = [row["compared_share"] for row in rows if row["compared_share"] is not None]
    n = sum(share > 0 for share in shares)
    return SPIKE.format(judged=JUDGED.format(n=n, runs=len(shares)) if n else "").replace("  ", " ")


def _simplified(row: dict[str, Any]) -> dict[str, Any]:
    """A single attempt is left out, and a missing recovery moves to the note."""
    recovery = row["median_recovery"]
    never = recovery is not None and math.isinf(recovery)
    words = row["note"], code.STALE if row["is_stale"] else "", "no recovery" if never else ""
    return row | {
        "status": row["status"].replace("_", " "),
        "attempts": None if row["attempts"] == 1 else row["attempts"],
        "median_recovery": None if never else recovery,
        "note": "; ".join(filter(None, words)),
    }


def _endpoints(db: duckdb.DuckDBPyConnection) -> Table:
    return Table(
        name="endpoints",
        section="learning",
        title="Decayed branches",
        note="A branch starts from a checkpoint of its trunk, decays the learning rate to zero and "
        "ends at the share of the budget given after b in its name. Updates, tokens, hours and "
        "FLOPs include the trunk up to the branch point. The loss of the trunk is its validation "
        "loss nearest in time to the end of the branch; the gain is the difference.",
        query=ENDPOINTS,
        head=("branch", "N", "updates", "tokens", "hours", "FLOPs",
              "validation loss (nats per token)", "loss of trunk (nats per token)",
              "gain (nats per token)"),
        rows=tuple(format_row(row, ENDPOINT_FORMS) for row in query_rows(db, ENDPOINTS)),
    )  # fmt: skip


def _damage(db: duckdb.DuckDBPyConnection) -> Table:
    forms = {"what": "", "number": ",", "runs": ","}
    return Table(
        name="broken",
        section="audit",
        title="Damaged logs and non-finite losses",
        note="Counts over all runs whose logs are in the results folder.",
        query=BROKEN,
        head=("finding", "count", "runs"),
        rows=tuple(format_row(row, forms) for row in query_rows(db, BROKEN)),
    )
