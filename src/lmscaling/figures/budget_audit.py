"""Wall-clock time of every run by purpose. One bar for each run, grouped by context and ordered by
size (larger models are darker). From the bottom: productive time, which the budget counts; time of
updates that were lost with an attempt and repeated; all other time of the attempts, such as
validation, checkpoints and compilation. Attempts are timed to ten seconds. The dashed line is the
budget, if it is a time. Where a study counts the time of the processor, waiting for it is other
time. For published runs only the total time is known; their line is the budget of 24 hours stated
in the post.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import heatmap, style

SECTION = "audit"

QUERY = """
    SELECT
        k.source, attention, size, k.params, context, seed, lr_scale, k.status,
        budget_hours,
        r.train_seconds / 3600 AS productive_hours,
        r.lost_seconds / 3600 AS lost_hours,
        CASE WHEN r.attempt_seconds IS NOT NULL THEN
            greatest(0, r.attempt_seconds - r.train_seconds - r.lost_seconds) / 3600
        END AS other_hours
    FROM known k JOIN runs r USING (run)
    WHERE branch IS NULL
    ORDER BY ALL
"""

LOST, OTHER = "#B00020", "0.72"
MOST_ROWS = 4
"""Panels one above the other; more have two columns."""
GAP = 1.0
"""Space between contexts, in bars."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    shades, panels = style.shades_of(rows), heatmap.panels_of(rows)
    columns = 1 if len(panels) <= MOST_ROWS else 2
    figure, places = style.panels(len(panels), columns, 1.9, top=0.6, sharex=False)
    for (title, part), axes in zip(panels.items(), places, strict=True):
        _draw_panel(axes, part, shades)
        axes.set_title(title)
    style.label_outer(places, "Context (tokens)", "Wall clock (hours)")
    handles = _legend(rows, shades)
    longest = max(len(str(handle.get_label())) for handle in handles)
    style.legend(figure, handles, 5 if longest < 15 else 4)
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, shades: dict[tuple[str, str], str]) -> None:
    at, middles = 0.0, {}
    groups: list[tuple[Any, DataFrame]] = list(rows.groupby("context"))
    for context, group in groups:
        part = group.sort_values(["params", "size", "seed", "lr_scale"]).fillna(
            {"lost_hours": 0.0, "other_hours": 0.0}
        )
        places = [at + i for i in range(len(part))]
        colours = [shades[key] for key in zip(part.attention, part["size"], strict=True)]
        axes.bar(places, part.productive_hours, width=0.9, color=colours)
        lower = part.productive_hours
        for column, colour in (("lost_hours", LOST), ("other_hours", OTHER)):
            axes.bar(places, part[column], width=0.9, bottom=lower, color=colour)
            lower = lower + part[column]
        middles[style.tokens(context)] = at + (len(part) - 1) / 2
        at += len(part) + GAP
    if rows.budget_hours.notna().any():
        axes.axhline(rows.budget_hours.max(), color="0.2", linestyle="--", linewidth=1.0)
    axes.set_xticks(list(middles.values()), list(middles))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(False, axis="x")


def _legend(rows: DataFrame, shades: dict[tuple[str, str], str]) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=f"{attention} {size}")
        for (attention, size), colour in shades.items()
    ]
    if rows.lost_hours.notna().any():
        handles += [Patch(color=LOST, label="lost"), Patch(color=OTHER, label="other")]
    if rows.budget_hours.notna().any():
        handles.append(Line2D([], [], color="0.2", linestyle="--", linewidth=1.0, label="budget"))
    return handles
