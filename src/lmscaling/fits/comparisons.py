"""Gaps, multipliers and crossings of every two attentions as rows of tables.

Every pair is compared in both orders, because an attention is compared at losses of its own curve.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from duckdb import DuckDBPyConnection
from scipy.stats import binomtest

from lmscaling.fits import crossing, gaps, multiplier
from lmscaling.fits.multiplier import Pair
from lmscaling.fits.noise import Spread, holm
from lmscaling.fits.rows import Row, number, numbers
from lmscaling.fits.uncertainty import LEVEL, Interval

PAIR = ("source", "attention", "reference", "size", "context", "seeds")
IS_BASELINE, ATTENTION = 4, 5
"""Their places in the rows of both queries."""


def compute(db: DuckDBPyConnection) -> dict[str, list[Row]]:
    """The rows of each table of pairs in a store."""
    return tables(*(db.sql(each.QUERY).fetchall() for each in (gaps, multiplier)))


def tables(losses: list[tuple], paths: list[tuple]) -> dict[str, list[Row]]:
    """The rows of each table of pairs, from those of ``gaps.QUERY`` and ``multiplier.QUERY``."""
    baselines = {(row[0], row[ATTENTION]) for row in (*losses, *paths) if row[IS_BASELINE]}
    rows_of: dict[str, list[Row]] = {}
    for in_order in (True, False):
        pairs = multiplier.compare(paths if in_order else _turned(paths))
        found = {
            "gaps": map(_gap, gaps.compare(losses if in_order else _turned(losses))),
            "multipliers": map(_multiplier, pairs),
            "multiplier_levels": (row for pair in pairs for row in _levels(pair)),
            "loss_crossings": _crossings(pairs),
            "curve_gaps": curve_gaps(pairs) if in_order else (),
        }
        for name, rows in found.items():
            rows_of.setdefault(name, []).extend(
                row
                | {"in_order": in_order}
                | {"with_baseline": (row["source"], row["reference"]) in baselines}
                for row in rows
            )
    return rows_of


def _turned(rows: Sequence[tuple]) -> list[tuple]:
    """The rows with the attentions in the opposite order."""
    order = list(dict.fromkeys(row[ATTENTION] for row in rows))
    return sorted(rows, key=lambda row: -order.index(row[ATTENTION]))


def _pair(one: Pair | gaps.Gap) -> Row:
    return {name: getattr(one, name) for name in PAIR}


def _scatter(spread: Spread | None) -> Row:
    if spread is None:
        return {}
    return {"sd": spread.sd, "sd_of": spread.said, "basis": spread.basis, "degrees": spread.degrees}


def _gap(gap: gaps.Gap) -> Row:
    return {
        **_pair(gap), "cells": gap.cells, "p": gap.p, "tests": gap.tests, "status": gap.status,
        "why": gaps.STATUSES[gap.status], "needed": gap.needed, "failed": gap.failed,
        "ended": gap.ended, **number("failed_share", gap.failed / gap.ended, _share(gap)),
        **number("gap", gap.gap, gap.interval), **_scatter(gap.spread),
    }  # fmt: skip


def _share(gap: gaps.Gap) -> Interval:
    """Exact binomial interval of the share of runs that fail (Clopper and Pearson 1934)."""
    ends = binomtest(gap.failed, gap.ended).proportion_ci(LEVEL, method="exact")
    return Interval(float(ends.low), float(ends.high))


def curve_gaps(pairs: Iterable[Pair]) -> Iterator[Row]:
    """The gap of each pair with the baseline after equal spending, on each axis."""
    known = [
        (pair, axis, pair.result.ends[axis])
        for pair in pairs
        for axis in pair.axes
        if pair.with_baseline and axis in pair.result.ends
    ]
    order = sorted(known, key=lambda one: (one[0].source, one[1]))
    for _, part in groupby(order, key=lambda one: (one[0].source, one[1])):
        tested = list(part)
        p = holm([end.spread.p_value(end.gap) for *_, end in tested]).tolist()
        for (pair, axis, end), corrected in zip(tested, p, strict=True):
            yield {
                **_pair(pair), "axis": axis, "spent": end.spent, "p": corrected,
                "tests": len(tested), "status": pair.result.status,
                "why": multiplier.STATUSES[pair.result.status],
                **number("gap", end.gap, end.spread.interval(end.gap)), **_scatter(end.spread),
            }  # fmt: skip


def _multiplier(pair: Pair) -> Row:
    """The level of the lowest loss, if there is one."""
    why = {"status": pair.result.status, "why": multiplier.STATUSES[pair.result.status]}
    lowest = list(_levels(pair))[-1:]
    return (lowest[0] if lowest else _pair(pair)) | why


def _levels(pair: Pair) -> Iterator[Row]:
    for level in pair.result.levels:
        ratios = {axis: getattr(level, axis) for axis in pair.axes}
        yield {
            **_pair(pair), "loss": level.loss, "speed": level.speed,
            **numbers(ratios, level.intervals), **_scatter(level.spread),
        }  # fmt: skip


def _crossings(pairs: Iterable[Pair]) -> Iterator[Row]:
    shown = [
        (pair, axis, pair.result.crossings[axis])
        for pair in pairs
        for axis in pair.axes
        if axis in pair.result.crossings
    ]
    corrected = holm([float("nan") if one.p is None else one.p for *_, one in shown]).tolist()
    for (pair, axis, one), p in zip(shown, corrected, strict=True):
        first, last = one.observed or (None, None)
        at = one.points[-1] if one.points else None
        ahead = {"other": pair.attention, "reference": pair.reference}.get(one.ahead or "")
        why = crossing.STATUSES[one.status]
        if len(one.points) > 1:
            why += f" {len(one.points)} times"
        if one.status == "crossed" and not p < 1 - LEVEL:
            why += f" ({'too few seeds' if one.p is None else 'corrected for all rows, not sure'})"
        yield {
            **_pair(pair), "axis": axis, "ahead": ahead, "first": first, "last": last, "p": p,
            "times": len(one.points), "status": one.status, "why": why,
            **(number("crossing", at.at, at.interval) if at else {}),
        }  # fmt: skip
