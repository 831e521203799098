"""Training loss against updates, with all contexts in one panel. Rows are sizes, columns
attentions, or the other way round with many attentions; darker lines are longer contexts. Each line
shows means over 60 logarithmic intervals of updates without spikes; a thin vertical stroke reaches
up to the highest spike of an interval. All contexts process the same number of tokens per update.
Published runs have separate columns: about 50 points for each run, each a mean over 100 updates,
which hide most spikes.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style

SECTION = "learning"

QUERY = """
    SELECT source, attention, size, params, context, seed, run, status, updates, tokens, hours,
        loss, spike
    FROM curves
    ORDER BY ALL
"""


COLUMNS = 4
"""Most attentions side by side, unless there are as many sizes."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    sizes, contexts = style.sizes_of(rows), sorted(rows.context.unique())
    variants = [
        (attention, source)
        for source in sorted(set(rows.source))
        for attention in style.palette(rows.attention)
        if ((rows.attention == attention) & (rows.source == source)).any()
    ]
    mixed = style.mixes_sources(rows.source)
    colours = dict(zip(contexts, sns.color_palette("crest", len(contexts)), strict=True))
    is_turned = len(variants) > max(COLUMNS, len(sizes))
    shape = (len(variants), len(sizes)) if is_turned else (len(sizes), len(variants))
    figure, panels = style.grid(*shape, 1.6 if is_turned else 2.4, sharex=True, sharey=True)
    for size, places in zip(sizes, panels.T if is_turned else panels, strict=True):
        for (attention, source), axes in zip(variants, places, strict=True):
            in_panel = (rows["size"] == size) & (rows.attention == attention)
            _draw_panel(axes, rows.loc[in_panel & (rows.source == source)], colours)
    names = [
        f"{attention} attention" + ",\npublished" * (source == "published" and mixed)
        for attention, source in variants
    ]
    tops, sides = (sizes, names) if is_turned else (names, sizes)
    sides = [side.replace(" ", "\n") for side in sides]
    law_panels.label_grid(panels, tops, sides, "Updates", "Training loss\n(nats per token)")
    handles = [Line2D([], [], color=c, label=f"{context:,}") for context, c in colours.items()]
    style.legend(figure, handles, title="Context (tokens)")
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, colours: dict[int, tuple[float, ...]]) -> None:
    for _, run in rows.groupby(["context", "run"]):
        colour = colours[run.context.iloc[0]]
        axes.plot(run.updates, run.loss, color=colour, linewidth=1.0)
        style.draw_spikes(axes, run, "updates", colour)
    axes.set_xscale("log")
    style.loss_scale(axes)
