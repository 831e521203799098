"""The best training context by size and attention. Loss at the end of the budget against the
context, one panel for each size; lines join means over seeds. A star marks the minimum of a
polynomial of degree four in ln T (dotted), a shaded range its 95 % interval, or, with dotted edges,
the range if seeds differ by as much as the legend says. It is drawn only where at least two
contexts lie on each side and the losses do not deviate from the polynomial by more than seeds
scatter; otherwise the panel states the reason. Hollow marks are runs that spent over 5 % more or
less than their budget; a run whose loss this changes by more than half a standard deviation of
seeds is not fitted. Losses far above the others are arrows at the upper edge.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import floors, law_panels, style
from lmscaling.fits import optimum, points
from lmscaling.fits.rows import Row, interval_of

SECTION = "laws"
QUERY = points.QUERY_OF.format(
    view="drawn_points WHERE (SELECT count(DISTINCT context) > 1 FROM drawn_points)"
)
COLUMNS = 3


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    shown = law_panels.fullest(rows, "attention", "size")
    optima = law_panels.fitted(db, "best_contexts", shown, "attention", "size")
    colours = style.palette(rows.attention)
    looks = {name: (colour, style.marker(name)) for name, colour in colours.items()}
    sizes = style.sizes_of(rows)
    figure, panels = style.panels(len(sizes), COLUMNS, 2.6, sharex=False, sharey=False)
    for size, axes in zip(sizes, panels, strict=True):
        ends = shown.loc[(shown["size"] == size) & (shown.share == 1)]
        _draw_panel(axes, ends, optima.loc[optima["size"] == size].to_dict("records"), looks)
        law_panels.title_above_note(axes, size)
    floors.draw(panels, db, rows)
    style.label_outer(panels, "Context (tokens)", style.loss_label(rows))
    intervals = [interval_of(best, "best") for best in optima.to_dict("records")]
    marks = [Line2D([], [], color="white", marker="*", mec="black", markersize=9,
                    label="best context")] if any(intervals) else []  # fmt: skip
    ranges = law_panels.interval_handles(intervals)
    keys = style.attention_handles(colours, colours, True)
    style.legend(figure, [*keys, *marks, *ranges], 7)
    law_panels.footnote(figure, shown)
    return figure


def _draw_panel(axes: Axes, ends: DataFrame, optima: list[Row], looks: dict) -> None:
    if ends.empty:
        axes.set_axis_off()
        return
    for name, known in ends.groupby("attention", sort=False):
        colour, mark = looks[name]
        axes.plot(known.context, known.loss, mark, color=colour, ms=4)
        means = known.groupby("context").loss.mean()
        axes.plot(
            means.index, means, linestyle=style.dashes(str(name)), color=colour, linewidth=1.1
        )
        law_panels.mark_unequal(axes, known, "context", mark, colour)
    style.context_scale(axes, ends.context)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(0.06)
    law_panels.clip_losses(axes, ends.loss.tolist())
    for best in optima:
        colour, _ = looks[best["attention"]]
        law_panels.draw_optimum(axes, best, colour)
        known = ends.loc[ends.attention == best["attention"]]
        law_panels.mark_clipped(axes, known.context.tolist(), known.loss.tolist(), colour)
    statuses = {best["attention"]: best["status"] for best in optima}
    reasons = law_panels.describe_statuses(statuses, optimum.STATUSES, {"bracketed"})
    law_panels.panel_note(axes, reasons, 42)
