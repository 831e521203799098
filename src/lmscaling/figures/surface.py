"""Residuals and hold-out error of the loss surface. L(N, D) = E + A / N^alpha + B / D^beta, fitted
separately to each attention (rows) and context (colours and markers). Left and middle: measured
minus fitted loss against N and against D; the grey band contains 95 % of the points if the form is
correct and seeds differ by 0.002 nats. Right: error of the surface fitted without the largest size
in predicting the losses of that size; bars are simultaneous 95 % intervals, and points whose bar
does not reach zero are hollow. Contexts without a surface are listed with the reason. N counts
parameters without embeddings, D training tokens.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import holdout, loss_surface, points
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import STATED
from lmscaling.formatting import short

SECTION = "laws"
QUERY = law_panels.one_source(points.QUERY)

REASONS = loss_surface.STATUSES | {
    "not_unique": "fit not unique",
    "too_few": "too few points",
    "misfit": "residuals exceed the noise",
}
"""Short explanations for a panel."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    groups = points.fullest(points.groups(law_panels.points(rows), "attention", "context"))
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    contexts = sorted(rows.context.unique())
    shades = sns.color_palette("crest", len(contexts)).as_hex()
    looks = law_panels.assign_looks(contexts, shades)
    figure, panels = law_panels.panel_grid(len(attentions), 3, 2.5)
    for attention, row in zip(attentions, panels, strict=True):
        by_context = {c: group for (_, a, c), group in groups.items() if a == attention}
        _draw_residuals(row[0], row[1], by_context, looks)
        _draw_holdout(row[2], by_context, looks)
        law_panels.label_row(row[2], f"{attention} attention")
    for axes, label in zip(
        panels[-1],
        ("N (parameters)", "D (tokens)", "Measured loss (nats per token)"),
        strict=True,
    ):
        axes.set_xlabel(label)
    handles = [
        Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4.5,
               label=style.tokens(context))
        for context, (colour, mark) in looks.items()
    ]  # fmt: skip
    law_panels.legend(figure, handles, "Context (tokens)")
    law_panels.footnote(figure, groups.values())
    return figure


def _draw_residuals(left: Axes, right: Axes, groups: dict[int, Group], looks: dict) -> None:
    statuses = {}
    for context, group in groups.items():
        surface = loss_surface.fit_group(group, count=law_panels.COUNT, check=False)
        statuses[style.tokens(context)] = surface.status
        colour, mark = looks[context]
        if surface.residuals:
            # Contexts share the sizes: shifted sideways, their points do not cover each other.
            shift = 1.04 ** (list(looks).index(context) - len(looks) / 2)
            for axes, at in (
                (left, group.column("params") * shift),
                (right, group.column("tokens")),
            ):
                axes.plot(at, surface.residuals, mark, color=colour, markersize=3.5)
    if {"fitted", "misfit", "bound"} & {*statuses.values()}:
        for axes in (left, right):
            axes.axhspan(-1.96 * STATED.sd, 1.96 * STATED.sd, color="0.85", zorder=0)
            axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.margins(x=0.1)
        reasons = law_panels.describe_statuses(statuses, REASONS, {"fitted", "bound"})
        law_panels.panel_note(left, reasons, 44)
    else:
        for axes in (left, right):
            reasons = law_panels.describe_statuses(statuses, loss_surface.STATUSES, set())
            law_panels.placeholder(axes, reasons)
    style.count_scale(left)
    right.set_xscale("log")
    low, high = right.get_xlim()
    right.xaxis.set_major_locator(LogLocator(subs=[1] if high > 100 * low else [1, 3]))
    right.xaxis.set_major_formatter(lambda value, _: short(value))
    right.xaxis.set_minor_locator(NullLocator())
    left.set_ylabel("Measured - fitted loss\n(nats per token)")


def _draw_holdout(axes: Axes, groups: dict[int, Group], looks: dict) -> None:
    statuses, n_points = {}, 0
    for context, group in groups.items():
        held_out = holdout.fit_group(group, count=law_panels.COUNT)
        statuses[style.tokens(context)] = held_out.status
        colour, mark = looks[context]
        loss = group.column("loss")
        points_of = zip(held_out.left_out, held_out.predicted, held_out.intervals, strict=True)
        for i, value, interval in points_of:
            low = value if interval.low is None else interval.low
            high = value if interval.high is None else interval.high
            axes.errorbar(
                loss[i], loss[i] - value, yerr=[[high - value], [value - low]],
                fmt=mark, color=colour,
                markerfacecolor=colour if loss[i] in interval else "white", markersize=4.5,
                elinewidth=0.9,
            )  # fmt: skip
            n_points += 1
    if n_points:
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        law_panels.panel_note(axes, _summarize(statuses), 44)
    else:
        law_panels.placeholder(axes, "no prediction: " + holdout.STATUSES["no_surface"])
    axes.set_ylabel("Measured - predicted loss\n(nats per token)")


def _summarize(statuses: dict[str, str]) -> str:
    n_outside = sum(status == "missed" for status in statuses.values())
    without = [name for name, status in statuses.items() if status == "no_surface"]
    outside = f"outside the interval at {n_outside} of {len(statuses)} contexts"
    text = outside if n_outside else "all within their intervals"
    return f"{text}; no prediction at {', '.join(without)}" if without else text
