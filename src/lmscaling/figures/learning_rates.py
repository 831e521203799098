"""Validation loss against the peak learning rate, with the optimum. Each point is the last
validation loss of one run, lines are means over seeds of finished runs; one panel for each size and
context. A star marks the optimum: with two rates on each side the minimum of a polynomial in
ln(rate), with its interval as a band, else the vertex of the parabola through the lowest point and
its two neighbours. The band is a 95 % interval from seeds; where it is hatched, it is the range if
seeds differ by as much as the title says. An end beyond the fitted rates is open and drawn as far
as the axis. Grey dotted lines are the rates that the study assigns to the size. Hollow points are
unfinished runs, arrows at the upper edge failed ones; both are excluded from the fit.
"""

import re
from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, isna, notna

from lmscaling.figures.shared import ends, floors, style
from lmscaling.fits import lr_optimum
from lmscaling.fits.rows import Row, interval_of

SECTION = "learning"

QUERY = """
    SELECT
        size, params, context, attention, seed, lr, lr_scale, status, update, tokens, hours,
        val_loss
    FROM last_validation
    WINDOW same AS (PARTITION BY attention, size, context)
    QUALIFY min(lr_scale) OVER same < max(lr_scale) OVER same
    ORDER BY params, size, context, attention DESC, seed, lr
"""

COLUMNS = 3
"""Panels side by side."""
MOST_TICKS = 4
"""Rates written below a panel."""
LINE = 0.16
"""Inches of a line above a panel and of a row of the legend, about."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours = style.palette(rows.attention)
    optima = db.table("best_rates").df()
    panels = rows[["size", "context"]].drop_duplicates()
    most = rows.groupby(["size", "context"]).attention.nunique().max()
    lines, legend = LINE * max(0, most - 2), LINE * (len(colours) // 4)
    figure, places = style.panels(
        len(panels), COLUMNS, 2.7 + lines, top=0.5 + legend, sharex=False, sharey=False
    )
    for axes, (size, context) in zip(places, panels.itertuples(index=False), strict=True):
        part = rows.loc[(rows["size"] == size) & (rows.context == context)]
        of_panel = (optima["size"] == size) & (optima.context == context)
        best = optima.loc[of_panel].to_dict("records")
        _draw_panel(axes, part, colours)
        _draw_optima(axes, best, colours)
        results = [f"{row['attention']}: {_describe_optimum(row)}" for row in best]
        axes.set_title("\n".join([f"{size}, context {context:,}", *results]), fontsize="small")
        axes.set_xlabel("Learning rate (per step)")
    floors.draw(places, db, rows, panels.context.tolist())
    for axes in places[::COLUMNS]:
        axes.set_ylabel("Validation loss (nats per token)")
    style.legend(figure, _legend(colours), 4)
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, colours: dict[str, str]) -> None:
    for attention, part in rows.groupby("attention", sort=False):
        colour = colours[str(attention)]
        mean = part[part.status == "done"].groupby("lr").val_loss.mean()
        axes.plot(mean.index, mean, color=colour, linewidth=1.2)
        dots = part[~part.status.isin(style.FAILED)]
        axes.scatter(dots.lr, dots.val_loss, color=colour, s=18, zorder=3)
    ends.mark_unusual(axes, rows, "lr", "val_loss", colours)
    for lr in {f"{rate:.6g}" for rate in rows.lr / rows.lr_scale}:
        axes.axvline(float(lr), color="0.4", linewidth=1.0, linestyle=":")
    style.log_scale(axes, "x", style.spread(sorted(set(rows.lr)), MOST_TICKS), _rate)
    axes.tick_params(axis="x", labelsize="small")
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _draw_optima(axes: Axes, best: list[Row], colours: dict[str, str]) -> None:
    for row in (row for row in best if notna(row["rate"])):
        colour, interval = colours[row["attention"]], interval_of(row, "rate")
        if interval:
            first, last = axes.get_xlim()
            low, high = interval.low or first, interval.high or last
            look: dict[str, Any] = {"color": colour, "alpha": 0.25, "linewidth": 0, "zorder": 0}
            axes.axvspan(low, high, hatch="//" if interval.assumed else None, **look)
            axes.set_xlim(first, last)
        axes.plot(row["rate"], row["loss"], "*", color=colour, markersize=10, mec="black")


def _describe_optimum(row: Row) -> str:
    if isna(row["rate"]):
        return re.split(r" \(|:", lr_optimum.STATUSES[row["status"]])[0]
    assumed = row["rate_assumed"]
    reason = "" if isna(assumed) else f"\nif seeds differ by {assumed:.2g}"
    return f"optimum {_rate(row['rate'])}{reason}"


def _rate(lr: float) -> str:
    """``0.0006`` as ``6e-4``."""
    digits, _, power = f"{lr:.1e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def _legend(colours: dict[str, str]) -> list[Line2D]:
    return [
        *(Line2D([], [], color=c, marker="o", label=name) for name, c in colours.items()),
        Line2D([], [], color="0.4", linestyle=":", label="rate of the study"),
        Line2D([], [], color="white", marker="*", mec="black", markersize=10, label="optimum"),
    ]
