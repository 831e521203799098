"""The best context to train at, by size and attention. Loss at the end of the budget against
context, a panel a size; lines join means over seeds. A star is the vertex of a parabola in the
logarithm of the context (dotted) through the points around the lowest, with its 95 % interval,
which may be narrower than the star; it is drawn only where two contexts lie on each side of it;
elsewhere the panel says why there is none. Intervals assume that seeds differ by 0.002 nats unless
seeds tell; they do not hold how far the parabola is from the truth. Published runs ended after 15
to 29 hours; they count at 24 hours, or at their own earlier end.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import laws, style
from lmscaling.fits import context_law, points
from lmscaling.fits.points import Group

SECTION = "laws"
QUERY = laws.of_one_source(points.QUERY).replace(
    "FROM law_points", "FROM law_points WHERE share = 1"
)
COLUMNS = 3


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = points.groups(laws.points(rows), "attention", "size")
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = laws.looks(attentions, [colours[name] for name in attentions])
    sizes = style.sizes_of(rows)
    columns = min(COLUMNS, len(sizes))
    figure, panels = laws.grid(-(-len(sizes) // columns), columns, 2.6)
    for axes in panels.flat[len(sizes) :]:
        axes.set_axis_off()
    for size, axes in zip(sizes, panels.flat, strict=False):
        here = {a: g for (_, a, s), g in known.items() if s == size}
        _draw_panel(axes, here, looks, attentions)
        said = axes.get_title(loc="left")
        axes.set_title(size + "\n" * (1 + said.count("\n") if said else 0))
        axes.set_xlabel("Context (tokens)")
    for row in panels:
        row[0].set_ylabel(f"{style.loss_label(rows)}")
    handles = [
        Line2D([], [], color=colour, linestyle=style.dashes(name, attentions), marker=mark,
               markersize=4.5, label=name)
        for name, (colour, mark) in looks.items()
    ]  # fmt: skip
    handles.append(Line2D([], [], color="white", marker="*", mec="black", markersize=10,
                          label="best context"))  # fmt: skip
    laws.legend(figure, handles)
    laws.note(figure, known.values())
    return figure


def _draw_panel(axes: Axes, groups: dict[str, Group], looks: dict, attentions: list[str]) -> None:
    contexts = {point.context for group in groups.values() for point in group.points}
    for name, group in groups.items():
        colour, mark = looks[name]
        at, loss = group.column("context"), group.column("loss")
        means = {c: loss[at == c].mean() for c in sorted(set(at))}
        axes.plot(at, loss, mark, color=colour, markersize=4)
        stroke = style.dashes(name, attentions)
        axes.plot(list(means), list(means.values()), stroke, color=colour, linewidth=1.1)
    laws.context_scale(axes, contexts)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(0.06)
    statuses = {}
    for name, group in groups.items():
        best = context_law.of(group, count=laws.COUNT)
        statuses[name] = best.status
        laws.optimum(axes, best, group.column("context"), "black", looks[name][0], 8)
    laws.say(axes, laws.told(statuses, context_law.STATUSES, {"bracketed"}), 42)
