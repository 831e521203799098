"""Recall against the number of pairs. Share of the queried values that a model predicts, at the
first query of each key after so many key-value pairs. One panel an attention; lines are means over
seeds at the best factor of the learning rate, darker for larger models, and dots are seeds. The
dotted line is what guessing one of the sequence's values reaches. Crosses are seeds that have not
learned: they recall the fewest pairs no more often than by chance, and no line includes them.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "tasks"

QUERY = """
    SELECT g.task, g.attention, g.size, g.d_model, g.n_layer, g.params, g.place, g.seed, g.pairs,
        g.accuracy, g.targets, s.learned, g.run, g.status
    FROM task_groups g JOIN task_scores s USING (run, "update")
    WHERE g.pairs IS NOT NULL
    ORDER BY g.place, g.pairs
"""

COLUMNS = 4


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    names = rows.attention.unique().tolist()
    shades = style.shades_of(rows)
    figure, panels = style.panels(len(names), COLUMNS, 1.7)
    pairs = sorted(rows.pairs.unique())
    for axes, name in zip(panels, names, strict=True):
        own = rows.loc[rows.attention == name]
        axes.plot(pairs, 1 / np.array(pairs, dtype=float), ":", color="0.4", linewidth=1)
        for size, part in own.groupby("size", sort=False):  # one task has a size
            colour = shades[name, str(size)]
            learned, lost = part.loc[part.learned], part.loc[~part.learned]
            mean = learned.groupby("pairs").accuracy.mean()
            axes.plot(mean.index, mean, color=colour, linewidth=1.4)
            axes.scatter(learned.pairs, learned.accuracy, color=colour, s=9, zorder=3)
            axes.scatter(lost.pairs, lost.accuracy, color=colour, s=16, marker="x", linewidth=0.8)
        axes.set_title(name, fontsize="medium")
        axes.set_ylim(-0.03, 1.05)
        style.log_scale(axes, "x", pairs)
    style.label_outer(panels, "Pairs (number)", "Accuracy (share)")
    style.legend(figure, _handles(rows))
    return figure


def _handles(rows: DataFrame) -> list[Line2D]:
    """One grey line for each size, and the guess."""
    sizes = style.sizes_of(rows)
    greys = style.shades("#808080", len(sizes))
    layers = dict(zip(rows["size"], rows.n_layer, strict=True))
    widths = dict(zip(rows["size"], rows.d_model, strict=True))
    handles = [
        Line2D([], [], color=grey, label=f"{size}: width {widths[size]}, layers {layers[size]}")
        for size, grey in zip(sizes, greys, strict=True)
    ]
    return [*handles, Line2D([], [], color="0.4", linestyle=":", label="guessing")]
