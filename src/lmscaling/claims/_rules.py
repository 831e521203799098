"""Rules for claims about times. A rule gives None where rows that it needs are missing."""

from collections.abc import Iterable, Mapping

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import (
    Judgement,
    inside,
    overall,
    places,
    points,
    series,
    spread,
    untested,
)
from lmscaling.fits import slopes as regression
from lmscaling.fits.uncertainty import LEVEL, Interval

MODERATE = 8192
"""Tokens. The logarithmic midpoint of the training contexts of the post, 1,024 to 65,536."""

SETTLED = 0.32
"""Slope of ln(ratio) against ln(context): a quarter more with every doubling."""


def _decided(
    verdict: bool | str,
    number: float,
    values: Iterable[float],
    rows: DataFrame,
    why: str,
    scope: str = "",
) -> Judgement:
    """A judgement whose range is that of the values."""
    if not isinstance(verdict, str):
        verdict = "holds" if verdict else "fails"
    return Judgement(verdict=verdict, number=float(number), interval=spread(values),
                     rests_on=points(rows), why=why, scope=scope)  # fmt: skip


def orders(rows: DataFrame, threshold: float, claimed: int) -> Judgement:
    """All ratios are ``10 ** claimed`` within ``threshold`` orders of magnitude."""
    off = (np.log10(rows.ratio) - claimed).abs()
    outside, first = rows.loc[off > threshold], rows.iloc[0]
    why = f"{first.baseline} takes {rows.ratio.min():.1f} to {rows.ratio.max():.1f} times as long"
    why += f" as {first.challenger}"
    why += f"; not about {10**claimed} at {places(outside)}." if len(outside) else "."
    return _decided(outside.empty, rows.ratio[off.idxmax()], rows.ratio, rows, why)


def settled_orders(rows: DataFrame, threshold: float, claimed: int) -> Judgement:
    """The ratios at the longest contexts are ``10 ** claimed``, and change no more."""
    last = rows.merge(_last_slopes(rows, ["sweep", "size"], "ratio", MODERATE))
    if last.empty:
        return untested(f"Both were timed only up to {rows.context.max():,} tokens.")
    moving = last.loc[last.slope.abs() > SETTLED]
    if len(moving):
        growth = 2**moving.slope
        return untested(
            f"The ratio has not settled: {last.ratio.min():.1f} to {last.ratio.max():.1f} at the "
            f"longest common contexts, {growth.min():.1f} to {growth.max():.1f} times that of half "
            f"the context at {', '.join(points(moving))}."
        )
    return orders(last, threshold, claimed)


def always_faster(rows: DataFrame, threshold: float, short: int) -> Judgement:
    """All ratios are above the threshold, at contexts from ``short`` tokens on."""
    slower = rows.loc[rows.ratio <= threshold]
    shortest = rows.groupby("size", sort=False).context.min()
    verdict, why = "holds", f"Faster at all {len(rows)} points: {places(rows)}."
    if len(slower):
        verdict = "fails"
        why = f"Not faster at {len(slower)} of {len(rows)} points: {places(slower)}."
    elif late := shortest[shortest > short].index.tolist():
        verdict = "not tested"
        why = f"Faster at all {len(rows)} points, but {', '.join(late)} was not timed at "
        why += f"{short:,} tokens or fewer."
    return _decided(verdict, rows.ratio.min(), rows.ratio, rows, why)


def never_slower(rows: DataFrame, threshold: float) -> Judgement:
    """No ratio of times is above the threshold."""
    slower, worst = rows.loc[rows.ratio > threshold], rows.loc[rows.ratio.idxmax()]
    why = f"At most as long at all {len(rows)} points: {places(rows)}."
    if len(slower):
        why = (
            f"Slower at {len(slower)} of {len(rows)} points: {places(slower)}; takes up to "
            f"{worst.ratio:.2f} times as long as {worst.fastest}."
        )
    return _decided(slower.empty, worst.ratio, rows.ratio, rows, why)


def much_longer(rows: DataFrame, threshold: float, said: str) -> Judgement:
    """All ratios are at least the threshold; ``said`` is what is as many times as long."""
    close = rows.loc[rows.ratio < threshold]
    why = f"{said} {rows.ratio.min():.1f} to {rows.ratio.max():.1f} times as long"
    why += f"; less than {threshold:g} at {places(close)}." if len(close) else "."
    return _decided(close.empty, rows.ratio.min(), rows.ratio, rows, why)


def mostly_fastest(rows: DataFrame, threshold: float, fewest: int) -> Judgement | None:
    """The share of the points that a form wins is above the threshold."""
    if rows.compared.sum() < fewest:
        return None
    others = ", ".join(points(rows.loc[~rows.fastest.astype(bool)])) or "no point"
    share = rows.fastest.mean()
    return _decided(
        share > threshold, share, rows.groupby("size").fastest.mean(), rows,
        f"Fastest at {rows.fastest.sum()} of {len(rows)} points; another form is at {others}.",
    )  # fmt: skip


def best_chunk(rows: DataFrame, threshold: float, claimed: int) -> Judgement | None:
    """The time with the claimed chunk is the least, where smaller and larger ones were timed."""
    tuned = rows.groupby(["sweep", "attention", "implementation", "batch", "context"]).filter(
        lambda part: part.chunk.min() < claimed < part.chunk.max() and claimed in {*part.chunk}
    )
    if tuned.empty:
        return None
    ratios = tuned.ratio[tuned.chunk == claimed]
    best = sorted({int(chunk) for chunk in tuned.chunk[tuned.ratio == 1]})
    return _decided(
        ratios.max() <= threshold, ratios.max(), ratios, tuned,
        f"The fastest chunk size is {' or '.join(map(str, best))} tokens; chunks of {claimed} "
        f"take at most {ratios.max():.3f} times as long.",
    )  # fmt: skip


def reaches(
    rows: DataFrame, threshold: float, claimed: Mapping[int, float], long: int = 0
) -> Judgement | None:
    """The largest ratio around each context is that share of the claimed one; contexts reach at
    least ``long`` tokens."""
    if rows.context.max() < long:
        return None
    around = rows.context.map(lambda c: min(claimed, key=lambda each: abs(np.log(c / each))))
    verdicts, parts = [], []
    for context, times in claimed.items():
        part = rows[around == context]
        if part.empty:
            verdicts.append("not tested")
            parts.append(f"no step was timed near {context:,} tokens")
            continue
        best = part.loc[part.ratio.idxmax()]
        verdicts.append("holds" if best.ratio >= threshold * times else "fails")
        parts.append(
            f"{times} times was claimed at {context:,} tokens, the largest measured speed-up is "
            f"{best.ratio:.1f} ({best['size']} at {best.context:,})"
        )
    last = rows.ratio[around == around.max()]
    return _decided(overall(verdicts), last.max(), last, rows, f"{'; '.join(parts)}.")


def proves(rows: DataFrame, threshold: float) -> Judgement:
    """The largest ratio over a faster baseline than that of the claim, which refutes nothing."""
    best = rows.loc[rows.ratio.idxmax()]
    where = f"{best.ratio:,.0f} times as fast ({best['size']} at {best.context:,})"
    if best.ratio < threshold:
        return untested(
            f"{{baseline}} was timed with a cache only, which the source did not have; over it "
            f"{{candidate}} is at most {where}."
        )
    why = f"Even over a cache {{candidate}} is {where}."
    return _decided(True, best.ratio, rows.ratio, rows, why)


def exceeds(rows: DataFrame, threshold: float) -> Judgement:
    """One speed-up exceeds another at the longest contexts."""
    longest = rows.loc[rows.groupby(["sweep", "size"], sort=False).context.idxmax()]
    judged = longest[longest.context >= MODERATE]
    if judged.empty:
        return untested(f"All three were timed only up to {longest.context.max():,} tokens.")
    parts = [
        f"{row['size']} {row['chunked_gain']:.2f} compared with {row['flash_gain']:.2f} times at "
        f"{row['context']:,} tokens"
        for row in judged.to_dict("records")
    ]
    return _decided(
        judged.ratio.min() > threshold, judged.ratio.min(), judged.ratio, rows,
        f"Speed-ups of {'; '.join(parts)}. Softmax without FlashAttention was not timed at "
        "longer contexts.", f"to {judged.context.max():,}",
    )  # fmt: skip


def ratio_grows(rows: DataFrame, threshold: float) -> Judgement | None:
    """The slopes of ratios at the longest contexts are at least the threshold."""
    slopes = _last_slopes(rows, ["sweep", "size"], "ratio", MODERATE)
    if slopes.empty:
        return None
    parts = [
        f"{row['size']} {row['slope']:.2f} to {row['ratio']:.1f} times as fast at "
        f"{row['context']:,} tokens"
        for row in rows.merge(slopes).to_dict("records")
    ]
    least = slopes.slope.min()
    why = f"Slopes: {'; '.join(parts)}."
    return _decided(least >= threshold, least, slopes.slope, rows, why)


def slopes_near(
    rows: DataFrame, threshold: float, by: list[str], shortest: int, claimed: list[int]
) -> Judgement | None:
    """The slopes of times at the longest contexts are the expected ones, among them all that are
    claimed. A series reaches a context of at least ``shortest``."""
    slopes = _last_slopes(rows, [*by, "expected"], "seconds", shortest)
    if {*slopes.expected} != {*claimed}:
        return None
    off = (slopes.slope - slopes.expected).abs()
    outside = slopes.loc[off > threshold]
    parts = [
        f"{name} {part.slope.min():.2f} to {part.slope.max():.2f}"
        for name, part in slopes.groupby("method", sort=False)
    ]
    why = f"Slopes over the last two contexts: {', '.join(parts)}"
    farther = f"; farther than {threshold:g} from the claim: {places(outside)}."
    why += "." if outside.empty else farther
    return _decided(outside.empty, slopes.slope[off.idxmax()], slopes.slope, slopes, why)


def _last_slopes(rows: DataFrame, by: list[str], value: str, shortest: int) -> DataFrame:
    """Slope of ln(value) against ln(context) between the two longest contexts of every series that
    reaches a context of at least ``shortest``: one row for each, with ``context`` and ``slope``."""
    found = []
    for names, part in series(rows, by):
        last = part.sort_values("context").tail(2)
        if len(last) == 2 and last.context.iloc[-1] >= shortest:
            x, y = np.log(last[["context", value]].to_numpy(float)).T
            slope = float((y[1] - y[0]) / (x[1] - x[0]))
            found.append((*names, int(last.context.iloc[-1]), slope))
    return DataFrame(found, columns=[*by, "context", "slope"])


def exponents(rows: DataFrame, threshold: float, long: int, claimed: list[int]) -> Judgement | None:
    """The exponents of time and memory in the length are the expected ones, among them all that are
    claimed, up to ``long`` tokens."""
    found = [
        (expected, f"{method} {value}", fitted)
        for (method, expected, *_), part in series(rows, ["method", "expected", "sweep", "size"])
        for value in ("seconds", "bytes")
        if part.context.max() >= long and (fitted := regression.exponent(part.context, part[value]))
    ]
    if {expected for expected, *_ in found} != {*claimed}:
        return None
    verdict = overall(
        inside(interval, expected - threshold, expected + threshold)
        for expected, _, (_, interval) in found
    )
    _, _, (slope, interval) = max(found, key=lambda each: abs(each[2][0] - each[0]))
    told = ", ".join(
        f"{name} {slope:.2f} ({one.low:.2f} to {one.high:.2f})" for _, name, (slope, one) in found
    )
    return Judgement(
        verdict=verdict, number=slope, interval=interval, rests_on=points(rows),
        why=f"Slopes over the longest three octaves: {told}.",
    )  # fmt: skip


def constant_and_growing(rows: DataFrame, threshold: float, span: int) -> Judgement | None:
    """Slopes of the candidate are 0 within the threshold, those of the baseline are above it, over
    contexts that span this factor."""
    by = ["sweep", "size", "batch", "role"]
    parts = rows.groupby(by, sort=False).filter(
        lambda part: part.context.nunique() > 2 and part.context.max() >= span * part.context.min()
    )
    if parts.role.nunique() < 2:
        return None
    of_each = series(parts, by)
    verdicts, slopes = [], {"candidate": [], "baseline": []}
    for (_, size, batch, role), part in of_each:
        x, y = np.log(part.context), np.log(part.seconds)
        bounds = (-threshold, threshold) if role == "candidate" else (threshold, np.inf)
        slope, interval = regression.line(x, y)
        verdict = inside(interval, *bounds)
        if verdict == "fails":  # one of many: significant after a correction for their number
            interval = regression.line(x, y, 1 - (1 - LEVEL) / len(of_each))[1]
            verdict = inside(interval, *bounds)
        verdicts.append(verdict)
        slopes[role].append((slope, f"{size} with {batch} sequence{'s' if batch > 1 else ''}"))
    number, name = max(slopes["candidate"], key=lambda item: abs(item[0]))
    baseline = [value for value, _ in slopes["baseline"]]
    return _decided(
        overall(verdicts), number, (value for value, _ in slopes["candidate"]), rows,
        f"Slopes of {{candidate}} are at most {abs(number):.3f} ({name}; threshold "
        f"{threshold:g}), those of {{baseline}} {min(baseline):.2f} to {max(baseline):.2f}.",
    )  # fmt: skip


def crossings(rows: DataFrame, threshold: float, claimed: Mapping[str, int]) -> Judgement:
    """The challenger overtakes each baseline within a factor of the claimed context.

    ``rows`` are of the view ``crossings``. The number is the first baseline's crossing.
    """
    found = {row["baseline"]: row for row in rows.to_dict("records")}
    verdicts, parts = [], []
    for baseline, context in claimed.items():
        row = found.get(baseline)
        verdicts.append("not tested" if row is None else _crossed(row, context, threshold))
        parts.append(f"{baseline} was not timed" if row is None else _said(row, context))
    first = found.get(next(iter(claimed)))
    number = interval = None
    if first is not None and first["context"] == first["context"]:  # NaN: no crossing
        number = float(first["context"])
        interval = Interval(float(first["low"]), float(first["high"]))
    return Judgement(
        verdict=overall(verdicts), number=number, interval=interval, why=f"{'; '.join(parts)}.",
        rests_on=tuple(
            f"{row['size']} and {row['baseline']}, {row['shortest']:,} to {row['longest']:,}"
            for row in found.values()
        ),
    )  # fmt: skip


def _crossed(row: dict, claimed: int, factor: float) -> str:
    low, high = claimed / factor, claimed * factor
    if row["status"] in ("from", "several"):
        return "holds" if low <= row["context"] <= high else "fails"
    if row["status"] == "never":
        return "fails" if row["longest"] >= high else "not tested"
    # Faster at all timed contexts: this contradicts the claim only if shorter ones were timed.
    return "fails" if row["status"] == "until" or row["shortest"] <= low else "not tested"


def _said(row: dict, claimed: int) -> str:
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
