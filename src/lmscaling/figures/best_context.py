"""The best training context by size and attention. Loss at the end of the budget against the
context, one panel for each size; lines join means over seeds. A star marks the minimum of a
polynomial of degree four in ln T (dotted), a shaded range its 95 % interval, or, with dotted edges,
the range if seeds differ by as much as the legend says. It is drawn only where at least two
contexts lie on each side and the losses do not deviate from the polynomial by more than seeds
scatter; otherwise the panel states the reason. Hollow marks are runs that spent over 5 % more or
less than their budget; a run whose loss this changes by more than half a standard deviation of
seeds is not fitted. Losses far above the others are arrows at the upper edge.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import context_law, points
from lmscaling.fits.optimum import Optimum
from lmscaling.fits.points import Group

SECTION = "laws"
QUERY = points.QUERY_OF.format(view="drawn_points")
COLUMNS = 3


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    every = points.groups(law_panels.points(rows), "attention", "size")
    fitted = context_law.fit_groups(every)
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = {name: (colours[name], style.marker(name)) for name in attentions}
    sizes = style.sizes_of(rows)
    figure, panels = style.panels(len(sizes), COLUMNS, 2.6, sharex=False, sharey=False)
    shown = points.fullest(every)
    for size, axes in zip(sizes, panels, strict=True):
        by_attention = {
            a: (group, fitted[group.source, group.schedule, a, s])
            for (_, a, s), group in shown.items()
            if s == size
        }
        _draw_panel(axes, by_attention, looks)
        law_panels.title_above_note(axes, size)
    style.label_outer(panels, "Context (tokens)", style.loss_label(rows))
    optima = [best for best in fitted.values() if best.at is not None]
    marks = [Line2D([], [], color="white", marker="*", mec="black", markersize=9,
                    label="best context")] if optima else []  # fmt: skip
    keys = style.attention_handles(colours, attentions, True)
    ranges = law_panels.interval_handles(best.interval for best in optima)
    style.legend(figure, [*keys, *marks, *ranges], 7)
    law_panels.footnote(figure, shown.values())
    return figure


def _draw_panel(axes: Axes, groups: dict[str, tuple[Group, Optimum]], looks: dict) -> None:
    ends = {
        name: [point for point in group.points if point.share == 1]
        for name, (group, _) in groups.items()
    }
    losses = [point.loss for known in ends.values() for point in known]
    if not losses:
        law_panels.placeholder(axes, "no run has reached its budget")
        return
    for name, known in ends.items():
        colour, mark = looks[name]
        axes.plot([p.context for p in known], [p.loss for p in known], mark, color=colour, ms=4)
        means = {
            c: np.mean([p.loss for p in known if p.context == c])
            for c in sorted({p.context for p in known})
        }
        stroke = style.dashes(name)
        axes.plot(list(means), list(means.values()), linestyle=stroke, color=colour, linewidth=1.1)
        law_panels.mark_unequal(axes, known, "context", mark, colour)
    style.context_scale(axes, {p.context for known in ends.values() for p in known})
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(0.06)
    law_panels.clip_losses(axes, losses)
    statuses = {}
    for name, (_, best) in groups.items():
        statuses[name] = best.status
        law_panels.draw_optimum(axes, best, looks[name][0])
        at, loss = ([getattr(p, field) for p in ends[name]] for field in ("context", "loss"))
        law_panels.mark_clipped(axes, at, loss, looks[name][0])
    reasons = law_panels.describe_statuses(statuses, context_law.STATUSES, {"bracketed"})
    law_panels.panel_note(axes, reasons, 42)
