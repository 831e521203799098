"""Ratios of times that several claims are judged by."""

from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, places, points, spread, untested
from lmscaling.fits.uncertainty import Interval


def ratios(candidate: str, baseline: str) -> str:
    """Query of how many times as fast a step is with one method as with another: names in quotes,
    or roles."""
    return f"""
    SELECT source, setup, sweep, size, params, context, fused, ratio
    FROM speed_ratios
    WHERE kind = 'time_step' AND challenger = {candidate} AND baseline = {baseline}
    ORDER BY source, setup, params, size, sweep, context
"""


def orders(rows: DataFrame, claimed: int, threshold: float, first: str, second: str) -> Judgement:
    """Whether all ratios are about ``10 ** claimed``: within ``threshold`` orders of magnitude."""
    if rows.empty:
        return untested(f"No step was timed with both {first} and {second}.")
    off = (np.log10(rows.ratio) - claimed).abs()
    outside = rows.loc[off > threshold]
    why = (
        f"{second} takes {rows.ratio.min():.1f} to {rows.ratio.max():.1f} times as long as {first}"
    )
    return Judgement(
        verdict="fails" if len(outside) else "holds",
        number=float(rows.ratio[off.idxmax()]),
        interval=spread(rows.ratio),
        rests_on=points(rows),
        why=f"{why}; not about {10**claimed} at {places(outside)}." if len(outside) else f"{why}.",
    )


def last_slopes(rows: DataFrame, by: list[str], value: str, shortest: int) -> DataFrame:
    """Slope of ln(value) against ln(context) between the two longest contexts of every series that
    reaches a context of at least ``shortest``: one row for each, with ``context`` and ``slope``."""
    found: list[dict[str, Any]] = []
    series: list[tuple[Any, DataFrame]] = list(rows.groupby(by, sort=False))
    for names, part in series:
        last = part.sort_values("context").tail(2)
        if len(last) == 2 and last.context.iloc[-1] >= shortest:
            x, y = (np.log(last[name].to_numpy(float)) for name in ("context", value))
            slope = float((y[1] - y[0]) / (x[1] - x[0]))
            found.append(
                dict(zip(by, names, strict=True))
                | {"context": int(last.context.iloc[-1]), "slope": slope}
            )
    return DataFrame(found, columns=[*by, "context", "slope"])


def near(slopes: DataFrame, threshold: float) -> Judgement:
    """Whether all slopes are within a threshold of those in the column ``expected``."""
    off = (slopes.slope - slopes.expected).abs()
    outside = slopes.loc[off > threshold]
    parts = [
        f"{name} {part.slope.min():.2f} to {part.slope.max():.2f}"
        for name, part in slopes.groupby("method", sort=False)
    ]
    why = f"Slopes over the last two contexts: {', '.join(parts)}"
    return Judgement(
        verdict=overall("fails" if bad else "holds" for bad in off > threshold),
        number=float(slopes.slope[off.idxmax()]),
        interval=spread(slopes.slope),
        rests_on=points(slopes),
        why=f"{why}; farther than {threshold:g} from the claim: {places(outside)}."
        if len(outside)
        else f"{why}.",
    )


def crossings(rows: DataFrame, claimed: dict[str, int], factor: float) -> Judgement:
    """Whether the state form overtakes each baseline within a factor of the claimed context.

    ``rows`` are of the view ``crossings``. The number is the first baseline's crossing.
    """
    found = {row["baseline"]: row for row in rows.to_dict("records")}
    verdicts, parts = [], []
    for baseline, context in claimed.items():
        row = found.get(baseline)
        verdicts.append("not tested" if row is None else _crossing_verdict(row, context, factor))
        parts.append(
            f"{baseline} was not timed" if row is None else _describe_crossing(row, context)
        )
    first = found.get(next(iter(claimed)))
    crossed = first is not None and first["context"] == first["context"]  # NaN: no crossing
    return Judgement(
        verdict=overall(verdicts),
        number=float(first["context"]) if first and crossed else None,
        interval=Interval(float(first["low"]), float(first["high"])) if first and crossed else None,
        rests_on=tuple(
            f"{row['size']} and {row['baseline']}, {row['shortest']:,} to {row['longest']:,}"
            for row in found.values()
        ),
        why=f"{'; '.join(parts)}.",
    )


def _crossing_verdict(row: dict, claimed: int, factor: float) -> str:
    low, high = claimed / factor, claimed * factor
    if row["status"] in ("from", "several"):
        return "holds" if low <= row["context"] <= high else "fails"
    if row["status"] == "never":
        return "fails" if row["longest"] >= high else "not tested"
    # Faster at all timed contexts: this contradicts the claim only if shorter ones were timed.
    return "fails" if row["status"] == "until" or row["shortest"] <= low else "not tested"


def _describe_crossing(row: dict, claimed: int) -> str:
    baseline, claimed_at = row["baseline"], f"(claimed: {claimed:,})"
    if row["status"] == "until":
        return f"faster than {baseline} up to {row['context']:,.0f} tokens only {claimed_at}"
    if row["context"] == row["context"]:
        return f"faster than {baseline} from {row['context']:,.0f} tokens on {claimed_at}"
    if row["status"] == "never":
        return (
            f"not faster than {baseline} up to {row['longest']:,} tokens {claimed_at}, with a "
            f"speed ratio of at most {row['most_ratio']:.2f}"
        )
    return f"faster than {baseline} at all contexts from {row['shortest']:,} tokens {claimed_at}"
