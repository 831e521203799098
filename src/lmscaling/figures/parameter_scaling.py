"""Final loss against model size, by attention and context. Each point is the validation loss of one
run at the end of its budget; lines are means over seeds, bars their range. N counts parameters
without embeddings. Hollow points are unfinished runs, crosses diverged runs. Published runs
(squares and dotted lines beside measured runs) are training losses, means over the last updates.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "learning"

QUERY = """
    SELECT source, split, context, attention, size, params, seed, lr_scale, status, update, tokens,
        hours, loss
    FROM final
    ORDER BY source, context, attention DESC, params, size, seed
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours = style.palette(rows.attention.tolist())
    contexts = sorted(rows.context.unique())
    grid = sns.relplot(
        rows, kind="line",
        x="params", y="loss", hue="attention", palette=colours,
        hue_order=[name for name in colours if name in set(rows.attention)],
        col="context", col_order=contexts, col_wrap=min(4, len(contexts)),
        markersize=5, errorbar=("pi", 100), err_style="bars", **style.by_source(rows),
        height=2.4, aspect=style.PAGE / 2.4 / min(4, max(2, len(contexts))) * 0.86,
        facet_kws={"legend_out": True},
    )  # fmt: skip
    for context, axes in grid.axes_dict.items():
        style.mark_unusual(axes, rows[rows.context == context], "params", "loss", colours)
        axes.set_title(f"context {context:,}")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        style.count_scale(axes)
    grid.set_axis_labels("N (parameters)", style.loss_label(rows))
    sns.move_legend(grid, "center right", title="Attention")
    if grid.legend:
        style.tidy(grid.legend)
    return grid.figure
