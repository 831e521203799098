"""Every number that is fitted to the losses of a study, as rows of tables.

One table for each law, the gaps of every two attentions, their multipliers and crossings, and the
losses at the ends of runs and cells. Columns ``<name>_low`` and ``<name>_high`` are the ends of the
95 % interval of ``<name>``: infinite where an end is open, NaN where there is no interval.
``assumed_sd`` is NaN for such an interval; where no seeds were measured it is the standard
deviation between seeds, in nats, that the range assumes, and the range is no confidence interval.
``status`` names the outcome of a fit, and ``why`` says it in words.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from duckdb import DuckDBPyConnection
from pandas import DataFrame

from lmscaling.fits import (
    context_law,
    crossing,
    ends,
    gaps,
    isotime,
    loss_surface,
    lr_optimum,
    multiplier,
    points,
    power_law,
)
from lmscaling.fits.multiplier import Pair
from lmscaling.fits.noise import Spread, holm
from lmscaling.fits.optimum import Optimum
from lmscaling.fits.paired_losses import Short
from lmscaling.fits.uncertainty import LEVEL, Interval

Row = dict[str, Any]

PAIR = ("source", "attention", "reference", "size", "context")
"""What is compared."""

COUNTS = """
    SELECT source, attention, size, min(params) AS params, context, count(*)::INTEGER AS planned,
        (count(*) FILTER (status NOT IN ('pending', 'skipped')))::INTEGER AS started,
        (count(*) FILTER (status IN ('done', 'out_of_tokens')))::INTEGER AS done,
        (count(*) FILTER (status IN ('diverged', 'exploded')))::INTEGER AS failed
    FROM known WHERE branch IS NULL
    GROUP BY source, attention, size, context
    ORDER BY source, attention DESC, min(n_layer * d_model * d_model), size, context
"""
"""Trunks of each cell by status."""

FINAL = f"""
    SELECT k.name, e.*, k.run
    FROM ({ends.QUERY}) e
    JOIN known k USING (source, attention, size, context, seed, lr_scale)
    WHERE k.branch IS NULL
    ORDER BY source, attention DESC, e.params, size, context, seed
"""


def names(number: str) -> list[str]:
    """The columns of a number and its interval."""
    return [number, f"{number}_low", f"{number}_high"]


def number(name: str, value: float | None, interval: Interval | None) -> Row:
    """The cells of a number and its interval; NaN where there is none."""
    known = {name: value}
    if interval is not None:
        low, high = interval.low, interval.high
        known[f"{name}_low"] = -math.inf if low is None else low
        known[f"{name}_high"] = math.inf if high is None else high
        known["assumed_sd"] = known[f"{name}_assumed"] = interval.assumed
    return {key: math.nan if x is None else x for key, x in known.items()}


def _numbers(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> Row:
    parts = [number(name, value, intervals.get(name)) for name, value in values.items()]
    assumed = [sd for part in parts if not math.isnan(sd := part.get("assumed_sd", math.nan))]
    found = {key: value for part in parts for key, value in part.items()}
    return found | {"assumed_sd": assumed[0] if assumed else math.nan}


def cells(db: DuckDBPyConnection) -> DataFrame:
    """One row for each attention, size and context, over seeds and learning rates; its columns are
    those of ``Study.cells``."""
    counts, final = db.sql(COUNTS).df(), db.sql(ends.QUERY).df()
    known, equal = ends.spreads(final), final.loc[ends.is_equal(final)]
    means = equal.groupby(["source", "attention", "size", "context"]).loss.mean().to_dict()
    rows = []
    for row in counts.to_dict("records"):
        cell = row["source"], row["attention"], row["size"], row["context"]
        spread = known.get(cell)
        if spread:
            row |= {"seeds": spread.seeds, "sd": spread.sd, "basis": spread.basis}
            row |= number("loss", float(means[cell]), spread.interval(float(means[cell])))
        rows.append(row)
    more = ["seeds", *names("loss"), "sd", "basis", "assumed_sd"]
    return DataFrame(rows, columns=[*counts.columns, *more]).astype({"seeds": "Int64"})


def final(db: DuckDBPyConnection) -> DataFrame:
    """The loss at the end of each run; its columns are those of ``Study.final``."""
    rows = db.sql(FINAL).df()
    known, counts = ends.spreads(rows), ends.is_equal(rows)
    numbers = []
    for row, counted in zip(rows.to_dict("records"), counts, strict=True):
        spread = known.get((row["source"], row["attention"], row["size"], row["context"]))
        alone = replace(spread, seeds=1).interval(row["loss"]) if counted and spread else None
        numbers.append(number("loss", row["loss"], alone))
    return rows.join(DataFrame(numbers, columns=["loss_low", "loss_high", "assumed_sd"]))


def pairs(db: DuckDBPyConnection, reference: str | None = None) -> list[Pair]:
    """Every two attentions compared; of two, the reference is the named one or the baseline."""
    return multiplier.compare(_reference_first(db.sql(multiplier.QUERY).fetchall(), reference))


def multipliers(compared: Iterable[Pair]) -> DataFrame:
    """The multipliers of pairs of attentions; the columns are those of ``Study.multiplier``, and
    the scatter ``sd`` of a paired gap, nats, with where it comes from, ``sd_of``."""
    numbers = [name for axis in multiplier.AXES for name in names(axis)]
    columns = [*PAIR, "seeds", "status", "why", "loss", *numbers, "speed", "assumed_sd", "sd",
               "sd_of", "result"]  # fmt: skip
    return DataFrame(map(_multiplier, compared), columns=columns)


def crossings(compared: Iterable[Pair]) -> DataFrame:
    """The last crossing of the losses of each pair along each axis.

    ``p`` tests that the gap has one sign throughout, corrected for the number of rows (Holm).
    ``ahead`` has the lower loss at the end, ``first`` to ``last`` was compared, ``times`` counts
    the crossings.
    """
    shown = [
        (pair, axis, pair.result.crossings[axis])
        for pair in compared
        for axis in pair.axes
        if axis in pair.result.crossings
    ]
    corrected = holm([math.nan if one.p is None else one.p for *_, one in shown]).tolist()
    rows = []
    for (pair, axis, one), p in zip(shown, corrected, strict=True):
        first, last = one.observed or (math.nan, math.nan)
        at = one.points[-1] if one.points else None
        ahead = {"other": pair.attention, "reference": pair.reference}.get(one.ahead or "")
        why = crossing.STATUSES[one.status]
        if len(one.points) > 1:
            why += f" {len(one.points)} times"
        if one.status == "crossed" and not p < 1 - LEVEL:
            why += f" ({'too few seeds' if one.p is None else 'corrected for all rows, not sure'})"
        rows.append(
            _pair(pair)
            | {"axis": axis, "ahead": ahead, "first": first, "last": last, "p": p,
               "times": len(one.points), "status": one.status, "why": why}
            | (number("at", at.at, at.interval) if at else {})
        )  # fmt: skip
    columns = [*PAIR, "axis", *names("at"), "times", "ahead", "first", "last", "p", "status", "why",
               "assumed_sd"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def loss_gaps(db: DuckDBPyConnection, reference: str | None = None) -> DataFrame:
    """The gaps of every two attentions; of two, the reference is the named one or the baseline.
    The columns are those of ``Study.gap``, and the scatter ``sd`` of a pair, nats, with where it
    comes from, ``sd_of``."""
    found = gaps.compare(_reference_first(db.sql(gaps.QUERY).fetchall(), reference))
    columns = [*PAIR, "cells", "seeds", *names("gap"), "p", "status", "why", "needed", "assumed_sd",
               "sd", "sd_of"]  # fmt: skip
    table = DataFrame(map(_gap, found), columns=columns)
    return table.astype({"context": "Int64", "needed": "Int64"})


def law(db: DuckDBPyConnection, name: str) -> DataFrame:
    """The fits of one of ``LAWS``, a row for each; its columns are those of ``Study.fit``."""
    columns, rows_of = LAWS[name]
    return DataFrame(rows_of(db), columns=columns)


def _reference_first(rows: list[tuple], reference: str | None) -> list[tuple]:
    """Of two attentions the first is the reference; the place of the name in a row is 5."""
    return rows if reference is None else sorted(rows, key=lambda row: row[5] != reference)


def _pair(one: Pair | gaps.Gap) -> Row:
    return {name: getattr(one, name) for name in PAIR}


def _scatter(spread: Spread) -> Row:
    return {"sd": spread.sd, "sd_of": spread.said}


def _multiplier(pair: Pair) -> Row:
    found = pair.result
    row = _pair(pair) | {
        "seeds": pair.seeds, "status": found.status, "why": multiplier.STATUSES[found.status],
        "result": found,
    }  # fmt: skip
    if not found.levels:
        return row
    last = found.levels[-1]
    ratios = {axis: getattr(last, axis) for axis in pair.axes}
    row |= {"loss": last.loss, "speed": last.speed} | _scatter(last.spread)
    return row | _numbers(ratios, last.intervals)


def _gap(gap: gaps.Gap) -> Row:
    row = _pair(gap) | {
        "cells": gap.cells, "seeds": gap.seeds, "p": gap.p, "status": gap.status,
        "why": gaps.STATUSES[gap.status], "needed": gap.needed,
    }  # fmt: skip
    return row | number("gap", gap.gap, gap.interval) | (_scatter(gap.spread) if gap.spread else {})


def _groups(db: DuckDBPyConnection, *by: str) -> dict[tuple, points.Group]:
    return points.groups(points.read(db.sql(points.QUERY).fetchall()), *by)


def _surfaces(db: DuckDBPyConnection) -> Iterator[Row]:
    names = ("source", "schedule", "attention", "context")
    for key, group in _groups(db, "attention", "context").items():
        law = loss_surface.fit_group(group)
        yield {
            **dict(zip(names, key, strict=True)), "status": law.status,
            "why": loss_surface.STATUSES[law.status], "points": law.points, "runs": law.runs,
            **_numbers(law.values, law.intervals), "result": law,
        }  # fmt: skip


def _time_laws(db: DuckDBPyConnection) -> Iterator[Row]:
    groups = _groups(db, "size", "context")
    for key, fitted in power_law.fit_groups(groups).items():
        head = dict(zip(("source", "schedule", "size", "context"), key, strict=True))
        for attention, law in fitted.laws.items():
            values = {name: getattr(law, name) for name in ("E", "k", "gamma")}
            yield {
                **head, "attention": attention, "unit": groups[key].unit, "status": law.status,
                "why": power_law.STATUSES[law.status], **_numbers(values, law.intervals),
                "losses": groups[key].description, "lack": law.lack, **_without(law.moved),
                "one_E": fitted.p_value, "result": law,
            }  # fmt: skip


def _best_sizes(db: DuckDBPyConnection) -> Iterator[Row]:
    groups = _groups(db, "attention", "context")
    for key, law in isotime.fit_groups(groups).items():
        group = groups[key]
        head = dict(zip(("source", "schedule", "attention", "context"), key, strict=True)) | {
            "unit": group.unit, "losses": group.description, "result": law,
            "law_status": law.status, "law_why": isotime.STATUSES[law.status],
            "law_lack": law.lack, "excluded": _excluded(law, group.unit),
            **number("p", law.p, law.interval),
        }  # fmt: skip
        if not law.optima:
            yield {**head, "status": law.status, "why": isotime.STATUSES[law.status]}
        for budget, best in law.optima.items():
            yield {**head, "budget": budget, **_optimum(best, isotime.optimum.STATUSES)}


def _best_contexts(db: DuckDBPyConnection) -> Iterator[Row]:
    groups = _groups(db, "attention", "size")
    for key, best in context_law.fit_groups(groups).items():
        yield {
            **dict(zip(("source", "schedule", "attention", "size"), key, strict=True)),
            **_optimum(best, context_law.STATUSES), "losses": groups[key].description,
            "lowest": best.lowest, "excluded": _excluded(best, groups[key].unit), "result": best,
        }  # fmt: skip


def _optimum(best: Optimum, statuses: Mapping[str, str]) -> Row:
    return {
        "status": best.status, "why": statuses[best.status], "lack": best.lack,
        **number("best", best.at, best.interval), **_without(best.moved),
    }  # fmt: skip


def _without(moved: tuple[str, float] | None) -> Row:
    """The result without the run that moves it most."""
    return dict(zip(("without", "moved"), moved or (None, None), strict=True))


def _excluded(law: "isotime.IsoTime | Optimum", unit: str) -> str:
    """Runs that were not fitted, and why."""
    shorts: tuple[Short, ...] = law.short
    lines = [f"{run} deviates from its other seeds" for run in law.left_out]
    lines += [f"{run} spent {spent:.3g} of {budget:.3g} {unit}" for run, _, spent, budget in shorts]
    return "; ".join(lines)


def _rates(db: DuckDBPyConnection) -> Iterator[Row]:
    for group in lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall()):
        best = group.optimum
        why = lr_optimum.STATUSES[best.status]
        if best.scale is None and best.lowest_scale is not None and best.tried > 1:
            why += f"; lowest loss at {best.lowest_scale:g} x"
        if best.left_out:
            why += f"; without {best.left_out} deviating runs"
        yield {
            "source": "measured", "attention": group.attention, "size": group.size,
            "context": group.context, "tried": best.tried, "status": best.status, "why": why,
            **number("rate", group.rate, group.interval), "scale": best.scale,
            "gain": best.gain, "result": best,
        }  # fmt: skip


LAWS: dict[str, tuple[list[str], Callable[[DuckDBPyConnection], Iterator[Row]]]] = {
    "surface": (
        ["source", "schedule", "attention", "context", "status", "why", "points", "runs",
         *[name for each in (*loss_surface.PARAMETERS, "g") for name in names(each)], "result"],
        _surfaces,
    ),
    "time": (
        ["source", "schedule", "attention", "size", "context", "status", "why", "unit",
         *names("E"), "k", *names("gamma"), "assumed_sd", "losses", "lack", "without", "moved",
         "one_E", "E_assumed", "gamma_assumed", "result"],
        _time_laws,
    ),
    "size": (
        ["source", "schedule", "attention", "context", "budget", "unit", "status", "why",
         *names("best"), "lack", "without", "moved", "law_status", "law_why", "law_lack",
         *names("p"), "assumed_sd", "best_assumed", "p_assumed", "losses", "excluded", "result"],
        _best_sizes,
    ),
    "context": (
        ["source", "schedule", "attention", "size", "status", "why", *names("best"), "assumed_sd",
         "losses", "lack", "without", "moved", "lowest", "excluded", "result"],
        _best_contexts,
    ),
    "rate": (
        ["source", "attention", "size", "context", "tried", "status", "why", *names("rate"),
         "assumed_sd", "scale", "gain", "result"],
        _rates,
    ),
}  # fmt: skip
"""The columns of each law, and what computes its rows."""
