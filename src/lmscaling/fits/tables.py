"""Every number that is fitted to the losses of a study, as rows of tables.

One table for each law, the gaps of every two attentions, their multipliers, and the losses at the
ends of runs and cells. Columns ``<name>_low`` and ``<name>_high`` are the ends of the 95 % interval
of ``<name>``, NaN where an end is open. ``assumed_sd`` is NaN for such an interval; where no seeds
were measured it is the standard deviation between seeds, in nats, that the range assumes, and the
range is no confidence interval. ``status`` names the outcome of a fit, and ``why`` says it in
words.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from duckdb import DuckDBPyConnection
from pandas import DataFrame

from lmscaling.fits import (
    context_law,
    ends,
    gaps,
    isotime,
    loss_surface,
    lr_optimum,
    multiplier,
    points,
    power_law,
)
from lmscaling.fits.uncertainty import Interval

Row = dict[str, Any]

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
        known |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        known["assumed_sd"] = interval.assumed
    return {key: math.nan if x is None else x for key, x in known.items()}


def _numbers(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> Row:
    parts = (number(name, value, intervals.get(name)) for name, value in values.items())
    return {key: value for part in parts for key, value in part.items()}


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


def multipliers(db: DuckDBPyConnection, reference: str) -> DataFrame:
    """The multipliers of all pairs of attentions, each as often as possible over ``reference``; the
    columns are those of ``Study.multiplier``."""
    rows = _reference_first(db.sql(multiplier.QUERY).fetchall(), reference)
    numbers = [name for axis in multiplier.AXES for name in names(axis)]
    columns = ["source", "attention", "reference", "size", "context", "seeds", "status", "why",
               "loss", *numbers, "speed", "assumed_sd", "result"]  # fmt: skip
    return DataFrame(map(_multiplier, multiplier.compare(rows)), columns=columns)


def loss_gaps(db: DuckDBPyConnection, reference: str) -> DataFrame:
    """The gaps of all pairs of attentions, each as often as possible to ``reference``; the columns
    are those of ``Study.gap``."""
    rows = _reference_first(db.sql(gaps.QUERY).fetchall(), reference)
    columns = ["source", "attention", "reference", "size", "context", "cells", "seeds",
               *names("gap"), "p", "status", "why", "needed", "assumed_sd"]  # fmt: skip
    table = DataFrame(map(_gap, gaps.compare(rows)), columns=columns)
    return table.astype({"context": "Int64", "needed": "Int64"})


def law(db: DuckDBPyConnection, name: str) -> DataFrame:
    """The fits of one of ``LAWS``, a row for each; its columns are those of ``Study.fit``."""
    columns, rows_of = LAWS[name]
    return DataFrame(rows_of(db), columns=columns)


def _reference_first(rows: list[tuple], reference: str) -> list[tuple]:
    """Of two attentions the first is the reference; the place of the name in a row is 5."""
    return sorted(rows, key=lambda row: row[5] != reference)


def _multiplier(pair: multiplier.Pair) -> Row:
    row = {
        "source": pair.source, "attention": pair.attention, "reference": pair.reference,
        "size": pair.size, "context": pair.context, "seeds": pair.seeds,
        "status": pair.result.status, "why": multiplier.STATUSES[pair.result.status],
        "result": pair.result,
    }  # fmt: skip
    if not pair.result.levels:
        return row
    last = pair.result.levels[-1]
    ratios = {axis: getattr(last, axis) for axis in pair.axes}
    return row | {"loss": last.loss, "speed": last.speed} | _numbers(ratios, last.intervals)


def _gap(gap: gaps.Gap) -> Row:
    return {
        "source": gap.source, "attention": gap.attention, "reference": gap.reference,
        "size": gap.size, "context": gap.context, "cells": gap.cells, "seeds": gap.seeds,
        "p": gap.p, "status": gap.status, "why": gaps.STATUSES[gap.status], "needed": gap.needed,
    } | number("gap", gap.gap, gap.interval)  # fmt: skip


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
                "result": law,
            }  # fmt: skip


def _best_sizes(db: DuckDBPyConnection) -> Iterator[Row]:
    groups = _groups(db, "attention", "context")
    for key, law in isotime.fit_groups(groups).items():
        head = dict(zip(("source", "schedule", "attention", "context"), key, strict=True))
        power = {"law_status": law.status, **number("p", law.p, law.interval)}
        unit = groups[key].unit
        if not law.optima:
            yield {**head, "unit": unit, "status": law.status, "why": isotime.STATUSES[law.status],
                   **power, "result": law}  # fmt: skip
        for budget, best in law.optima.items():
            why = isotime.optimum.STATUSES[best.status]
            yield {**head, "budget": budget, "unit": unit, "status": best.status, "why": why,
                   **power, **number("best", best.at, best.interval), "result": law}  # fmt: skip


def _best_contexts(db: DuckDBPyConnection) -> Iterator[Row]:
    names = ("source", "schedule", "attention", "size")
    for key, best in context_law.fit_groups(_groups(db, "attention", "size")).items():
        yield {
            **dict(zip(names, key, strict=True)), "status": best.status,
            "why": context_law.STATUSES[best.status], **number("best", best.at, best.interval),
            "result": best,
        }  # fmt: skip


def _rates(db: DuckDBPyConnection) -> Iterator[Row]:
    for group in lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall()):
        best = group.optimum
        yield {
            "source": "measured", "attention": group.attention, "size": group.size,
            "context": group.context, "tried": best.tried, "status": best.status,
            "why": lr_optimum.STATUSES[best.status], **number("rate", group.rate, group.interval),
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
         *names("E"), "k", *names("gamma"), "assumed_sd", "result"],
        _time_laws,
    ),
    "size": (
        ["source", "schedule", "attention", "context", "budget", "unit", "status", "why",
         *names("best"), "law_status", *names("p"), "assumed_sd", "result"],
        _best_sizes,
    ),
    "context": (
        ["source", "schedule", "attention", "size", "status", "why", *names("best"), "assumed_sd",
         "result"],
        _best_contexts,
    ),
    "rate": (
        ["source", "attention", "size", "context", "tried", "status", "why", *names("rate"),
         "assumed_sd", "gain", "result"],
        _rates,
    ),
}  # fmt: skip
"""The columns of each law, and what computes its rows."""
