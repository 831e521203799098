"""The best size for a time budget. Loss against N at each share of the budget; one row of panels
for each context, one column for each attention. Thin lines join means over seeds. A star marks the
minimum of a polynomial of degree four in ln N (dotted) with a bar for its 95 % interval, which may
be narrower than the star; it is drawn only where at least two sizes lie on each side and the losses
do not deviate from the polynomial by more than seeds scatter. Last column, if any budget brackets
its optimum: the best size against the budget with the fitted power law N*(t) = G t^p, given where
at least three budgets determine their optimum. Bars that are dotted are no confidence intervals but
ranges if seeds differ by as much as the panel says. Panels without a result state the reason.
Hollow marks are points that spent over 5 % more or less than their budget; a point whose loss this
changes by more than half a standard deviation of seeds is not fitted. Losses far above the others
are arrows at the upper edge. Attentions of one size are left out where others have several. N
counts parameters without embeddings.
"""

from itertools import cycle

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import isotime, optimum, points
from lmscaling.fits.isotime import IsoTime
from lmscaling.fits.points import Group
from lmscaling.formatting import short

SECTION = "laws"
QUERY = points.QUERY_OF.format(view="drawn_points")


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    every = points.groups(law_panels.points(rows), "attention", "context")
    fitted, groups = isotime.fit_groups(every), points.fullest(every)
    contexts = law_panels.widest_contexts([p for group in groups.values() for p in group.points])
    colours = style.palette(rows.attention.tolist())
    attentions = law_panels.attentions(rows)
    drawn = {
        (attention, context): (group, fitted[group.source, group.schedule, attention, context])
        for (_, attention, context), group in groups.items()
        if attention in attentions and context in contexts
    }
    budgets = sorted({p.budget for group, _ in drawn.values() for p in group.points})
    shades = sns.color_palette("crest", len(budgets)).as_hex()
    looks = dict(zip(budgets, zip(shades, cycle(style.MARKERS), strict=False), strict=True))
    grows = [any(best.at for best in law.optima.values()) for _, law in drawn.values()]
    columns = len(attentions) + any(grows)
    figure, panels = style.grid(len(contexts), columns, 1.9, sharex="col")
    unit = next(iter(groups.values())).unit
    for context, row in zip(contexts, panels, strict=True):
        for attention, axes in zip(attentions, row, strict=False):
            if (attention, context) in drawn:
                _draw_losses(axes, *drawn[attention, context], looks, unit)
            else:
                law_panels.placeholder(axes, "no run has reached a share of the budget")
        if any(grows):
            laws = {a: drawn[a, context][1] for a in attentions if (a, context) in drawn}
            _draw_growth(row[-1], laws, colours)
            row[-1].set_ylabel("Best N (parameters)")
        row[0].set_ylabel("Loss\n(nats per token)")
        style.label_row(row[-1], f"context {style.tokens(context)}")
    for attention, top, bottom in zip(attentions, panels[0], panels[-1], strict=False):
        law_panels.title_above_note(top, f"{attention} attention")
        bottom.set_xlabel("N (parameters)")
        bottom.tick_params(labelbottom=True)
    if any(grows):
        label = "Productive time (hours)" if unit == "hours" else "Budget (updates)"
        panels[-1][-1].set_xlabel(label)
    style.legend(figure, _handles(looks, unit, attentions if any(grows) else [], colours), 7)
    law_panels.footnote(figure, groups.values())
    return figure


def _handles(
    looks: dict, unit: str, attentions: list[str], colours: dict[str, str]
) -> list[Line2D]:
    budgets = [
        Line2D([], [], color=colour, marker=mark, markersize=4.5, label=f"{budget:g} {unit}")
        for budget, (colour, mark) in looks.items()
    ]
    return budgets + style.attention_handles(colours, attentions, False)


def _draw_losses(axes: Axes, group: Group, law: IsoTime, looks: dict, unit: str) -> None:
    for budget, part in sorted(group.split("budget").items()):
        colour, mark = looks[budget]
        at = part.column("params")
        axes.plot(at, part.column("loss"), mark, color=colour, markersize=4)
        law_panels.mark_unequal(axes, part.points, "params", mark, colour)
        means = {n: part.column("loss")[at == n].mean() for n in sorted(set(at))}
        axes.plot(list(means), list(means.values()), color=colour, linewidth=0.8)
    style.count_scale(axes)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0.08, y=0.1)
    law_panels.clip_losses(axes, [p.loss for p in group.points])
    for budget, part in group.split("budget").items():
        colour, best = looks[budget][0], law.optima.get(budget)
        law_panels.mark_clipped(axes, part.column("params"), part.column("loss"), colour)
        if best is None or best.at is None or best.loss is None or best.interval is None:
            continue
        axes.plot(*zip(*best.curve, strict=True), color="black", linewidth=0.8, linestyle=":")
        axes.plot(best.at, best.loss, "*", color=colour, mec="black", mew=0.5, ms=6, zorder=6)
        law_panels.draw_interval(axes, best.at, best.loss, best.interval, "black", horizontal=True)
    short_unit = "h" if unit == "hours" else unit
    statuses = {f"{budget:g} {short_unit}": best.status for budget, best in law.optima.items()}
    reasons = law_panels.describe_statuses(statuses, optimum.STATUSES, {"bracketed"})
    if law.status == "unknown_schedule":
        reasons = isotime.STATUSES[law.status]
    law_panels.panel_note(axes, reasons, 40)


def _draw_growth(axes: Axes, laws: dict[str, IsoTime], colours: dict[str, str]) -> None:
    """The best size against the budget, for all attentions."""
    optima = {
        name: [(t, best, best.at) for t, best in law.optima.items() if best.at is not None]
        for name, law in laws.items()
    }
    lines = []
    for name, law in laws.items():
        if law.G is not None and law.p is not None:
            interval = law.interval
            ends = "" if interval is None else f" ({law_panels.format_interval(interval)})"
            lines.append(f"{name}: N* ~ t^{law.p:.2f}{ends}")
        elif optima[name]:
            lines.append(f"{name}: {isotime.STATUSES[law.status]}")
    if not any(optima.values()):
        law_panels.placeholder(axes, "no budget has a bracketed optimum")
        return
    times = [t for best in optima.values() for t, _, _ in best]
    style.log_scale(axes, "x", sorted(set(times)))
    for name, best in optima.items():
        axes.plot([t for t, _, _ in best], [at for _, _, at in best], "o", color=colours[name])
        law = laws[name]
        if law.G is not None and law.p is not None:
            axes.plot(times := sorted(times), [law.G * t**law.p for t in times],
                      linestyle=style.dashes(name), color=colours[name])  # fmt: skip
    style.log_scale(axes, "y", LogLocator(subs=[1, 1.5, 2, 3, 5, 7]), short)
    axes.margins(0.12, 0.25)
    for name, best in optima.items():
        for t, one, at in best:
            if one.interval is not None:
                law_panels.draw_interval(axes, t, at, one.interval, colours[name], horizontal=False)
    law_panels.panel_note(axes, "\n".join(lines), 40)
