"""The best size for a budget. Loss against N at each share of the budget; one row of panels for
each context, one column for each attention. Thin lines join means over seeds. A star marks the
minimum of a polynomial of degree four in ln N (dotted) with a bar for its 95 % interval, which may
be narrower than the star; it is drawn only where at least two sizes lie on each side and the losses
do not deviate from the polynomial by more than seeds scatter. Last column, if any budget brackets
its optimum: the best size against the budget t (hours, FLOPs or steps) with the fitted power law
N*(t) = G t^p, given where at least three budgets determine their optimum. Bars that are dotted are
no confidence intervals but ranges if seeds differ by as much as the panel says. Panels without a
result state the reason. Hollow marks are points that spent over 5 % more or less than their budget;
a point whose loss this changes by more than half a standard deviation of seeds is not fitted.
Losses far above the others are arrows at the upper edge. Attentions of one size are left out.
N counts parameters without embeddings.
"""

from itertools import cycle

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from pandas import DataFrame, notna

from lmscaling.figures.shared import floors, law_panels, style
from lmscaling.fits import optimum
from lmscaling.fits.rows import Row, interval_of
from lmscaling.formatting import budget_of, short

SECTION = "laws"
QUERY = law_panels.SIZED


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    every = law_panels.fullest(rows, "attention", "context")
    contexts, attentions = law_panels.widest_contexts(every), list(style.palette(rows.attention))
    shown = every.loc[every.context.isin(contexts)]
    best = law_panels.fitted(db, "best_sizes", shown, "attention", "context")
    budgets = sorted(set(shown.budget))
    shades = style.depths(len(budgets))
    looks = dict(zip(budgets, zip(shades, cycle(style.MARKERS), strict=False), strict=True))
    colours, grows = style.palette(rows.attention), int(best.best.notna().any())
    figure, panels = style.grid(len(contexts), len(attentions) + grows, 1.9, sharex="col")
    unit = rows.unit.iloc[0]
    for context, row in zip(contexts, panels, strict=True):
        laws = best.loc[best.context == context]
        for attention, axes in zip(attentions, row, strict=False):
            known = shown.loc[(shown.attention == attention) & (shown.context == context)]
            if len(known):
                optima = laws.loc[laws.attention == attention].to_dict("records")
                _draw_losses(axes, known, optima, looks)
            else:
                axes.set_axis_off()
        if grows:
            _draw_growth(row[-1], laws, colours)
            row[-1].set_ylabel("Best N (parameters)")
    losses = panels[:, : len(attentions)]
    floors.draw(losses.T, db, rows, contexts * len(attentions))
    tops = [f"{attention} attention" for attention in attentions] + [""] * grows
    sides = [f"context {style.tokens(context)}" for context in contexts]
    law_panels.label_grid(panels, tops, sides, "N (parameters)", "Loss\n(nats per token)")
    for axes in losses[-1]:
        axes.tick_params(labelbottom=True)
    if grows:
        panels[-1, -1].set_xlabel(law_panels.BUDGETS[unit])
    style.legend(figure, _handles(looks, unit, attentions if grows else [], colours), 7)
    law_panels.footnote(figure, every)
    return figure


def _handles(
    looks: dict, unit: str, attentions: list[str], colours: dict[str, str]
) -> list[Line2D]:
    budgets = [
        Line2D([], [], color=colour, marker=mark, markersize=4.5, label=budget_of(budget, unit))
        for budget, (colour, mark) in looks.items()
    ]
    return budgets + style.attention_handles(colours, attentions, False)


def _draw_losses(axes: Axes, known: DataFrame, optima: list[Row], looks: dict) -> None:
    for budget, part in known.groupby("budget"):
        colour, mark = looks[budget]
        axes.plot(part.params, part.loss, mark, color=colour, markersize=4)
        law_panels.mark_unequal(axes, part, "params", mark, colour)
        means = part.groupby("params").loss.mean()
        axes.plot(means.index, means, color=colour, linewidth=0.8)
    style.count_scale(axes)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0.08, y=0.1)
    law_panels.clip_losses(axes, known.loss.tolist())
    for budget, part in known.groupby("budget"):
        law_panels.mark_clipped(axes, part.params.tolist(), part.loss.tolist(), looks[budget][0])
    for best in optima:
        interval = interval_of(best, "best")
        if interval is not None:
            at, loss, colour = best["best"], best["loss"], looks[best["budget"]][0]
            axes.plot(best["curve_x"], best["curve"], color="black", linewidth=0.8, linestyle=":")
            axes.plot(at, loss, "*", color=colour, mec="black", mew=0.5, ms=6, zorder=6)
            law_panels.draw_interval(axes, at, loss, interval, "black", horizontal=True)
    if optima and optima[0]["status"] == "unknown_schedule":
        reasons = optima[0]["why"]
    else:
        statuses = {budget_of(best["budget"], best["unit"]): best["status"] for best in optima}
        reasons = law_panels.describe_statuses(statuses, optimum.STATUSES, {"bracketed"})
    law_panels.panel_note(axes, reasons, 40)


def _draw_growth(axes: Axes, laws: DataFrame, colours: dict[str, str]) -> None:
    """The best size against the budget, for all attentions."""
    known = laws.loc[laws.best.notna()]
    if known.empty:
        axes.set_axis_off()
        return
    times = sorted(set(known.budget))
    symbol = "C" if laws.unit.iloc[0] == "flops" else "t"
    style.log_scale(axes, "x", times)
    lines = []
    for name, part in laws.groupby("attention", sort=False):
        law, found = part.to_dict("records")[0], part.loc[part.best.notna()]
        colour, interval = colours[str(name)], interval_of(law, "p")
        axes.plot(found.budget, found.best, "o", color=colour)
        if notna(law["p"]):
            ends = "" if interval is None else f" ({law_panels.format_interval(interval)})"
            lines.append(f"{name}: N* ~ {symbol}^{law['p']:.2f}{ends}")
            axes.plot(times, [law["G"] * t ** law["p"] for t in times],
                      linestyle=style.dashes(str(name)), color=colour)  # fmt: skip
        elif len(found):
            lines.append(f"{name}: {law['law_why']}")
    style.log_scale(axes, "y", LogLocator(subs=[1, 1.5, 2, 3, 5, 7]), short)
    axes.margins(0.12, 0.25)
    for best in known.to_dict("records"):
        if interval := interval_of(best, "best"):
            law_panels.draw_interval(axes, best["budget"], best["best"], interval,
                                     colours[best["attention"]], horizontal=False)  # fmt: skip
    law_panels.panel_note(axes, "\n".join(lines), 40)
