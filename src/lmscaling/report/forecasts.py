"""Sealed forecasts: what they said before the runs began, and how right they were."""

from collections import Counter, defaultdict
from typing import Any

import duckdb
from scipy.stats import binomtest

from lmscaling.fits import forecast_scores, unfinished
from lmscaling.formatting import bytes_of
from lmscaling.records.forecast import QUANTITIES, Predicted
from lmscaling.report.table import Table, format_number, query_rows

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

Row = dict[str, Any]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Scores of each seal, and each prediction with what was measured."""
    rows = query_rows(db, QUERY)
    parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        parts[row["seal"], row["quantity"]].append(row)
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
            rows=tuple(_scores(*key, part) for key, part in parts.items()),
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
            rows=tuple(_cell(row) for row in rows if row["median"] is not None),
            text=frozenset({0, 1, 2, 8}),
            folded=True,
        ),
    ]  # fmt: skip


def _scores(seal: str, quantity: str, rows: list[Row]) -> tuple[str, ...]:
    scored = [row for row in rows if row["state"] == "scored"]
    others = Counter(_remark(row) for row in rows if row["state"] != "scored")
    why = ", ".join(f"{n}: {state}" for state, n in others.items())
    if rows[0]["state"] == "changed":
        why = f"{seal}.json was changed"
    predicted = sum(row["median"] is not None for row in rows)
    when = rows[0]["sealed"][:16].replace("T", " ")
    head = seal[-8:], when, QUANTITIES.get(quantity, ""), f"{len(scored)} of {predicted}"
    if not scored:
        return (*head, *[""] * 5, why)
    found = forecast_scores.score(scored)
    own, plain = found.log_score, found.baseline_log_score
    said = ", ".join(dict.fromkeys(row["baseline"] for row in scored))
    return (
        *head,
        *(_held(n, found.of) for n in found.held.values()),
        f"{found.factor:.3f}",
        "" if own is None else f"{own:.2f}",
        "" if plain is None else f"{said} ({plain:.2f})",
        why,
    )


def _held(held: int, of: int) -> str:
    """A share with its 95 % interval (Clopper and Pearson 1934)."""
    if not of:
        return ""
    ends = binomtest(held, of).proportion_ci()
    return f"{held} of {of} ({100 * ends.low:.0f} to {100 * ends.high:.0f} %)"


def _cell(row: Row) -> tuple[str, ...]:
    form = {"memory_bytes": bytes_of, "loss": "{:.4f}".format}.get(row["quantity"], format_number)
    predicted = Predicted(median=row["median"], sd=row["sd"], degrees=row["degrees"])
    ends = [unfinished.interval(predicted, level) for level in forecast_scores.LEVELS]
    is_scored = row["state"] == "scored"
    has_place = is_scored and row["sd"] is not None
    return (
        row["name"], row["seal"][-8:], QUANTITIES.get(row["quantity"], ""),
        "" if row["median"] is None else form(row["median"]),
        *("" if one is None else f"{form(one.low)} to {form(one.high)}" for one in ends),
        "" if row["measured"] is None else form(row["measured"]),
        f"{forecast_scores.transform([row])[0]:.2f}" if has_place else "",
        "" if is_scored else _remark(row),
    )  # fmt: skip


def _remark(row: Row) -> str:
    """Why a prediction is not scored."""
    return row["reason"] or STATES[row["state"]]
