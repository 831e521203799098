"""Loss over time with the fitted power law. Points are losses at shares of the budget, lines the
law L(t) = E + k t^-gamma with a 95 % band, thin grey lines the losses along the training runs. Rows
are sizes, columns contexts. E and gamma are those of this form: others follow the points as well
and have another E, so they have no intervals. Each attention has its own E. The edges of a band are
dotted where it is the range if seeds differ by as much as was assumed: one run does not show how
much the level of runs scatters. Where the losses deviate from the law by more than the noise, no
law is drawn and the panel says so. If budgets count steps, steps take the place of hours.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, isna

from lmscaling.figures.shared import floors, law_panels, style
from lmscaling.fits import points, power_law

SECTION = "laws"
QUERY = points.QUERY_OF.format(view="drawn_points")

CURVES = """
    SELECT source, size, context, attention, run, spent, budget, loss FROM law_curves
    ORDER BY run, spent
"""
"""The training runs behind the points; the first fiftieth of the budget is not drawn."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    shown = law_panels.fullest(rows, "size", "context")
    laws = law_panels.fitted(db, "time_laws", shown, "size", "context")
    curves = db.sql(CURVES).df()
    curves = curves.loc[(curves.source == min(rows.source)) & (curves.spent > curves.budget / 50)]
    colours = style.palette(rows.attention)
    looks = {name: (colour, style.marker(name)) for name, colour in colours.items()}
    sizes, contexts = style.sizes_of(rows), law_panels.widest_contexts(shown)
    figure, panels = style.grid(len(sizes), len(contexts), 1.9, sharex=True)
    for size, row in zip(sizes, panels, strict=True):
        for context, axes in zip(contexts, row, strict=True):
            known, fitted, runs = (
                of.loc[(of["size"] == size) & (of.context == context)]
                for of in (shown, laws, curves)
            )
            if known.empty:
                axes.set_axis_off()
                continue
            _draw_panel(axes, known, fitted, runs, looks, width=132 // len(contexts))
    floors.draw(panels, db, rows, [*contexts] * len(sizes))
    x = law_panels.BUDGETS[rows.unit.iloc[0]]
    tops = [f"context {style.tokens(context)}" for context in contexts]
    law_panels.label_grid(panels, tops, sizes, x, "Loss (nats per token)")
    style.legend(figure, style.attention_handles(colours, colours, True), 7)
    law_panels.footnote(figure, shown)
    return figure


def _draw_panel(
    axes: Axes, known: DataFrame, laws: DataFrame, curves: DataFrame, looks: dict, width: int
) -> None:
    for _, run in curves.groupby("run"):
        axes.plot(run.spent, run.loss, color="0.75", linewidth=0.8, zorder=1)
    for name, part in known.groupby("attention", sort=False):
        colour, mark = looks[name]
        axes.plot(part.spent, part.loss, mark, color=colour, markersize=4, zorder=3)
    found, lines = laws.loc[laws.E.notna()].to_dict("records"), []
    for law in found:
        name, x, (colour, _) = law["attention"], law["curve_x"], looks[law["attention"]]
        axes.plot(x, law["curve"], linestyle=style.dashes(name), color=colour, linewidth=1.2)
        low, high = law["curve_lower"], law["curve_upper"]
        axes.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0)
        if not isna(law["assumed_sd"]):
            axes.plot(x, low, ":", x, high, ":", color=colour, linewidth=0.8)
        lines.append(f"{name}: gamma {law['gamma']:.2f}, E {law['E']:.2f}")
    ticks = sorted(set(known.budget))
    style.log_scale(axes, "x", ticks if len(ticks) < 7 else ticks[::2], "{:.4g}".format)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    statuses = dict(zip(laws.attention, laws.status, strict=True))
    lines.append(law_panels.describe_statuses(statuses, power_law.STATUSES, {"fitted"}))
    law_panels.panel_note(axes, "\n".join(filter(None, lines)), width)
