"""Panels of the figures of laws: notes above a panel, intervals and optima.

Where a law has no result, the panel states the reason instead of staying empty.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from pandas import DataFrame

from lmscaling.figures.shared import style
from lmscaling.fits.points import QUERY_OF, describe
from lmscaling.fits.rows import Row, interval_of
from lmscaling.fits.uncertainty import Interval

MOST_CONTEXTS = 4
"""Rows or columns that fit on a page."""
UNEQUAL = 0.05
"""Relative difference between what a run spent and its budget from which a point is hollow."""
BUDGETS = {
    "hours": "Training time (hours)", "updates": "Budget (steps)", "flops": "Compute (FLOPs)",
}  # fmt: skip
"""Labels of axes by the unit of budgets."""

SIZED = QUERY_OF.format(
    view="""
    (FROM drawn_points WHERE attention IN (
        SELECT attention FROM drawn_points GROUP BY ALL HAVING count(DISTINCT size) > 1
    ))
"""
)
"""The points of attentions of several sizes: nothing about sizes follows from one."""


def fullest(rows: DataFrame, *by: str) -> DataFrame:
    """The points that a panel shows, which has room for one schedule: of those that agree in ``by``
    the schedule with the most points, of two with equally many the decayed one."""
    points = rows.groupby([*by, "schedule"]).loss.transform("size")
    order = rows.assign(points=points, decayed=rows.schedule == "decayed")
    best = order.sort_values(["points", "decayed"], kind="stable").groupby(list(by)).tail(1)
    return rows.merge(best[[*by, "schedule"]])


def fitted(db: DuckDBPyConnection, table: str, shown: DataFrame, *by: str) -> DataFrame:
    """The rows of a table of laws that were fitted to the shown points."""
    keys = shown[["source", "schedule", *by]].drop_duplicates()
    return keys.merge(db.table(table).df())


def widest_contexts(rows: DataFrame) -> list[int]:
    """The contexts with the largest number of trained sizes."""
    sizes = rows.groupby("context")["size"].nunique().to_dict()
    most = max(sizes.values())
    return style.spread([context for context in sizes if sizes[context] == most], MOST_CONTEXTS)


def panel_note(axes: Axes, text: str, width: int = 30) -> None:
    """Write a note above a panel, where it covers no data."""
    if text:
        wrapped = "\n".join(textwrap.fill(line, width) for line in text.split("\n"))
        axes.set_title(wrapped, fontsize="x-small", color="0.25", loc="left", pad=3)


def title_above_note(axes: Axes, title: str) -> None:
    """Set the centred title of a panel, above its note."""
    note = axes.get_title(loc="left")
    axes.set_title(title + "\n" * (1 + note.count("\n") if note else 0))


def label_grid(panels: NDArray, tops: Iterable[str], sides: Iterable[str], x: str, y: str) -> None:
    """Label the columns of a grid above the notes of its first row, its rows at the right, and the
    axes at its lower and left edges."""
    for top, bottom, title in zip(panels[0], panels[-1], tops, strict=True):
        title_above_note(top, title)
        bottom.set_xlabel(x)
    for row, side in zip(panels, sides, strict=True):
        row[0].set_ylabel(y)
        style.label_row(row[-1], side)


def describe_statuses(
    statuses: Mapping[Any, str], meanings: Mapping[str, str], expected: set[str]
) -> str:
    """One line for each status that is not ``expected``, with the names of its fits."""
    count = Counter(status for status in statuses.values() if status not in expected)
    lines = []
    for status, n in count.items():
        names = [str(name) for name, own in statuses.items() if own == status]
        head = "all" if n == len(statuses) > 1 else ", ".join(names)
        lines.append(f"{head}: {meanings[status]}")
    return "\n".join(lines)


def format_interval(interval: Interval) -> str:
    """``0.41 to 0.47``; an open end is written as ``open``, and a range that is no confidence
    interval says what it assumes."""
    low, high = ("open" if e is None else f"{e:.2f}" for e in (interval.low, interval.high))
    reason = "" if interval.assumed is None else f" if seeds differ by {interval.assumed:.2g}"
    return f"{low} to {high}{reason}"


def draw_interval(
    axes: Axes, x: float, y: float, interval: Interval, colour: str, horizontal: bool
) -> None:
    """Draw an interval through a point, dotted if it assumes a scatter of seeds; an open end
    extends to the edge of the panel.

    The limits of the axes must already be set.
    """
    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    ends = [low if interval.low is None else interval.low]
    ends.append(high if interval.high is None else interval.high)
    place = (ends, [y, y]) if horizontal else ([x, x], ends)
    marker, stroke = "|" if horizontal else "_", "-" if interval.assumed is None else ":"
    axes.plot(
        *place, color=colour, linewidth=1.2, linestyle=stroke, marker=marker, markersize=9, zorder=5
    )
    if horizontal:
        axes.set_xlim(low, high)
    else:
        axes.set_ylim(low, high)


def draw_optimum(axes: Axes, best: Row, colour: str) -> None:
    """Draw the fitted curve, a star at its minimum and its interval as a shaded range of the whole
    height, which no mark can hide; the range is dotted if it assumes a scatter of seeds.

    Draws nothing where the fit has no optimum. The limits of the axes must already be set.
    """
    interval = interval_of(best, "best")
    if interval is None:
        return
    axes.plot(best["curve_x"], best["curve"], color="black", linewidth=0.8, linestyle=":", zorder=3)
    low, high = axes.get_xlim()
    ends = interval.low or low, interval.high or high
    stroke = "-" if interval.assumed is None else ":"
    axes.axvspan(*ends, color=colour, alpha=0.16, linewidth=0, zorder=0)
    for end in (interval.low, interval.high):
        if end is not None:
            axes.axvline(end, color=colour, linewidth=0.8, linestyle=stroke, zorder=1)
    star = {"color": colour, "mec": "black", "mew": 0.6, "markersize": 8, "zorder": 6}
    axes.plot(best["best"], best["loss"], "*", **star)
    axes.set_xlim(low, high)


def mark_unequal(axes: Axes, known: DataFrame, x: str, mark: str, colour: str) -> None:
    """Hollow marks over points that spent over 5 % more or less than their budget."""
    unequal = known.loc[(known.spent / known.budget - 1).abs() > UNEQUAL]
    look = {"mfc": "white", "mec": colour, "linestyle": "none", "markersize": 4.5, "zorder": 4}
    axes.plot(unequal[x], unequal.loss, mark, **look)


def clip_losses(axes: Axes, losses: Sequence[float]) -> None:
    """Limit the y axis so that single high losses do not flatten all others; an arrow at the upper
    edge and its loss stand for what lies above."""
    low, middle, high = np.quantile(losses, [0, 0.5, 0.9])
    limit = high + max(2 * (high - low), 4 * (middle - low))
    if max(losses) > limit:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.25 * (high - low))


def mark_clipped(axes: Axes, x: Sequence[float], losses: Sequence[float], colour: str) -> None:
    """Arrows at the upper edge for losses above it."""
    _, top = axes.get_ylim()
    for at, loss in zip(x, losses, strict=True):
        if loss > top:
            axes.plot(at, top, "^", color=colour, markersize=5, clip_on=False, zorder=6)
            axes.annotate(
                f"{loss:.2f}", (at, top), xytext=(4, -1), textcoords="offset points",
                fontsize="x-small", color=colour, va="top",
            )  # fmt: skip


def interval_handles(intervals: Iterable[Interval | None], colour: str = "0.5") -> list[Patch]:
    """Legend entries of shaded ranges: confidence intervals, and ranges for an assumed scatter."""
    known = {interval.assumed for interval in intervals if interval is not None}
    handles = [Patch(facecolor=colour, alpha=0.3, label="95 % interval")] if None in known else []
    assumed = sorted(scatter for scatter in known if scatter is not None)
    if assumed:
        span = " to ".join(dict.fromkeys(f"{scatter:.2g}" for scatter in (assumed[0], assumed[-1])))
        label = f"range if seeds differ by {span} nats"
        handles.append(Patch(facecolor="white", edgecolor=colour, linestyle=":", label=label))
    return handles


def footnote(figure: Figure, shown: DataFrame) -> None:
    """State below the panels which losses were fitted."""
    known = shown[["schedule", "split"]].drop_duplicates()
    kinds = dict.fromkeys(starmap(describe, known.itertuples(index=False, name=None)))
    text = f"Points: {'; '.join(kinds)}."
    style.note(figure, style.filled(text))
