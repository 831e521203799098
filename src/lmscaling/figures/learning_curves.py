"""Learning curves against steps, tokens, hours or FLOPs.

Each x axis is a separate figure across the page; the report shows one of them at a time.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import floors, style
from lmscaling.figures.shared.entry import Entry

QUERY = "FROM learning_curves ORDER BY ALL"

AXES = {
    "updates": "Steps",
    "tokens": "Tokens",
    "hours": "Training time (hours)",
    "flops": "Compute (FLOPs)",
}

MOST_COLUMNS = 3
"""Panels side by side."""


def draw(rows: DataFrame, db: DuckDBPyConnection, column: str) -> Figure:
    """A panel for each context, with losses against ``column``, a key of ``AXES``."""
    contexts = sorted(rows.context.unique())
    published = style.PUBLISHED if style.mixes_sources(rows.source) else {}
    shades = style.shades_of(rows)
    figure, panels = style.panels(len(contexts), MOST_COLUMNS, 2.2)
    for context, axes in zip(contexts, panels, strict=True):
        _draw_panel(axes, rows.loc[rows.context == context], column, shades, published)
        axes.set_title(f"context {context:,}")
    floors.draw(panels, db, rows, contexts)
    style.label_outer(panels, AXES[column], "Loss (nats per token)")
    style.legend_of(figure, shades, rows.source)
    return figure


def _draw_panel(
    axes: Axes,
    rows: DataFrame,
    column: str,
    shades: dict[tuple[str, str], str],
    published: dict[str, Any],
) -> None:
    for (attention, size), colour in shades.items():  # dashed lines last: they hide less
        cell = rows.loc[(rows.attention == attention) & (rows["size"] == size)]
        for _, run in cell.groupby("run"):
            curve, dots = run[run.split == "train"], run[run.split == "validation"]
            look = {"linestyle": style.dashes(attention), "linewidth": 1.0}
            if curve.source.eq("published").any():
                look |= published
            axes.plot(curve[column], curve.loss, color=colour, **look)
            style.draw_spikes(axes, curve, column, colour)
            if len(dots):
                axes.scatter(dots[column], dots.loss, color=colour, s=9, zorder=3, linewidth=0)
        ends = cell[cell.split == "decayed"]
        if len(ends):
            axes.scatter(
                ends[column], ends.loss,
                marker="D", facecolor="white", edgecolor=colour, s=16, zorder=4, linewidth=0.9,
            )  # fmt: skip
    axes.set_xscale("log")
    style.loss_scale(axes)


def _entry(caption: str, column: str, query: str = QUERY) -> Entry:
    def draw_against(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
        return draw(rows, db, column)

    label = {"flops": "FLOPs", "updates": "steps"}.get(column, column)
    return Entry(caption, query, draw_against, "learning", ("Training loss against", label))


FIGURES = {
    "learning_curves": _entry(
        """\
Training loss of each run against steps. Lines are means over 60 logarithmic intervals without
spikes; a thin vertical stroke reaches up to the highest spike of an interval. Dots are validation
losses. One panel for each context; colours and strokes are attentions, darker lines larger models.
Hollow diamonds are validation losses at the ends of decayed branches, at the total cost of trunk
and branch. Published runs (dotted beside measured runs) have training losses only: about 50 points
for each run, each a mean over 100 steps, which hide most spikes.
""",
        "updates",
    ),
    "learning_curves_tokens": _entry(
        """\
Training loss of each run against tokens. Lines, dots and diamonds as in the figure against
steps. If all runs have the same tokens per step, the x axes differ by a constant factor.
""",
        "tokens",
    ),
    "learning_curves_hours": _entry(
        """\
Training loss of each run against hours. Lines, dots and diamonds as in the figure against
steps. Hours are training time, which the budget counts; within the same budget a faster
attention completes more steps.
""",
        "hours",
    ),
    "learning_curves_flops": _entry(
        """\
Training loss of each run against FLOPs. Lines, dots and diamonds as in the figure against
steps. FLOPs are counted by formula for each attention, causal attention at half the cost; those
of published runs are counted from the shapes of their models, as the post has no such numbers.
""",
        "flops",
        "FROM learning_curves WHERE flops IS NOT NULL ORDER BY ALL",
    ),
}
