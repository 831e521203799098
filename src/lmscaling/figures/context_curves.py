"""Training loss against steps, with all contexts in one panel. Panels are attentions and sizes;
darker lines are longer contexts. Lines are means over 60 logarithmic intervals of steps without
spikes; a thin vertical stroke reaches up to the highest spike of an interval. All contexts process
the same number of tokens per step. Published runs have separate panels: about 50 points for each
run, each a mean over 100 steps, which hide most spikes.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from lmscaling.figures.shared import floors, style

SECTION = "learning"
COLUMNS = 4

QUERY = """
    SELECT source, attention, size, params, context, seed, run, status, updates, tokens, hours,
        loss, spike
    FROM curves
    WHERE (SELECT count(DISTINCT context) > 1 FROM curves)
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    sizes, names = style.sizes_of(rows), list(style.palette(rows.attention))
    contexts = sorted(rows.context.unique())
    colours = dict(zip(contexts, style.depths(len(contexts)), strict=True))
    shown: list[tuple[Any, DataFrame]] = list(rows.groupby(["source", "size", "attention"]))
    shown.sort(key=lambda one: (sizes.index(one[0][1]), one[0][0], names.index(one[0][2])))
    figure, panels = style.panels(len(shown), min(len(shown), COLUMNS), 1.9)
    for ((source, size, attention), part), axes in zip(shown, panels, strict=True):
        _draw_panel(axes, part, colours)
        published = ",\npublished" * (source == "published" and style.mixes_sources(rows.source))
        axes.set_title(f"{style.folded(attention)} {size}{published}")
    floors.draw(panels, db, rows, [None] * len(panels))
    style.label_outer(panels, "Steps", "Training loss\n(nats per token)")
    handles = [Line2D([], [], color=c, label=f"{context:,}") for context, c in colours.items()]
    style.legend(figure, handles, title="Context (tokens)")
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, colours: dict[int, str]) -> None:
    for _, run in rows.groupby(["context", "run"]):
        colour = colours[run.context.iloc[0]]
        axes.plot(run.updates, run.loss, color=colour, linewidth=1.0)
        style.draw_spikes(axes, run, "updates", colour)
    axes.set_xscale("log")
    style.loss_scale(axes)
