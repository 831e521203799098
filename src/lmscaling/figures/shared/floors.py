"""Lines at the losses that need no model, where the y axis has losses on the text of the study."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from lmscaling.figures.shared import style

NEAR = 0.1
"""Floors so far beyond the range of an axis, as a share of it, widen it; others are not drawn."""

LINE = "_floor"
"""Label of the lines, which no legend shows."""

LOOK: dict[str, Any] = {
    "color": "0.5", "linewidth": 0.8, "linestyle": (0, (4, 3)), "zorder": 1.5, "label": LINE,
}  # fmt: skip

NOTE = (
    "Dashed grey lines are losses without a model, on the same validation tokens: of tables of "
    "n-grams of as much of the training text as the longest run reads, or known ones."
)


def draw(
    panels: Sequence[Axes] | NDArray,
    db: DuckDBPyConnection,
    rows: DataFrame,
    contexts: Sequence[int | None] | None = None,
    dataset: str | None = None,
    x: float = 0.015,
) -> None:
    """Draw the floors into panels that have all their data, unless some of it is published.

    Args:
        panels: Panels with losses on the y axis, of any shape, row by row.
        db: The store.
        rows: Rows that the figure shows.
        contexts: Context of each panel, None for several. By default the x axis has contexts.
        dataset: That of the losses; by default the one of the study.
        x: Where names stand, as a share of the width.
    """
    query = "FROM floors WHERE dataset IN (SELECT coalesce($of, dataset) FROM planned)"
    known = db.execute(query, {"of": dataset}).df().sort_values(["name", "context"])
    tables = known.loss.where(known.name.str.endswith("-gram"))
    known = known[~(tables > tables.cummin())]  # a longer table may be worse
    if known.empty or ("source" in rows and rows.source.eq("published").any()):
        return
    every = np.ravel(np.asarray(panels))
    ranges = [np.sort(axes.get_ylim()) for axes in every]  # before a line widens a shared one
    for i, (axes, ends) in enumerate(zip(every, ranges, strict=True)):
        scale = np.log if axes.get_yscale() == "log" else np.asarray
        low, high = scale(ends)
        margin = NEAR * (high - low)
        for name, floor in known.groupby("name"):
            line = floor
            if contexts is not None:
                line = floor.loc[floor.context.isna() | (floor.context == contexts[i])]
            at = scale(line.loss.clip(lower=1e-9))
            near = line.loc[(at >= low - margin) & (at <= high + margin)]
            if not axes.has_data() or near.empty:
                continue
            last = near.iloc[-1]
            across = contexts is not None or line.context.isna().any()
            if across:
                axes.axhline(last.loss, **LOOK)
            else:
                axes.plot(line.context, line.loss, **LOOK)
            axes.text(
                x if across else last.context, last.loss, str(name),
                transform=axes.get_yaxis_transform() if across else axes.transData, va="center",
                ha="left" if across and x < 0.5 else "right", fontsize="xx-small", color="0.35",
                zorder=1.6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip


def note(figure: Figure) -> str:
    """What the lines of a figure are; empty if it has none."""
    lines = (line for axes in figure.axes for line in axes.lines)
    return style.filled(NOTE) if any(line.get_label() == LINE for line in lines) else ""
