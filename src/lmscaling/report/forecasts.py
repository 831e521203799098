"""Sealed forecasts: what they said before the runs began, and how right they were."""

from collections.abc import Iterator

import duckdb
import numpy as np
from pandas import DataFrame
from scipy.stats import binomtest

from lmscaling.fits import forecast_scores
from lmscaling.records.forecast import QUANTITIES, shown
from lmscaling.report.table import Table

QUERY = """
    SELECT * FROM forecast_scores
    ORDER BY seal, quantity DESC, attention DESC, size, context, seed, run
"""

STATES = {
    "changed": "the file was changed",
    "begun": "the run began before the seal",
    "not predicted": "no prediction",
    "waiting": "the run is not over",
    "failed": "the run failed, or did not measure it",
}
"""Why a prediction is not scored."""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Scores of each seal, and each prediction with what was measured."""
    rows = db.sql(QUERY).df()
    rows["remark"] = rows["reason"].where(rows["reason"] != "", rows["state"].map(STATES))
    parts = rows.groupby(["seal", "quantity", "attention", "baseline"], sort=False, dropna=False)
    return [
        Table(
            name="forecast_scores",
            section="forecasts",
            title="Sealed forecasts",
            note="Predictions that were sealed before the run began. Held: intervals that hold "
            "what was measured, with the 95 % interval of that share if predictions err "
            "independently; those of one study err alike, so it is too narrow. Error: root mean "
            "square of the logarithm of measured over predicted values. A loss has to be closer "
            "than a ruler, the straight line in the logarithms through the two nearest sizes or "
            "lengths that had finished; it is good only if no interval holds the losses of both. "
            "A file that was changed after it was sealed is named and not scored.",
            query=QUERY,
            head=("seal", "sealed (UTC)", "quantity", "attention", "scored", "80 % held",
                  "95 % held", "error", "to beat", "worth", "not scored"),
            rows=tuple(_scores(part) for _, part in parts),
            text=frozenset({0, 1, 2, 3, 9, 10}),
        ),
        Table(
            name="forecast_cells",
            section="forecasts",
            title="Predicted and measured",
            note="The intervals are those of what one run measures.",
            query=QUERY,
            head=("cell", "seal", "quantity", "predicted", "80 %", "95 %", "to beat", "measured",
                  "remark"),
            rows=tuple(_cells(rows.loc[rows["median"].notna()].copy())),
            text=frozenset({0, 1, 2, 8}),
            folded=True,
        ),
    ]  # fmt: skip


def _scores(rows: DataFrame) -> tuple[str, ...]:
    """One quantity of one seal."""
    first, scored = rows.iloc[0], rows.loc[rows["state"] == "scored"]
    others = rows.loc[rows["state"] != "scored", "remark"].value_counts(sort=False)
    why = ", ".join(f"{n}: {remark}" for remark, n in others.items())
    if first["state"] == "changed":
        why = f"{first['seal']}.json was changed"
    errors = (forecast_scores.error(scored, of) for of in ("median", "baseline_median"))
    return (
        first["seal"][-8:], first["sealed"][:16].replace("T", " "),
        QUANTITIES.get(first["quantity"], ""), first["attention"] or "",
        f"{len(scored)} of {rows['median'].count()}",
        *(_held(scored, level) for level in forecast_scores.LEVELS),
        *("" if np.isnan(error) else f"{error:.4f}" for error in errors),
        "" if scored.empty else forecast_scores.worth(scored), why,
    )  # fmt: skip


def _held(scored: DataFrame, level: float) -> str:
    """How many intervals hold what was measured, and the 95 % interval of that share (Clopper and
    Pearson 1934)."""
    held = forecast_scores.holds(scored, level)
    if not len(held):
        return ""
    ends = binomtest(int(held.sum()), len(held)).proportion_ci()
    return f"{held.sum()} of {len(held)} ({100 * ends.low:.0f} to {100 * ends.high:.0f} %)"


def _cells(rows: DataFrame) -> Iterator[tuple[str, ...]]:
    """Each prediction with what was measured."""
    for level in forecast_scores.LEVELS:
        rows[f"low{level}"], rows[f"high{level}"] = forecast_scores.interval(rows, level)
    for row in rows.to_dict("records"):
        ends = [(shown(row, f"low{p}"), shown(row, f"high{p}")) for p in forecast_scores.LEVELS]
        yield (
            row["name"], row["seal"][-8:], QUANTITIES.get(row["quantity"], ""),
            shown(row, "median"), *(f"{low} to {high}" if low else "" for low, high in ends),
            shown(row, "baseline_median"), shown(row, "measured"),
            "" if row["state"] == "scored" else row["remark"],
        )  # fmt: skip
