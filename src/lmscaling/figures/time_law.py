"""Loss over time with the fitted power law. Points are losses at shares of the budget, lines the
law L(t) = E + k t^-gamma with a 95 % band, thin grey lines the losses along the training runs. A
horizontal line is E, with its interval at the right edge. Rows are sizes, columns contexts. Each
attention has its own E. Bands and intervals of E that are dotted show the range if seeds differ by
as much as the panel says: one run does not show how much the level of runs scatters. Where the
losses deviate from the law by more than the noise, no law is drawn and the panel says so. If
budgets count updates, updates take the place of hours.
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
from lmscaling.fits.power_law import PowerLaw
from lmscaling.fits.uncertainty import Interval

SECTION = "laws"
QUERY = points.QUERY_OF.format(view="drawn_points")

CURVES = """
    SELECT source, size, context, attention, run, spent, budget, loss FROM law_curves
    ORDER BY run, spent
"""
"""The training runs behind the points; the first fiftieth of the budget is not drawn."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    every = points.groups(law_panels.points(rows), "size", "context")
    fitted, groups = power_law.fit_groups(every), points.fullest(every)
    curves = db.sql(CURVES).df()
    curves = curves.loc[(curves.source == min(rows.source)) & (curves.spent > curves.budget / 50)]
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    looks = {name: (colours[name], style.marker(name)) for name in attentions}
    sizes = style.sizes_of(rows)
    contexts = law_panels.widest_contexts([p for group in groups.values() for p in group.points])
    figure, panels = style.grid(len(sizes), len(contexts), 1.9, sharex=True)
    for size, row in zip(sizes, panels, strict=True):
        for context, axes in zip(contexts, row, strict=True):
            group = groups.get((min(rows.source), size, context))
            runs = curves.loc[(curves["size"] == size) & (curves.context == context)]
            if group is None:
                law_panels.placeholder(axes, "no run has reached a share of the budget")
                continue
            laws = fitted[group.source, group.schedule, size, context].laws
            _draw_panel(axes, group, laws, runs, looks, width=132 // len(contexts))
        row[0].set_ylabel("Loss (nats per token)")
        style.label_row(row[-1], size)
    unit = next(iter(groups.values())).unit
    for context, top, bottom in zip(contexts, panels[0], panels[-1], strict=True):
        law_panels.title_above_note(top, f"context {style.tokens(context)}")
        bottom.set_xlabel("Time (hours)" if unit == "hours" else "Budget (updates)")
    style.legend(figure, style.attention_handles(colours, attentions, True), 7)
    law_panels.footnote(figure, groups.values())
    return figure


def _draw_panel(
    axes: Axes,
    group: Group,
    laws: dict[str, PowerLaw],
    curves: DataFrame,
    looks: dict,
    width: int,
) -> None:
    for _, run in curves.groupby("run"):
        axes.plot(run.spent, run.loss, color="0.75", linewidth=0.8, zorder=1)
    lines = []
    for name, part in group.split("attention").items():
        colour, mark = looks[name]
        spent, law = part.column("spent"), laws[name]
        axes.plot(spent, part.column("loss"), mark, color=colour, markersize=4, zorder=3)
        if law.E is None or law.gamma is None:
            continue
        x, stroke = np.geomspace(spent.min(), spent.max(), 30), style.dashes(name)
        axes.plot(x, law.loss(x), linestyle=stroke, color=colour, linewidth=1.2)
        law_panels.draw_band(axes, x.tolist(), law.band(x), colour)
        axes.axhline(law.E, linestyle=stroke, color=colour, linewidth=0.7, alpha=0.8)
        gamma, floor = (law_panels.format_interval(law.intervals[n]) for n in ("gamma", "E"))
        lines.append(f"{name}: gamma {law.gamma:.2f} ({gamma}); E {law.E:.2f} ({floor})")
    ticks = sorted({p.budget for p in group.points})
    style.log_scale(axes, "x", ticks if len(ticks) < 7 else ticks[::2])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    bottom = min([p.loss for p in group.points] + [law.E for law in laws.values() if law.E])
    losses = [*curves.loss, *(p.loss for p in group.points)]
    axes.set_ylim(bottom - 0.06 * (max(losses) - bottom), None)
    for place, (name, law) in enumerate(laws.items()):
        if law.E is not None:
            _draw_floor(axes, 0.99 - 0.03 * place, law.intervals["E"], looks[name][0])
    statuses = {name: law.status for name, law in laws.items()}
    lines.append(law_panels.describe_statuses(statuses, power_law.STATUSES, {"fitted"}))
    law_panels.panel_note(axes, "\n".join(filter(None, lines)), width)


def _draw_floor(axes: Axes, place: float, interval: Interval, colour: str) -> None:
    """Draw the interval of E at a place across the panel, dotted if it assumes a scatter of
    seeds."""
    bottom, top = axes.get_ylim()
    low = bottom if interval.low is None else max(interval.low, bottom)
    high = top if interval.high is None else interval.high
    axes.plot(
        [place, place], [low, high], color=colour, linewidth=2,
        linestyle="-" if interval.assumed is None else ":", transform=axes.get_yaxis_transform(),
    )  # fmt: skip
