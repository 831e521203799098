"""Final losses of all attentions, and their gaps to the baseline. Lines are means over seeds with
95 % intervals as bands, and dots the gaps at the place where the lines end, best first. Filled dots
are statistically significant after the correction for all gaps of the study. The lines are over
contexts at the size that most attentions have, or over sizes at the one context; a dotted bar is
the range for an assumed seed variance, and its dot is filled where it excludes zero. Attentions
without a run that spent its budget are left out.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, isna

from lmscaling.figures.shared import floors, style
from lmscaling.fits.ends import QUERY as ENDS
from lmscaling.fits.ends import UNEQUAL, UNFINISHED, spreads

SECTION = "answer"

QUERY = f"""
    FROM ({ENDS}) WHERE source = (SELECT min(source) FROM cells WHERE task IS NULL)
        AND (SELECT count(DISTINCT attention) > 2 FROM cells WHERE task IS NULL)
        AND loss IS NOT NULL AND status NOT IN {UNFINISHED}
        AND abs(coalesce(spent, 1) - 1) <= {UNEQUAL}
    ORDER BY params, size, context, attention DESC, seed
"""

GAPS = """
    SELECT attention, reference, gap, gap_low, gap_high, status, assumed_sd FROM gaps
    WHERE with_baseline AND source = $source AND size = $size AND context = $context
        AND gap IS NOT NULL
    ORDER BY gap
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    size, context = place(rows)
    x = "context" if rows.loc[rows["size"] == size].context.nunique() > 1 else "params"
    shown = rows.loc[rows["size"] == size if x == "context" else rows.context == context]
    at = {"source": rows.source.iloc[0], "size": size, "context": context}
    gaps = db.execute(GAPS, at).df()
    figure, losses, beside = _panels(rows.attention.unique().tolist(), len(gaps))
    ends = _draw_losses(losses, shown, x)
    if x == "context":
        style.context_scale(losses, shown.context)
        losses.set_xlabel("Context (tokens)")
    else:
        style.count_scale(losses)
        losses.set_xlabel("N (parameters)")
    losses.set_ylabel(style.loss_label(rows))
    losses.set_title(size if x == "context" else f"context {style.tokens(context)}", loc="left")
    floors.draw([losses], db, rows, None if x == "context" else [context])
    style.label_ends(losses, ends)
    _draw_gaps(beside, gaps, f"{size} at context {style.tokens(context)}")
    return figure


def _panels(names: list[str], n: int) -> tuple[Figure, Axes, Axes]:
    """Panels of the losses and of n gaps, below each other where two names leave no room beside."""
    if max(map(len, names)) <= style.LONGEST:
        figure, ((left, right),) = style.grid(1, 2, 2.9, top=0, width_ratios=(1.5, 1))
        return figure, left, right
    heights = 2.9, 0.7 + 0.2 * n
    figure, ((top,), (low,)) = style.grid(2, 1, sum(heights) / 2, top=0, height_ratios=heights)
    return figure, top, low


def place(rows: DataFrame) -> tuple[str, int]:
    """The size and context that most attentions have, the largest and longest of several."""
    names = rows.groupby(["size", "context"]).agg(n=("attention", "nunique"), N=("params", "max"))
    size, context = (
        names.reset_index().sort_values(["n", "N", "context"]).iloc[-1][["size", "context"]]
    )
    return size, int(context)


def _draw_losses(axes: Axes, rows: DataFrame, x: str) -> list[tuple[float, float, str, str]]:
    """Means over seeds with bands; the end of each line, the attention's name and its colour."""
    known, ends = spreads(rows), []
    for name, colour in style.palette(rows.attention).items():
        own = rows.loc[rows.attention == name]
        means = own.groupby(["size", "context"]).agg(x=(x, "first"), loss=("loss", "mean"))
        if means.empty:
            continue
        means = means.sort_values("x")
        spread = [known[own.source.iloc[0], name, *cell] for cell in means.index]
        bands = [one.interval(loss) for one, loss in zip(spread, means.loss, strict=True)]
        low, high = np.array([(one.low, one.high) for one in bands], dtype=float).T
        axes.plot(means.x, means.loss, color=colour, marker=style.marker(name), markersize=4)
        if all(one.assumed is None for one in bands):
            axes.fill_between(means.x, low, high, color=colour, alpha=0.18, linewidth=0)
        ends.append((means.x.iloc[-1], means.loss.iloc[-1], name, colour))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    return ends


def _draw_gaps(axes: Axes, gaps: DataFrame, where: str) -> None:
    """A row for each attention, the best at the top."""
    axes.axvline(0, color="0.3", linewidth=1)
    colours = style.palette([*gaps.attention, *gaps.reference])
    for y, row in enumerate(gaps.to_dict("records")):
        colour = colours[row["attention"]]
        stroke = "-" if isna(row["assumed_sd"]) else ":"
        axes.plot([row["gap_low"], row["gap_high"]], [y, y], color=colour, linestyle=stroke)
        is_beyond = not isna(row["assumed_sd"]) and row["gap_low"] * row["gap_high"] > 0
        is_firm = row["status"] in ("lower", "higher") or is_beyond
        face = colour if is_firm else "white"
        axes.plot(row["gap"], y, "o", markerfacecolor=face, markeredgecolor=colour, markersize=6)
    axes.set_yticks(range(len(gaps)), gaps.attention.tolist())
    axes.set_ylim(len(gaps) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    reference = "".join(gaps.reference[:1])
    axes.set_xlabel(f"Gap to {reference} (nats per token)")
    axes.set_title(where, loc="left")
