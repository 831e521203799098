"""Validation loss against the peak learning rate, with the optimum. Each point is the last
validation loss of one run, lines are means over seeds of finished runs; one panel for each size and
context. A star marks the vertex of the parabola in ln(rate) through the lowest point and its two
neighbours, drawn only if they bracket the optimum; with several seeds, a bar shows the range of
their optima. The dotted line is the learning rate that the study assigns to the size. Hollow points
are unfinished runs, arrows at the upper edge failed ones; both are excluded from the fit.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import style
from lmscaling.fits import lr_optimum

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


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    optima = lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall())
    panels = rows[["size", "context"]].drop_duplicates()
    n_rows, n_columns = -(-len(panels) // COLUMNS), min(COLUMNS, len(panels))
    figure, grid = plt.subplots(
        n_rows, n_columns,
        figsize=(style.PAGE, 0.5 + 2.7 * n_rows), squeeze=False, layout="constrained",
    )  # fmt: skip
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (size, context) in zip(grid.flat, panels.itertuples(index=False), strict=False):
        part = rows.loc[(rows["size"] == size) & (rows.context == context)]
        groups = [group for group in optima if (group.size, group.context) == (size, context)]
        _draw_panel(axes, part, colours)
        _draw_optima(axes, groups, colours)
        results = [f"{group.attention}: {_describe_optimum(group)}" for group in groups]
        axes.set_title("\n".join([f"{size}, context {context:,}", *results]), fontsize="small")
        axes.set_xlabel("Learning rate (per update)")
    for row in grid:
        row[0].set_ylabel("Validation loss (nats per token)")
    figure.legend(handles=_legend(attentions, colours), loc="outside upper center", ncols=4)
    sns.despine(figure)
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, colours: dict[str, str]) -> None:
    for attention, part in rows.groupby("attention", sort=False):
        colour = colours[str(attention)]
        mean = part[part.status == "done"].groupby("lr").val_loss.mean()
        axes.plot(mean.index, mean, color=colour, linewidth=1.2)
        dots = part[~part.status.isin(style.FAILED)]
        axes.scatter(dots.lr, dots.val_loss, color=colour, s=18, zorder=3)
    style.mark_unusual(axes, rows, "lr", "val_loss", colours)
    axes.axvline(rows.lr.iloc[0] / rows.lr_scale.iloc[0], color="0.4", linewidth=1.0, linestyle=":")
    axes.set_xscale("log")
    tried = sorted(set(rows.lr))
    axes.set_xticks(tried, [_rate(lr) for lr in tried], fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _draw_optima(axes: Axes, groups: list[lr_optimum.Group], colours: dict[str, str]) -> None:
    for group in groups:
        best, lr, colour = group.optimum, group.study_lr, colours[group.attention]
        if best.scale is None or best.loss is None:
            continue
        if best.low is not None and best.high is not None:
            axes.plot([best.low * lr, best.high * lr], [best.loss] * 2, color="black", marker="|")
        axes.plot(best.scale * lr, best.loss, "*", color=colour, markersize=10, mec="black")


def _describe_optimum(group: lr_optimum.Group) -> str:
    best = group.optimum
    if best.scale is None:
        return lr_optimum.STATUSES[best.status]
    return f"optimum {_rate(best.scale * group.study_lr)}"


def _rate(lr: float) -> str:
    """``0.0006`` as ``6e-4``."""
    digits, _, power = f"{lr:.1e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def _legend(attentions: list[str], colours: dict[str, str]) -> list[Line2D]:
    return [
        *(Line2D([], [], color=colours[name], marker="o", label=name) for name in attentions),
        Line2D([], [], color="0.4", linestyle=":", label="rate of the study"),
        Line2D([], [], color="white", marker="*", mec="black", markersize=10, label="optimum"),
    ]
