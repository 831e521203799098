"""The best size for a time budget. Loss against N at each share of the budget; one row of panels
for each context, one column for each attention. Thin lines join the sizes trained with the same
budget. A star marks the vertex of a parabola in ln N (dotted) through the points around the lowest
loss, with its 95 % interval, which may be narrower than the star; it is drawn only where at least
two sizes lie on each side. Right: the best size against the budget with the fitted power law
N*(t) = G t^p, given where at least three budgets bracket their optimum. Panels without a result
state the reason. N counts parameters without embeddings. Intervals assume a standard deviation of
0.002 nats between seeds, or the one measured where there are enough seeds.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import isotime, parabola, points
from lmscaling.fits.isotime import IsoTime
from lmscaling.fits.points import Group
from lmscaling.formatting import short

SECTION = "laws"
QUERY = law_panels.one_source(points.QUERY)


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    groups = points.fullest(points.groups(law_panels.points(rows), "attention", "context"))
    contexts = law_panels.widest_contexts([p for group in groups.values() for p in group.points])
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    budgets = sorted({p.budget for group in groups.values() for p in isotime.near(group).points})
    shades = sns.color_palette("crest", len(budgets)).as_hex()
    looks = law_panels.assign_looks(budgets, shades)
    figure, panels = law_panels.panel_grid(len(contexts), len(attentions) + 1, 1.9, sharex="col")
    unit = next(iter(groups.values())).unit
    for context, row in zip(contexts, panels, strict=True):
        laws = {}
        for attention, axes in zip(attentions, row, strict=False):
            group = groups.get((min(rows.source), attention, context))
            if group is None:
                law_panels.placeholder(axes, "no run has reached a share of the budget")
                continue
            laws[attention] = isotime.fit_group(group, count=law_panels.COUNT)
            _draw_losses(axes, isotime.near(group), laws[attention], looks, unit)
        _draw_growth(row[-1], laws, colours)
        row[0].set_ylabel("Loss\n(nats per token)")
        row[-1].set_ylabel("Best N (parameters)")
        law_panels.label_row(row[-1], f"context {style.tokens(context)}")
    for attention, top, bottom in zip(attentions, panels[0], panels[-1], strict=False):
        law_panels.title_above_note(top, f"{attention} attention")
        bottom.set_xlabel("N (parameters)")
        bottom.tick_params(labelbottom=True)
    panels[-1][-1].set_xlabel("Productive time (hours)" if unit == "hours" else "Budget (updates)")
    law_panels.legend(figure, _handles(looks, unit, attentions, colours))
    law_panels.footnote(figure, groups.values())
    return figure


def _handles(
    looks: dict, unit: str, attentions: list[str], colours: dict[str, str]
) -> list[Line2D]:
    budgets = [
        Line2D([], [], color=colour, marker=mark, markersize=4.5, label=f"{budget:g} {unit}")
        for budget, (colour, mark) in looks.items()
    ]
    lines = [
        Line2D([], [], color=colours[name], label=name, linestyle=style.dashes(name))
        for name in attentions
    ]
    return budgets + lines


def _draw_losses(axes: Axes, group: Group, law: IsoTime, looks: dict, unit: str) -> None:
    for budget, part in sorted(group.split("budget").items()):
        colour, mark = looks[budget]
        at = part.column("params")
        axes.plot(at, part.column("loss"), mark, color=colour, markersize=4)
        means = {n: part.column("loss")[at == n].mean() for n in sorted(set(at))}
        axes.plot(list(means), list(means.values()), color=colour, linewidth=0.8)
    style.count_scale(axes)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0.08, y=0.1)
    for budget, best in law.optima.items():
        tried = [p.params for p in group.points if p.budget == budget]
        law_panels.draw_optimum(axes, best, tried, "black", looks[budget][0])
    short_unit = "h" if unit == "hours" else unit
    statuses = {f"{budget:g} {short_unit}": best.status for budget, best in law.optima.items()}
    reasons = law_panels.describe_statuses(statuses, parabola.STATUSES, {"bracketed"})
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
    law_panels.plain_log(axes, sorted(set(times)), "x")
    axes.set_yscale("log")
    for name, best in optima.items():
        axes.plot([t for t, _, _ in best], [at for _, _, at in best], "o", color=colours[name])
        law = laws[name]
        if law.G is not None and law.p is not None:
            axes.plot(times := sorted(times), [law.G * t**law.p for t in times],
                      linestyle=style.dashes(name), color=colours[name])  # fmt: skip
    axes.yaxis.set_major_locator(LogLocator(subs=[1, 1.5, 2, 3, 5, 7]))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(0.12, 0.25)
    for name, best in optima.items():
        for t, one, at in best:
            if one.interval is not None:
                law_panels.draw_interval(axes, t, at, one.interval, colours[name], horizontal=False)
    law_panels.panel_note(axes, "\n".join(lines), 40)
