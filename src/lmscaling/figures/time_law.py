"""Loss over time with the fitted power law. Points are losses at shares of the budget, lines the
law L(t) = E + k t^-gamma with its 95 % band, thin grey lines the losses along the training runs.
Rows are sizes, columns contexts. All attentions share one E unless a likelihood-ratio test rejects
that at the 5 % level. Where residuals exceed the noise, the band is widened to match and the panel
states so; where the fit ends at a bound, no law is drawn. Intervals assume a standard deviation of
0.002 nats between seeds, or the one measured where there are enough seeds. If budgets count
updates, updates take the place of hours.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import points, power_law
from lmscaling.fits.points import Group

SECTION = "laws"
QUERY = law_panels.one_source(points.QUERY)

CURVES = """
    SELECT source, size, context, attention, run, spent, budget, loss FROM law_curves
    ORDER BY run, spent
"""
"""The training runs behind the points; the first fiftieth of the budget is not drawn."""
REASONS = power_law.STATUSES | {"misfit": "residuals exceed the noise", "bound": "fit at a bound"}
"""Short explanations for a panel."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    groups = points.fullest(points.groups(law_panels.points(rows), "size", "context"))
    curves = db.sql(CURVES).df()
    curves = curves.loc[(curves.source == min(rows.source)) & (curves.spent > curves.budget / 50)]
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = {name: (colours[name], style.marker(name)) for name in attentions}
    sizes = style.sizes_of(rows)
    contexts = law_panels.widest_contexts([p for group in groups.values() for p in group.points])
    figure, panels = law_panels.panel_grid(len(sizes), len(contexts), 1.9, sharex=True)
    for size, row in zip(sizes, panels, strict=True):
        for context, axes in zip(contexts, row, strict=True):
            group = groups.get((min(rows.source), size, context))
            runs = curves.loc[(curves["size"] == size) & (curves.context == context)]
            _draw_panel(axes, group, runs, looks)
        row[0].set_ylabel("Loss (nats per token)")
        law_panels.label_row(row[-1], size)
    unit = next(iter(groups.values())).unit
    for context, top, bottom in zip(contexts, panels[0], panels[-1], strict=True):
        law_panels.title_above_note(top, f"context {style.tokens(context)}")
        bottom.set_xlabel("Time (hours)" if unit == "hours" else "Budget (updates)")
    law_panels.legend(figure, law_panels.attention_handles(looks))
    law_panels.footnote(figure, groups.values())
    return figure


def _draw_panel(axes: Axes, group: Group | None, curves: DataFrame, looks: dict) -> None:
    for _, run in curves.groupby("run"):
        axes.plot(run.spent, run.loss, color="0.75", linewidth=0.8, zorder=1)
    if group is None:
        law_panels.placeholder(axes, "no run has reached a share of the budget")
        return
    fitted = power_law.fit_group(group, count=law_panels.COUNT)
    lines = []
    for name, part in group.split("attention").items():
        colour, mark = looks[name]
        spent, law = part.column("spent"), fitted.laws[name]
        axes.plot(spent, part.column("loss"), mark, color=colour, markersize=4, zorder=3)
        if law.E is not None and law.status != "bound":
            x = np.geomspace(spent.min(), spent.max(), 40)
            stroke = style.dashes(name)
            axes.plot(x, law.loss(x), linestyle=stroke, color=colour, linewidth=1.2)
            law_panels.draw_band(axes, x.tolist(), law.band(x), colour)
        if law.gamma is not None and law.status not in ("bound", "stopped_early"):
            interval = law_panels.format_interval(law.intervals["gamma"])
            lines.append(f"{name}: gamma {law.gamma:.2f} ({interval})")
    ticks = sorted({p.budget for p in group.points})
    law_panels.plain_log(axes, ticks if len(ticks) < 7 else ticks[::2], "x")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    statuses = {name: law.status for name, law in fitted.laws.items()}
    lines.append(law_panels.describe_statuses(statuses, REASONS, {"fitted"}))
    law_panels.panel_note(axes, "\n".join(filter(None, lines)), 36)
