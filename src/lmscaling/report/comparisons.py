"""Tables that compare every two attentions: gaps of final losses, multipliers and crossings."""

from typing import Any

import duckdb
from pandas import isna

from lmscaling.formatting import short
from lmscaling.report.table import (
    Column,
    Row,
    Table,
    format_context,
    format_number,
    of_rows,
    written,
)

AXES = {"updates": "updates", "flops": "FLOPs", "hours": "hours"}
PAIRED = (
    "Runs of the same seed are paired: they share data and order. Brackets contain 95 % intervals "
    "(98 to 99 % if all cells scatter alike) from the scatter of paired gaps between seeds. Where "
    "it was not measured near enough, they contain the range that an assumed scatter of the gap "
    "gives, which is no confidence interval."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Gaps of final losses, compute multipliers and crossings of the losses."""
    return [
        of_rows(db, GAPS, **LOSS_GAPS),
        of_rows(db, RATIOS, **MULTIPLIERS),
        of_rows(db, CROSSINGS, **LOSS_CROSSINGS),
    ]


def _two(value: float) -> str:
    return f"{value:.2g}"


def _sd(row: Row) -> str:
    """The scatter of pairs, and where it comes from."""
    return "" if isna(row["sd"]) else f"{row['sd']:.2g}, {row['sd_of']}"


def _failed(row: Row) -> str:
    """Of those that ended; the share with its interval where one failed."""
    count = f"{row['failed']} of {row['ended']}"
    return f"{count}: {written(row, 'failed_share', '{:.0%}'.format)}" if row["failed"] else count


def _cell(row: Row) -> str:
    return f"mean of {row['cells']} cells" if isna(row["size"]) else row["size"]


def _form(row: Row) -> Any:
    return short if row["axis"] == "updates" else format_number


def _observed(row: Row) -> str:
    ends = (row["first"], row["last"])
    return "" if isna(row["first"]) else " to ".join(map(_form(row), ends))


HEAD = (
    Column("attention", "attention"),
    Column("reference", "reference"),
    Column("size", _cell),
    Column("context (tokens)", "context", format_context),
    Column("source", "source"),
)
GAPS = (
    *HEAD,
    Column("pairs (seeds)", "seeds", str),
    Column("failed runs", _failed),
    Column("gap (nats per token)", "gap", "{:+.4f}".format),
    Column("p", "p", _two),
    Column("status", "why"),
    Column("seeds to decide", "needed", "{:,}".format),
    Column("sd of a pair (nats)", _sd),
)
LOSS_GAPS = {
    "name": "loss_gaps",
    "section": "learning",
    "title": "Gaps of final losses",
    "note": "Final loss of the attention minus that of the reference; below 0 the attention is "
    "better. It is the gap of runs that do not fail; a run that diverged or exploded is counted as "
    f"failed, with an exact binomial interval of the share. {PAIRED} The mean over cells has an "
    "interval if all cells have two seeds in common; where cells scatter unequally it is as wide "
    "as theirs. p is corrected (Holm) for the rows of a source with the baseline, and for its "
    "others: attentions that do not differ are called better or worse than the baseline in at most "
    "5 % of studies. The interval of a row is not corrected and may exclude 0 where its gap is not "
    "significant. Seeds to decide would find a gap of this size with a probability of 80 %.",
    "query": "FROM gaps WHERE in_order",
}
RATIOS = (
    *HEAD,
    Column("at loss (nats)", "loss", "{:.3f}".format),
    Column("updates (ratio)", "updates", format_number),
    Column("x speed (ratio)", "speed", format_number),
    Column("= hours (ratio)", "hours", format_number),
    Column("FLOPs (ratio)", "flops", format_number),
    Column("status", "why"),
    Column("sd of a paired gap (nats)", _sd),
)
MULTIPLIERS = {
    "name": "multipliers",
    "section": "laws",
    "title": "Compute multipliers",
    "note": "Spent by the reference divided by spent by the attention when both reach the given "
    "loss, the lowest of the compared ones; above 1 the attention is the better one. The "
    "multiplier in hours is that in updates times the speed, the ratio of the times of an "
    f"update. {PAIRED} An end is open if the reference does not reach a loss that noise "
    "allows.",
    "query": "FROM multipliers WHERE in_order",
}
CROSSINGS = (
    *HEAD,
    Column("axis", lambda row: AXES[row["axis"]]),
    Column("last crossing", lambda row: written(row, "crossing", _form(row)), str),
    Column("lower loss at the end", "ahead"),
    Column("observed range", _observed, str),
    Column("p", "p", _two),
    Column("status", "why"),
)
LOSS_CROSSINGS = {
    "name": "loss_crossings",
    "section": "laws",
    "title": "Crossings of the loss curves",
    "note": "The last crossing of the losses of two runs at equal updates, FLOPs or hours. "
    f"{PAIRED} Brackets of crossings are conservative and cover 98 to nearly 100 %. p tests "
    "that the gap has one sign throughout, corrected for the number of rows (Holm). The curves "
    "may cross outside the observed range.",
    "query": "FROM loss_crossings WHERE in_order",
}
