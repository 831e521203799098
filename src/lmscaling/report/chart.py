"""The curves and the map of gaps, as the data from which ``page.js`` draws them.

Losses and spikes are in ten-thousandths of a nat. Hours and updates are in thousandths of ln of
what a run has spent at its end. Tokens and FLOPs are multiples of updates, so that the same numbers
serve all four axes.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import log
from typing import Any

from lmscaling.report import words
from lmscaling.report.contest import AXES, Cell, Contest, Row
from lmscaling.report.table import format_context

LABELS = {
    "hours": "training time (hours)", "updates": "steps", "tokens": "training tokens",
    "flops": "training compute (FLOPs)",
}  # fmt: skip


def data(contest: Contest, curves: Iterable[Row], names: Iterable[str]) -> dict[str, Any]:
    """The chart of a contest, without axes if there is no curve.

    Args:
        contest: Its cells and gaps.
        curves: Rows of ``contest.CURVES``.
        names: All attentions, the baseline first.

    Returns:
        ``axes`` with their labels, the ``cells`` of the map by context and size with their runs,
        for each axis and candidate the ``gaps`` of all cells, the ``baseline``, and the ``axis``,
        ``candidate`` and ``cell`` that are shown first.
    """
    runs: dict[Cell, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in curves:
        runs[row["size"], row["context"]][row["run"]].append(row)
    places = [(size, context) for context in contest.contexts for size in contest.sizes]
    cells = [_cell(contest, place, runs.get(place, {}), [*names]) for place in places]
    known = {axis for cell in cells for run in cell["runs"] for axis in run["ends"]}
    axes = {axis: label for axis, label in LABELS.items() if axis in known}
    candidate, clearest = contest.clearest or (next(iter(contest.candidates), ""), None)
    drawn = [i for i, cell in enumerate(cells) if cell["runs"]]
    first = places.index(clearest) if clearest in places else -1
    return {
        "axes": axes,
        "names": AXES,
        "baseline": contest.baseline,
        "axis": contest.axis if contest.axis in axes else next(iter(axes), ""),
        "candidate": candidate,
        "cell": first if first in drawn else next(iter(drawn), -1),
        "cells": cells,
        "gaps": _gaps(contest, places),
    }


def _cell(
    contest: Contest, cell: Cell, runs: dict[str, list[Row]], names: list[str]
) -> dict[str, Any]:
    found = [_run(rows) for rows in runs.values()]
    return {
        "title": words.at(cell),
        "size": cell[0],
        "context": format_context(cell[1]),
        "planned": cell in contest.planned,
        "runs": sorted(found, key=lambda run: names.index(run["attention"])),
    }


def _run(rows: list[Row]) -> dict[str, Any]:
    spent = {axis: [row[axis] for row in rows] for axis in AXES}
    ends = {axis: log(values[-1]) for axis, values in spent.items() if None not in values}
    x = {
        axis: [round(1000 * (log(value) - ends[axis])) for value in spent[axis]]
        for axis in ("hours", "updates")
    }
    spikes = [(i, row["spike"]) for i, row in enumerate(rows) if row["spike"] is not None]
    return {
        "attention": rows[0]["attention"],
        "ends": {axis: round(end, 5) for axis, end in ends.items()},
        **x,
        "loss": [round(10_000 * row["loss"]) for row in rows],
        "spikes": [(i, round(10_000 * height)) for i, height in spikes],
    }


def _gaps(contest: Contest, places: list[Cell]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Of each axis, candidate and cell: the gap as a text, who leads and how strong its colour is
    (percent), ln of what both have spent, and what is said to a screen reader; no text without a
    pair of runs."""
    edges = [edge for of in contest.edges.values() for own in of.values() for edge in own.values()]
    most = max((abs(edge.gap) for edge in edges), default=0.0) or 1.0

    def gap(axis: str, candidate: str, cell: Cell) -> dict[str, Any]:
        edge = contest.edges[axis].get(candidate, {}).get(cell)
        if edge is None:
            return {"text": "", "said": contest.why.get((candidate, cell), "not run"), "leader": ""}
        leaders = {"ahead": candidate, "behind": contest.baseline}
        return {
            "text": words.signed(edge.gap, words.digits(edge)),
            "said": f"{candidate} {edge.side}, {words.gap(edge)}",
            "leader": leaders.get(edge.side, ""),
            "share": round(12 + 38 * abs(edge.gap) / most),
            "spent": edge.spent and log(edge.spent),
        }

    return {
        axis: {name: [gap(axis, name, cell) for cell in places] for name in contest.candidates}
        for axis in contest.edges
    }
