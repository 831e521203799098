"""How well a surface of loss follows its points. L(N, D) = E + A / N^alpha + B / D^beta. Left and
middle, measured less fitted loss against N and against D, one surface for each attention (rows) and
context (colours and markers); the grey band holds 95 % of points if seeds differ by 0.002 nats and
the form is right. What lies far outside is what the form cannot follow. Right, how far the largest
size is from what a surface through the smaller ones foresees: bars are 95 % intervals that hold
together, and a miss, whose bar does not reach zero, is hollow. Contexts without a surface are named
with the reason. N counts parameters without embeddings, D tokens.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import laws, style
from lmscaling.fits import holdout, loss_surface, points
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import STATED
from lmscaling.formatting import short

SECTION = "laws"
QUERY = laws.of_one_source(points.QUERY)

REASONS = loss_surface.STATUSES | {
    "not_unique": "many surfaces fit",
    "too_few": "too few points",
    "misfit": "off by more than noise",
}
"""In a panel, short."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = points.groups(laws.points(rows), "attention", "context")
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    contexts = sorted(rows.context.unique())
    looks = laws.looks(contexts, sns.color_palette("crest", len(contexts)).as_hex())
    figure, panels = laws.grid(len(attentions), 3, 2.5)
    for attention, row in zip(attentions, panels, strict=True):
        here = {c: g for (_, a, c), g in known.items() if a == attention}
        _draw_residuals(row[0], row[1], here, looks)
        _draw_foresight(row[2], here, looks)
        laws.name_row(row[2], f"{attention} attention")
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
    laws.legend(figure, handles, "Context (tokens)")
    laws.note(figure, known.values())
    return figure


def _draw_residuals(left: Axes, right: Axes, groups: dict[int, Group], looks: dict) -> None:
    statuses = {}
    for context, group in groups.items():
        fitted = loss_surface.of(group, count=laws.COUNT, check=False)
        statuses[style.tokens(context)] = fitted.status
        colour, mark = looks[context]
        for axes, name in ((left, "params"), (right, "tokens")):
            if fitted.residuals:
                at = group.column(name) * 1.04 ** (list(looks).index(context) - len(looks) / 2)
                axes.plot(
                    at if name == "params" else group.column(name),
                    fitted.residuals,
                    mark,
                    color=colour,
                    markersize=3.5,
                )
    fine = {status for status in statuses.values() if status in ("fitted", "misfit", "bound")}
    if not fine:
        for axes in (left, right):
            laws.say_instead(axes, laws.told(statuses, loss_surface.STATUSES, set()))
    for axes in (left, right) if fine else ():
        axes.axhspan(-1.96 * STATED.sd, 1.96 * STATED.sd, color="0.85", zorder=0)
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.1)
    if fine:
        laws.say(left, laws.told(statuses, REASONS, {"fitted", "bound"}), 44)
    style.count_scale(left)
    right.set_xscale("log")
    low, high = right.get_xlim()
    right.xaxis.set_major_locator(LogLocator(subs=[1] if high > 100 * low else [1, 3]))
    right.xaxis.set_major_formatter(lambda value, _: short(value))
    right.xaxis.set_minor_locator(NullLocator())
    left.set_ylabel("Measured - fitted loss\n(nats per token)")


def _draw_foresight(axes: Axes, groups: dict[int, Group], looks: dict) -> None:
    statuses, drawn = {}, []
    for context, group in groups.items():
        found = holdout.of(group, count=laws.COUNT)
        statuses[style.tokens(context)] = found.status
        colour, mark = looks[context]
        loss = group.column("loss")
        for i, value, span in zip(found.left_out, found.predicted, found.intervals, strict=True):
            low = value if span.low is None else span.low
            high = value if span.high is None else span.high
            axes.errorbar(
                loss[i], loss[i] - value, yerr=[[high - value], [value - low]],
                fmt=mark, color=colour,
                markerfacecolor=colour if loss[i] in span else "white", markersize=4.5,
                elinewidth=0.9,
            )  # fmt: skip
            drawn.append(i)
    if not drawn:
        laws.say_instead(axes, "no prediction: " + holdout.STATUSES["no_surface"])
    else:
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        off = [status for status in statuses.values() if status == "missed"]
        said = f"missed at {len(off)} of {len(statuses)} contexts" if off else "none missed"
        laws.say(axes, said + _absent(statuses), 44)
    axes.set_ylabel("Measured - foreseen loss\n(nats per token)")


def _absent(statuses: dict[str, str]) -> str:
    without = [name for name, status in statuses.items() if status == "no_surface"]
    return f"; none foreseen at {', '.join(without)}" if without else ""
