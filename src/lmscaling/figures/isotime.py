"""The best size for a budget of time. Loss against N at each share of the budget, a row of panels a
context and a column an attention. Thin lines join the sizes of one budget; a star is the vertex of
a parabola in ln N (dotted) through the points around the lowest, with its 95 % interval, which may
be narrower than the star; it is drawn only where two sizes lie on each side of it. Right, how the
best size grows: N*(t) = G t^p, given where three budgets bracket theirs. Where there is no answer,
the panel says why. N counts parameters without embeddings. Intervals assume that seeds differ by
0.002 nats unless seeds tell.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import laws as _laws
from lmscaling.figures.shared import style
from lmscaling.fits import isotime, parabola, points
from lmscaling.fits.isotime import IsoTime
from lmscaling.fits.points import Group
from lmscaling.formatting import short

SECTION = "laws"
QUERY = _laws.of_one_source(points.QUERY)


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = points.groups(_laws.points(rows), "attention", "context")
    contexts = _laws.most_sizes([p for group in known.values() for p in group.points])
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    budgets = sorted({p.budget for group in known.values() for p in isotime.near(group).points})
    looks = _laws.looks(budgets, sns.color_palette("crest", len(budgets)).as_hex())
    figure, panels = _laws.grid(len(contexts), len(attentions) + 1, 1.9, sharex="col")
    unit = next(iter(known.values())).unit
    for context, row in zip(contexts, panels, strict=True):
        laws = {}
        for attention, axes in zip(attentions, row, strict=False):
            group = known.get((min(rows.source), attention, context))
            if group is None:
                _laws.say_instead(axes, "no run has come this far")
                continue
            laws[attention] = isotime.of(group, count=_laws.COUNT)
            _draw_losses(axes, isotime.near(group), laws[attention], looks, unit)
        _draw_growth(row[-1], laws, colours)
        row[0].set_ylabel("Loss\n(nats per token)")
        row[-1].set_ylabel("Best N (parameters)")
        _laws.name_row(row[-1], f"context {style.tokens(context)}")
    _label(panels, attentions, unit)
    _laws.legend(
        figure,
        [
            Line2D([], [], color=colour, marker=mark, markersize=4.5, label=f"{budget:g} {unit}")
            for budget, (colour, mark) in looks.items()
        ]
        + [
            Line2D(
                [], [], color=colours[name], label=name, linestyle=style.dashes(name, attentions)
            )
            for name in attentions
        ],
    )
    _laws.note(figure, known.values())
    return figure


def _label(panels, attentions: list[str], unit: str) -> None:
    for attention, top, bottom in zip(attentions, panels[0], panels[-1], strict=False):
        said = top.get_title(loc="left")
        top.set_title(f"{attention} attention" + "\n" * (1 + said.count("\n") if said else 0))
        bottom.set_xlabel("N (parameters)")
        bottom.tick_params(labelbottom=True)
    panels[-1][-1].set_xlabel("Productive time (hours)" if unit == "hours" else "Budget (updates)")


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
        _laws.optimum(axes, best, tried, "black", looks[budget][0])
    short_unit = "h" if unit == "hours" else unit
    statuses = {f"{budget:g} {short_unit}": best.status for budget, best in law.optima.items()}
    _laws.say(axes, _laws.told(statuses, parabola.STATUSES, {"bracketed"}), 40)


def _draw_growth(axes: Axes, laws: dict[str, IsoTime], colours: dict[str, str]) -> None:
    """Best sizes over time, of all attentions."""
    found = {
        name: [(t, best, best.at) for t, best in law.optima.items() if best.at is not None]
        for name, law in laws.items()
    }
    lines = []
    for name, law in laws.items():
        if law.G is not None and law.p is not None:
            span = "" if law.interval is None else f" ({_laws.ends(law.interval)})"
            lines.append(f"{name}: N* ~ t^{law.p:.2f}{span}")
        elif found[name]:
            lines.append(f"{name}: {isotime.STATUSES[law.status]}")
    if not any(found.values()):
        _laws.say_instead(axes, "no budget has a bracketed optimum")
        return
    times = [t for best in found.values() for t, _, _ in best]
    _laws.plain_log(axes, sorted(set(times)), "x")
    axes.set_yscale("log")
    for name, best in found.items():
        axes.plot([t for t, _, _ in best], [at for _, _, at in best], "o", color=colours[name])
        law = laws[name]
        if law.G is not None and law.p is not None:
            axes.plot(times := sorted(times), [law.G * t**law.p for t in times],
                      style.dashes(name, list(laws)), color=colours[name])  # fmt: skip
    axes.yaxis.set_major_locator(LogLocator(subs=[1, 1.5, 2, 3, 5, 7]))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(0.12, 0.25)
    for name, best in found.items():
        for t, one, at in best:
            if one.interval is not None:
                _laws.bar(axes, t, at, one.interval, colours[name], across=False)
    _laws.say(axes, "\n".join(lines), 40)
