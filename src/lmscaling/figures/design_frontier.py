"""What each GPU-hour would tell. Half-width of the 95 % interval of an answer against what is
spent, one panel for each proposal of `lmscaling design`, both on logarithmic scales: the designs
that the search finds, the design that was chosen (star), random runs of the grid (line: median;
shaded: middle half), the largest cells first, and all runs of the grid on which the answer depends
(square). Half-widths are medians over simulated truths; a line begins where the report would give
an interval for most of them.
"""

from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style

SECTION = "forecasts"
QUERY = """
    SELECT 'measured' AS source, name, question, quantity, price, basis, spent, half_width,
        grid_spent, grid_half_width, spend, chosen, random, random_low, random_high, largest
    FROM frontiers ORDER BY made, name, spend
"""
COLUMNS = 2
TICKS = [digit * 10.0**power for power in range(-6, 9) for digit in (1, 2, 5)]
LOOKS: dict[str, tuple[str, str, law_panels.Stroke]] = {
    "chosen": ("best designs", "#8C4BB8", "-"),
    "random": ("random runs", "0.45", "--"),
    "largest": ("largest first", "#1B8A4B", "-."),
}


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    names = list(dict.fromkeys(rows.name))
    columns = min(COLUMNS, len(names))
    figure, panels = law_panels.panel_grid(-(-len(names) // columns), columns, 2.6)
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for name, axes in zip(names, panels.flat, strict=False):
        _draw_panel(axes, rows.loc[rows.name == name])
    handles = [
        Line2D([], [], color=colour, linestyle=stroke, label=label)
        for label, colour, stroke in LOOKS.values()
    ]
    handles += [
        Patch(color=LOOKS["random"][1], alpha=0.25, linewidth=0, label="middle half"),
        _mark("*", LOOKS["chosen"][1], 10, "chosen design"),
        _mark("s", "black", 5, "runs of the grid"),
    ]
    law_panels.legend(figure, handles)
    bases = dict.fromkeys(rows.basis)
    style.note(figure, style.filled(f"Truths from {'; or '.join(bases)}."))
    return figure


def _mark(marker: str, colour: str, size: float, label: str) -> Line2D:
    return Line2D(
        [], [], color=colour, marker=marker, markersize=size, mec="white", linestyle="", label=label
    )


def _draw_panel(axes: Axes, part: DataFrame) -> None:
    first = part.iloc[0]
    colour = LOOKS["random"][1]
    highest = np.nanmax(part[["chosen", "random", "largest", "random_low"]].to_numpy(dtype=float))
    band = part.dropna(subset=["random_low"])
    # An upper end without an interval leaves the panel.
    high = band.random_high.fillna(10 * highest)
    axes.fill_between(band.spend, band.random_low, high, color=colour, alpha=0.25, linewidth=0)
    for column, (_, colour, stroke) in LOOKS.items():
        axes.plot(part.spend, part[column], color=colour, linestyle=stroke, linewidth=1.3)
    marks: dict[str, Any] = {"markeredgecolor": "white", "linestyle": "", "zorder": 5}
    if not np.isnan(first.grid_half_width):
        axes.plot(first.grid_spent, first.grid_half_width, "s", color="black", ms=5, **marks)
    axes.plot(first.spent, first.half_width, "*", color=LOOKS["chosen"][1], ms=11, **marks)
    lowest = np.nanmin([first.half_width, first.grid_half_width, part.chosen.min()])
    axes.set_ylim(lowest / 1.5, highest * 1.5)
    axes.set_xlim(part.spend.min() / 1.1, part.spend.max() * 1.1)
    for which, ends in (("x", axes.get_xlim()), ("y", axes.get_ylim())):
        law_panels.plain_log(axes, [t for t in TICKS if ends[0] <= t <= ends[1]], which)
    axes.set_xlabel(f"Spent ({first.price})")
    axes.set_ylabel("Half-width (of the 95 % interval)")
    law_panels.panel_note(axes, first.quantity, 60)
    law_panels.title_above_note(axes, first.question.partition(",attention")[0])
