"""Sealed forecasts: what they said before the runs began, and how right they were."""

import duckdb
import numpy as np
from pandas import DataFrame
from scipy.stats import binomtest

from lmscaling.fits import forecast_scores
from lmscaling.formatting import bytes_of
from lmscaling.records.forecast import QUANTITIES
from lmscaling.report.table import Table, format_number

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
    return [
        Table(
            name="forecast_scores",
            section="forecasts",
            title="Sealed forecasts",
            note="Predictions that were sealed before the run began. Held: intervals that hold "
            "what was measured, with the 95 % interval of that share if predictions err "
            "independently; those of one study err alike, so it is too narrow. Factor: median of "
            "measured over predicted or of the inverse, whichever is larger. Log score: mean log "
            "density of the logarithm, the higher the better; the plain guess, whose score is in "
            "brackets, has to be beaten. A file that was changed after it was sealed is named and "
            "not scored.",
            query=QUERY,
            head=("seal", "sealed (UTC)", "quantity", "scored", "80 % held", "95 % held",
                  "median factor", "log score", "plain guess", "not scored"),
            rows=tuple(_scores(part) for _, part in rows.groupby(["seal", "quantity"], sort=False)),
            text=frozenset({0, 1, 2, 8, 9}),
        ),
        Table(
            name="forecast_cells",
            section="forecasts",
            title="Predicted and measured",
            note="Brackets contain 80 % and 95 % intervals of what one run measures. Place: share "
            "of the prediction that lies below what was measured; of good forecasts all values "
            "from 0 to 1 are equally frequent.",
            query=QUERY,
            head=("cell", "seal", "quantity", "predicted", "80 %", "95 %", "measured", "place",
                  "remark"),
            rows=_cells(rows.loc[rows["median"].notna()]),
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
    head = (
        first["seal"][-8:], first["sealed"][:16].replace("T", " "),
        QUANTITIES.get(first["quantity"], ""), f"{len(scored)} of {rows['median'].count()}",
    )  # fmt: skip
    if scored.empty:
        return (*head, *[""] * 5, why)
    own, plain = forecast_scores.log_scores(scored)
    away = abs(np.log(scored["measured"]) - np.log(scored["median"]))
    return (
        *head,
        *(_held(scored, level) for level in forecast_scores.LEVELS),
        f"{np.exp(np.median(away)):.3f}",
        "" if np.isnan(own) else f"{own:.2f}",
        "" if np.isnan(plain) else f"{', '.join(dict.fromkeys(scored['baseline']))} ({plain:.2f})",
        why,
    )


def _held(scored: DataFrame, level: float) -> str:
    """How many intervals hold what was measured, and the 95 % interval of that share (Clopper and
    Pearson 1934)."""
    places = forecast_scores.places(scored.loc[scored["sd"].notna()])
    if not len(places):
        return ""
    held = int((np.abs(places - 0.5) <= level / 2).sum())
    ends = binomtest(held, len(places)).proportion_ci()
    return f"{held} of {len(places)} ({100 * ends.low:.0f} to {100 * ends.high:.0f} %)"


def _cells(rows: DataFrame) -> tuple[tuple[str, ...], ...]:
    """Each prediction with what was measured."""
    forms = {"memory_bytes": bytes_of, "loss": "{:.4f}".format}
    ends = [zip(*forecast_scores.interval(rows, p), strict=True) for p in forecast_scores.LEVELS]
    places = np.where(rows["state"] == "scored", forecast_scores.places(rows), np.nan)
    found = []
    for row, place, *intervals in zip(rows.to_dict("records"), places, *ends, strict=True):
        form = forms.get(row["quantity"], format_number)
        said = ["" if np.isnan(low) else f"{form(low)} to {form(high)}" for low, high in intervals]
        found.append((
            row["name"], row["seal"][-8:], QUANTITIES.get(row["quantity"], ""),
            form(row["median"]), *said,
            "" if np.isnan(row["measured"]) else form(row["measured"]),
            "" if np.isnan(place) else f"{place:.2f}",
            "" if row["state"] == "scored" else row["remark"],
        ))  # fmt: skip
    return tuple(found)
