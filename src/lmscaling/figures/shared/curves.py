"""Panels of the learning curves, against updates, tokens, hours or FLOPs.

Each x axis is a separate figure across the page; the report shows one of them at a time.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import style

QUERY = "FROM learning_curves ORDER BY ALL"

AXES = {
    "updates": "Updates",
    "tokens": "Tokens",
    "hours": "Productive time (hours)",
    "flops": "Compute (FLOPs)",
}

MOST_COLUMNS = 3
"""Panels side by side."""


def draw(rows: DataFrame, column: str) -> Figure:
    """A panel for each context, with losses against ``column``, a key of ``AXES``."""
    contexts = sorted(rows.context.unique())
    published = style.PUBLISHED if style.mixes_sources(rows.source) else {}
    shades = style.shades_of(rows)
    columns = min(MOST_COLUMNS, len(contexts))
    figure, panels = style.panels(len(contexts), columns, 2.2)
    for i, (context, axes) in enumerate(zip(contexts, panels, strict=True)):
        _draw_panel(axes, rows.loc[rows.context == context], column, shades, published)
        axes.set_title(f"context {context:,}")
        if i + columns >= len(contexts):
            axes.set_xlabel(AXES[column])
    for axes in panels[::columns]:
        axes.set_ylabel("Loss (nats per token)")
    style.legend_of(figure, shades, rows.source)
    return figure


def _draw_panel(
    axes: Axes,
    rows: DataFrame,
    column: str,
    shades: dict[tuple[str, str], str],
    published: dict[str, Any],
) -> None:
    for (attention, size), colour in shades.items():  # dashed lines last: they hide less
        cell = rows.loc[(rows.attention == attention) & (rows["size"] == size)]
        for _, run in cell.groupby("run"):
            curve, dots = run[run.split == "train"], run[run.split == "validation"]
            look = {"linestyle": style.dashes(attention), "linewidth": 1.0}
            if curve.source.eq("published").any():
                look |= published
            axes.plot(curve[column], curve.loss, color=colour, **look)
            style.draw_spikes(axes, curve, column, colour)
            if len(dots):
                axes.scatter(dots[column], dots.loss, color=colour, s=9, zorder=3, linewidth=0)
        ends = cell[cell.split == "decayed"]
        if len(ends):
            axes.scatter(
                ends[column], ends.loss,
                marker="D", facecolor="white", edgecolor=colour, s=16, zorder=4, linewidth=0.9,
            )  # fmt: skip
    axes.set_xscale("log")
    style.loss_scale(axes)
