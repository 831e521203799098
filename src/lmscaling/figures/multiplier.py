"""How much more the baseline must spend to reach the same loss. The compute multiplier of an
attention against the baseline of the study, m(L) = spent by the baseline / spent by the attention
when the loss first reaches L, in updates, in counted FLOPs where they are known, and in productive
hours; above 1 the attention is better than the baseline. The loss falls to the right, over the last
1.5 nats; rows are pairs and sizes, lines contexts. The multiplier in hours is the one in updates
times the ratio of the times of an update.
Bands are 95 % intervals for one shift of each curve by its seed (0.002 nats); they end where a
shifted curve does not reach the loss. Curves are training losses for published runs, validation
losses at a constant learning rate for measured runs.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
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
"""Nats above the lowest loss; higher losses belong to the warm-up."""
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
NARROW = (0.3, 0.4, 0.7, 1.5, 3, 4)
"""Additional ticks where all multipliers lie within a factor of ten."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    plain = rows.astype(object).where(rows.notna(), None)
    pairs = multiplier.compare(plain.itertuples(index=False, name=None), law_panels.COUNT)
    pairs = [pair for pair in pairs if pair.with_baseline] or pairs
    known_axes = [a for a in multiplier.AXES if any(a in pair.axes for pair in pairs)]
    contexts = sorted({pair.context for pair in pairs})
    colours = dict(zip(contexts, sns.color_palette("crest", len(contexts)).as_hex(), strict=True))
    lines = list(dict.fromkeys((pair.size, pair.reference, pair.attention) for pair in pairs))
    figure, panels = law_panels.panel_grid(
        len(lines), len(known_axes), 1.9, sharex="row", sharey=True
    )
    for line, row in zip(lines, panels, strict=True):
        size, reference, attention = line
        in_row = [p for p in pairs if (p.size, p.reference, p.attention) == line]
        for axis, axes in zip(known_axes, row, strict=True):
            _draw_panel(axes, in_row, axis, colours)
            axes.set_ylabel(LABELS[axis])
            axes.tick_params(labelleft=True)
        lowest = min((lvl.loss for pair in in_row for lvl in pair.result.levels), default=None)
        if lowest is not None:
            row[0].set_xlim(lowest + SHOWN, lowest - 0.05 * SHOWN)
        law_panels.label_row(row[-1], f"{attention} / {reference}, {size}")
    low, high = panels[0, 0].get_ylim()
    for axes in panels.flat:
        law_panels.plain_log(axes, sorted(TICKS + NARROW) if high < 10 * low else TICKS, "y")
    for axes in panels[-1]:
        axes.set_xlabel("Loss (nats per token)")
    handles = [
        Line2D([], [], color=colour, linestyle=_stroke(contexts, context),
               label=style.tokens(context))
        for context, colour in colours.items()
    ]  # fmt: skip
    law_panels.legend(figure, handles, "Context (tokens)")
    return figure


def _stroke(contexts: list[int], context: int) -> law_panels.Stroke:
    return law_panels.STROKES[contexts.index(context) % len(law_panels.STROKES)]


def _draw_panel(axes: Axes, pairs: list[Pair], axis: str, colours: dict[int, str]) -> None:
    axes.axhline(1, color="0.35", linewidth=1.0, zorder=1)
    for pair in pairs:
        levels, colour = pair.result.levels, colours[pair.context]
        losses = [level.loss for level in levels]
        stroke = _stroke(sorted(colours), pair.context)
        values = [getattr(level, axis) for level in levels]
        axes.plot(losses, values, color=colour, linestyle=stroke, linewidth=1.2)
        law_panels.draw_band(axes, losses, [level.intervals[axis] for level in levels], colour)
    statuses = {style.tokens(pair.context): pair.result.status for pair in pairs}
    reasons = law_panels.describe_statuses(statuses, multiplier.STATUSES, {"compared"})
    law_panels.panel_note(axes, reasons, 34)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5))
