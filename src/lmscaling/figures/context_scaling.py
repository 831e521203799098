"""Final loss against training context, by attention and size. Each point is the validation loss of
one run at the end of its budget, on the same validation tokens cut to its training context; lines
are means over seeds, bars their range, darker lines larger models. All runs have the same budget
and the same tokens per update, so a longer context means fewer sequences, not more text. Hollow
points are unfinished runs, crosses diverged runs. Published runs (squares and dotted lines beside
measured runs) are training losses, means over the last updates.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "learning"

QUERY = """
    SELECT source, split, attention, size, params, context, seed, lr_scale, status, update, tokens,
        hours, loss
    FROM final
    ORDER BY source, attention DESC, params, size, context, seed
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours = style.palette(rows.attention.tolist())
    attentions = [name for name in colours if name in set(rows.attention)]
    sizes = rows.sort_values(["params", "size"])["size"].unique().tolist()
    contexts = sorted(rows.context.unique())
    grid = sns.FacetGrid(
        rows, col="attention", col_order=attentions, col_wrap=min(3, len(attentions)),
        height=2.8, aspect=style.PAGE / 2.8 / min(3, max(2, len(attentions))) * 0.98,
    )  # fmt: skip
    for attention, axes in grid.axes_dict.items():
        part = rows.loc[rows.attention == attention]
        sns.lineplot(
            part, x="context", y="loss", hue="size", hue_order=sizes,
            palette=style.shades(colours[attention], len(sizes)),
            markersize=5, errorbar=("pi", 100), err_style="bars", ax=axes, **style.by_source(rows),
        )  # fmt: skip
        style.mark_unusual(axes, part, "context", "loss", colours)
        axes.set_xscale("log", base=2)
        axes.set_xticks(contexts[:: 1 if len(contexts) < 8 else 2])
        axes.xaxis.set_major_formatter(FuncFormatter(style.tokens))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(f"{attention} attention")
        style.tidy(axes.legend(title="Size", loc="upper left", bbox_to_anchor=(1.0, 1.0)))
    grid.set_axis_labels("Context (tokens)", style.loss_label(rows))
    grid.figure.tight_layout()
    return grid.figure
