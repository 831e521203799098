"""Loss over time and the law it follows. Dots are losses at shares of the budget, lines the law
L(t) = E + k t^-gamma through them with its 95 % band, and thin grey lines the losses of trunks on
their way. Rows of panels are sizes, columns contexts. Attentions share one E unless a likelihood
ratio rejects that at 5 %. Where the form does not follow the points, bands are widened to match,
and the panel says so; where it tells nothing, no line is drawn. Intervals assume that seeds differ
by 0.002 nats unless seeds tell. Budgets that count updates have updates in the place of hours.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import laws, style
from lmscaling.fits import points, power_law
from lmscaling.fits.points import Group

SECTION = "laws"
QUERY = laws.of_one_source(points.QUERY)

WAYS = """
    SELECT source, size, context, attention, run, spent, budget, loss FROM law_curves
    ORDER BY run, spent
"""
"""Curves behind the points, from a fiftieth of the budget on."""
STATUSES = power_law.STATUSES | {"misfit": "off by more than noise", "bound": "tells no law"}
"""In a panel, short."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = points.groups(laws.points(rows), "size", "context")
    ways = db.sql(WAYS).df()
    ways = ways.loc[(ways.source == min(rows.source)) & (ways.spent > ways.budget / 50)]
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = laws.looks(attentions, [colours[name] for name in attentions])
    sizes = style.sizes_of(rows)
    contexts = laws.most_sizes([p for group in known.values() for p in group.points])
    figure, panels = laws.grid(len(sizes), len(contexts), 1.9, sharex=True)
    for size, row in zip(sizes, panels, strict=True):
        for context, axes in zip(contexts, row, strict=True):
            group = known.get((min(rows.source), size, context))
            way = ways.loc[(ways["size"] == size) & (ways.context == context)]
            _draw_panel(axes, group, way, looks, attentions)
        row[0].set_ylabel("Loss (nats per token)")
        laws.name_row(row[-1], size)
    unit = next(iter(known.values())).unit
    for context, top, bottom in zip(contexts, panels[0], panels[-1], strict=True):
        said = top.get_title(loc="left")
        top.set_title(f"context {style.tokens(context)}" + "\n" * (1 + said.count("\n")))
        bottom.set_xlabel("Time (hours)" if unit == "hours" else "Budget (updates)")
    laws.legend(figure, [
        Line2D([], [], color=colour, linestyle=style.dashes(name, attentions), marker=mark,
               markersize=4.5, label=name)
        for name, (colour, mark) in looks.items()
    ])  # fmt: skip
    laws.note(figure, known.values())
    return figure


def _draw_panel(
    axes: Axes, group: Group | None, ways: DataFrame, looks: dict, attentions: list[str]
) -> None:
    for _, way in ways.groupby("run"):
        axes.plot(way.spent, way.loss, color="0.75", linewidth=0.8, zorder=1)
    if group is None:
        laws.say_instead(axes, "no run has come this far")
        return
    fitted = power_law.of(group, count=laws.COUNT)
    words = []
    for name, part in group.split("attention").items():
        colour, mark = looks[name]
        spent, law = part.column("spent"), fitted.laws[name]
        axes.plot(spent, part.column("loss"), mark, color=colour, markersize=4, zorder=3)
        if law.E is not None and law.status != "bound":
            x = np.geomspace(spent.min(), spent.max(), 40)
            stroke = style.dashes(name, attentions)
            axes.plot(x, law.loss(x), stroke, color=colour, linewidth=1.2)
            laws.band(axes, x.tolist(), law.band(x), colour)
        words += _say(name, law)
    ticks = sorted({p.budget for p in group.points})
    laws.plain_log(axes, ticks if len(ticks) < 7 else ticks[::2], "x")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    statuses = {name: law.status for name, law in fitted.laws.items()}
    words += [laws.told(statuses, STATUSES, {"fitted"})]
    laws.say(axes, "\n".join(filter(None, words)), 36)


def _say(name: str, law: power_law.PowerLaw) -> list[str]:
    if law.gamma is None or law.status in ("bound", "stopped_early"):
        return []
    return [f"{name}: gamma {law.gamma:.2f} ({laws.ends(law.intervals['gamma'])})"]
