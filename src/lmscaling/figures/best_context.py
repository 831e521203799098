"""The best training context by size and attention. Loss at the end of the budget against the
context, one panel for each size; lines join means over seeds. A star marks the vertex of a parabola
in ln T (dotted) through the points around the lowest loss, with its 95 % interval, which may be
narrower than the star. It is drawn only where at least two contexts lie on each side; otherwise the
panel states the reason. Intervals assume a standard deviation of 0.002 nats between seeds, or the
one measured where there are enough seeds; they exclude the error of the parabola itself. Published
runs ended after 15 to 29 hours and are read at 24 hours, or at their earlier end.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import context_law, points
from lmscaling.fits.points import Group

SECTION = "laws"
QUERY = law_panels.one_source(points.QUERY).replace(
    "FROM law_points", "FROM law_points WHERE share = 1"
)
COLUMNS = 3


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    groups = points.fullest(points.groups(law_panels.points(rows), "attention", "size"))
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = {name: (colours[name], style.marker(name)) for name in attentions}
    sizes = style.sizes_of(rows)
    columns = min(COLUMNS, len(sizes))
    figure, panels = law_panels.panel_grid(-(-len(sizes) // columns), columns, 2.6)
    for axes in panels.flat[len(sizes) :]:
        axes.set_axis_off()
    for size, axes in zip(sizes, panels.flat, strict=False):
        by_attention = {a: group for (_, a, s), group in groups.items() if s == size}
        _draw_panel(axes, by_attention, looks)
        law_panels.title_above_note(axes, size)
        axes.set_xlabel("Context (tokens)")
    for row in panels:
        row[0].set_ylabel(style.loss_label(rows))
    star = Line2D(
        [], [], color="white", marker="*", mec="black", markersize=10, label="best context"
    )
    law_panels.legend(figure, [*law_panels.attention_handles(looks), star])
    law_panels.footnote(figure, groups.values())
    return figure


def _draw_panel(axes: Axes, groups: dict[str, Group], looks: dict) -> None:
    contexts = {point.context for group in groups.values() for point in group.points}
    for name, group in groups.items():
        colour, mark = looks[name]
        at, loss = group.column("context"), group.column("loss")
        means = {c: loss[at == c].mean() for c in sorted(set(at))}
        axes.plot(at, loss, mark, color=colour, markersize=4)
        stroke = style.dashes(name)
        axes.plot(list(means), list(means.values()), linestyle=stroke, color=colour, linewidth=1.1)
    law_panels.context_scale(axes, contexts)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(0.06)
    statuses = {}
    for name, group in groups.items():
        best = context_law.fit_group(group, count=law_panels.COUNT)
        statuses[name] = best.status
        law_panels.draw_optimum(axes, best, group.column("context"), "black", looks[name][0], 8)
    reasons = law_panels.describe_statuses(statuses, context_law.STATUSES, {"bracketed"})
    law_panels.panel_note(axes, reasons, 42)
