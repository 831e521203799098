"""How much more softmax attention must spend for the same loss. The compute multiplier of another
attention, m(L) = spent by softmax / spent by the other until the loss is first L, in updates, in
FLOPs where they are known, and in productive hours; above 1 the other attention is the better one.
Time runs to the right, as losses fall by their last 1.5 nats; rows of panels are sizes, lines
contexts. In hours, the multiplier is that in updates times how much faster an update is. Bands are
95 % intervals for one shift of each curve by its seed, 0.002 nats; they are cut where a curve, so
shifted, does not reach the loss. Curves are training losses of published runs and validation losses
of ours, at a constant rate.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import laws, style
from lmscaling.fits import multiplier
from lmscaling.fits.multiplier import Pair

SECTION = "laws"
QUERY = multiplier.QUERY.replace("ORDER BY", "AND source = min(source) OVER () ORDER BY")

LABELS = {
    "updates": "Multiplier\nin updates (ratio)",
    "flops": "Multiplier\nin FLOPs (ratio)",
    "hours": "Multiplier\nin hours (ratio)",
}
SHOWN = 1.5
"""Nats above the lowest loss: what comes before is warm-up."""
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
NARROW = (0.3, 0.4, 0.7, 1.5, 3, 4)
"""Further ticks where all multipliers lie within a factor of ten."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    plain = rows.astype(object).where(rows.notna(), None)
    known = multiplier.pairs(plain.itertuples(index=False, name=None), laws.COUNT)
    axes_known = [a for a in multiplier.AXES if any(a in pair.axes for pair in known)]
    contexts = sorted({pair.context for pair in known})
    colours = dict(zip(contexts, sns.color_palette("crest", len(contexts)).as_hex(), strict=True))
    lines = list(dict.fromkeys((pair.size, pair.attention) for pair in known))
    figure, panels = laws.grid(len(lines), len(axes_known), 1.9, sharex="row", sharey=True)
    for (size, attention), row in zip(lines, panels, strict=True):
        here = [pair for pair in known if (pair.size, pair.attention) == (size, attention)]
        for axis, axes in zip(axes_known, row, strict=True):
            _draw_panel(axes, here, axis, colours)
            axes.set_ylabel(LABELS[axis])
            axes.tick_params(labelleft=True)
        lowest = min((lvl.loss for pair in here for lvl in pair.found.levels), default=None)
        if lowest is not None:
            row[0].set_xlim(lowest + SHOWN, lowest - 0.05 * SHOWN)
        laws.name_row(row[-1], f"{attention}, {size}")
    low, high = panels[0, 0].get_ylim()
    for axes in panels.flat:
        laws.plain_log(axes, sorted(TICKS + NARROW) if high < 10 * low else TICKS, "y")
    for axes in panels[-1]:
        axes.set_xlabel("Loss (nats per token)")
    handles = [
        Line2D([], [], color=colour, linestyle=_stroke(contexts, context),
               label=style.tokens(context))
        for context, colour in colours.items()
    ]  # fmt: skip
    laws.legend(figure, handles, "Context (tokens)")
    return figure


def _stroke(contexts: list[int], context: int) -> laws.Stroke:
    return laws.STROKES[contexts.index(context) % len(laws.STROKES)]


def _draw_panel(axes: Axes, pairs: list[Pair], axis: str, colours: dict[int, str]) -> None:
    axes.axhline(1, color="0.35", linewidth=1.0, zorder=1)
    for pair in pairs:
        levels, colour = pair.found.levels, colours[pair.context]
        losses = [level.loss for level in levels]
        stroke = _stroke(sorted(colours), pair.context)
        values = [getattr(level, axis) for level in levels]
        axes.plot(losses, values, color=colour, linestyle=stroke, linewidth=1.2)
        laws.band(axes, losses, [level.intervals[axis] for level in levels], colour)
    statuses = {style.tokens(pair.context): pair.found.status for pair in pairs}
    laws.say(axes, laws.told(statuses, multiplier.STATUSES, {"compared"}), 34)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5))
