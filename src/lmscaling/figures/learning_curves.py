"""Training loss along each run, against updates, tokens, hours and FLOPs. Lines are means over 60
intervals of equal ratio; dots are validation losses. Rows of panels are contexts, colours
attentions (all but the first dashed), and darker lines larger models. Hollow diamonds, where there
are any, are validation losses at the ends of decayed branches, placed by all that the branch and
its trunk spent. Updates and tokens run alike for every cell; hours show what an attention costs,
and FLOPs, where they are known, what it computes. Published runs, dotted where ours stand beside
them, are training losses alone: some 50 points a run, each a mean over 100 updates, so that most of
their spikes lie between two points.
"""

from typing import Any

import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from pandas import DataFrame

from lmscaling.figures import style

QUERY = """
    SELECT 'train' AS split, source, context, attention, size, params, seed, run, status,
        updates, tokens, hours, flops, loss
    FROM curves
    UNION ALL
    SELECT 'validation', source, context, attention, size, params, seed, run, status,
        update, tokens, hours, flops, val_loss
    FROM validation
    WHERE run IN (SELECT run FROM final)
    UNION ALL
    SELECT 'decayed', 'measured', context, attention, size, params, seed, run, 'done',
        update, tokens, hours, flops, val_loss
    FROM endpoints
    WHERE trunk IN (SELECT run FROM final)
    ORDER BY ALL
"""

AXES = {
    "updates": "Updates",
    "tokens": "Tokens",
    "hours": "Productive time (hours)",
    "flops": "Compute (FLOPs)",
}


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts = sorted(rows.context.unique())
    published = style.PUBLISHED if style.beside(rows.source) else {}
    shades = style.shades_of(rows)
    columns = {name: label for name, label in AXES.items() if bool(rows[name].notna().any())}
    figure, panels = plt.subplots(
        len(contexts), len(columns), figsize=(style.PAGE, 0.9 + 1.7 * len(contexts)),
        sharex="col", sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    for context, row in zip(contexts, panels, strict=True):
        for column, axes in zip(columns, row, strict=True):
            _draw_panel(axes, rows.loc[rows.context == context], column, shades, published)
        row[0].set_ylabel("Loss (nats per token)")
        row[-1].annotate(
            f"context {context:,}", (1.02, 0.5), xycoords="axes fraction", rotation=270, va="center"
        )
    for axes, label in zip(panels[-1], columns.values(), strict=True):
        axes.set_xlabel(label)
    style.legend_of(figure, shades, rows.source)
    sns.despine(figure)
    return figure


def _draw_panel(
    axes: Axes,
    rows: DataFrame,
    column: str,
    shades: dict[tuple[str, str], str],
    published: dict[str, Any],
) -> None:
    attentions = [attention for attention, _ in shades]
    for (attention, size), colour in shades.items():  # the dashed ones last, so that all are seen
        cell = rows.loc[(rows.attention == attention) & (rows["size"] == size)]
        for _, run in cell.groupby("run"):
            curve, dots = run[run.split == "train"], run[run.split == "validation"]
            look = {"linestyle": style.dashes(attention, attentions), "linewidth": 1.0}
            if curve.source.eq("published").any():
                look |= published
            axes.plot(curve[column], curve.loss, color=colour, **look)
            axes.scatter(dots[column], dots.loss, color=colour, s=9, zorder=3, linewidth=0)
        ends = cell[cell.split == "decayed"]
        axes.scatter(
            ends[column], ends.loss,
            marker="D", facecolor="white", edgecolor=colour, s=16, zorder=4, linewidth=0.9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    style.loss_scale(axes)
