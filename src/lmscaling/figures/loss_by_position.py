"""Loss against the position of a token in its context. Left: position in the packed sequence;
right: position in the document, of which the sequence may contain only the end. Rows are training
contexts; each model is evaluated with its final weights at its training context. Colours are
attentions (each with its stroke), darker lines larger models. Losses are averaged over position
bins of doubling width. Bands are one standard error over up to 32 contiguous blocks of validation
text; bins with an error above 10 % of the loss are excluded. At most four contexts and two datasets
are drawn; the CSV file contains all.
"""

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "learning"

# Bins that only a few blocks reach depend on single documents more than on the model.
QUERY = """
    SELECT dataset, context, attention, size, params, seed, run, status, axis, "start", stop,
        position, tokens, loss, loss_se
    FROM by_position
    WHERE eval_context = context AND loss IS NOT NULL AND run IN (SELECT run FROM final)
    QUALIFY loss_se < loss / 10 OR count(loss_se) OVER (PARTITION BY run, dataset, axis) = 0
    ORDER BY ALL
"""

AXES = {
    "sequence": "Position in sequence\n(tokens)",
    "document": "Position in document\n(tokens)",
}
MOST_CONTEXTS, MOST_DATASETS = 4, 2
"""Rows, and pairs of columns, that fit on a page."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts = style.spread(sorted(rows.context.unique()), MOST_CONTEXTS)
    datasets = sorted(rows.dataset.unique())[:MOST_DATASETS]
    columns = [(dataset, axis) for dataset in datasets for axis in AXES]
    shades = style.shades_of(rows)
    figure, panels = plt.subplots(
        len(contexts), len(columns), figsize=(style.PAGE, 0.9 + 1.9 * len(contexts)),
        sharex="col", sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    for context, row in zip(contexts, panels, strict=True):
        for (dataset, axis), axes in zip(columns, row, strict=True):
            wanted = (rows.context == context) & (rows.dataset == dataset) & (rows.axis == axis)
            _draw_panel(axes, rows.loc[wanted], shades)
        row[0].set_ylabel("Loss (nats per token)")
        row[-1].annotate(
            f"context {context:,}", (1.02, 0.5), xycoords="axes fraction", rotation=270, va="center"
        )
    for (dataset, axis), top, bottom in zip(columns, panels[0], panels[-1], strict=True):
        bottom.set_xlabel(AXES[axis])
        if len(datasets) > 1:
            top.set_title(dataset)
    style.legend_of(figure, shades)
    sns.despine(figure)
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, shades: dict[tuple[str, str], str]) -> None:
    for (attention, size), colour in shades.items():
        cell = rows.loc[(rows.attention == attention) & (rows["size"] == size)]
        for _, run in cell.groupby("run"):
            line = run.sort_values("position")
            band = line.loss_se.fillna(0.0)
            axes.fill_between(
                line.position, line.loss - band, line.loss + band,
                color=colour, alpha=0.2, linewidth=0,
            )  # fmt: skip
            axes.plot(
                line.position, line.loss, linestyle=style.dashes(attention),
                color=colour, linewidth=1.0,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=7))
    axes.xaxis.set_minor_locator(NullLocator())
    style.loss_scale(axes)
