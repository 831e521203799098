"""Final losses against the training context and against the model size, with a line for each
attention: panels are the sizes of the one, and the contexts of the other."""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import ends, floors, style
from lmscaling.figures.shared.entry import Entry
from lmscaling.fits.ends import QUERY as ENDS
from lmscaling.fits.ends import spreads

ORDER = "ORDER BY source, params, size, context, attention DESC, seed"
SEVERAL = "(SELECT count(DISTINCT {}) > 1 FROM known WHERE branch IS NULL)"
CONTEXTS = f"FROM ({ENDS}) WHERE {SEVERAL.format('context')} {ORDER}"
"""A single context needs no figure against it."""
SIZES = f"""
    FROM ({ENDS}) WHERE {SEVERAL.format("size")} OR NOT {SEVERAL.format("context")} {ORDER}
"""
"""Nor does a single size, but where it is the only figure of final losses."""

MARKS = """\
Hollow diamonds spent over 5 % more or less than their budget, as written beside them, and no line
joins them. Open circles are the last losses of unfinished runs. Arrows at the upper edge are failed
runs (diverged or exploded). Published runs (squares and dotted lines beside measured runs) are
training losses; the post averaged the last steps.
"""


def draw_contexts(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    sizes = style.sizes_of(rows)
    figure, panels = style.panels(len(sizes), 2, 2.4)
    for size, axes in zip(sizes, panels, strict=True):
        _draw_panel(axes, rows, rows.loc[rows["size"] == size], "context")
        axes.set_title(size)
        style.context_scale(axes, rows.context, 7)
    floors.draw(panels, db, rows)
    return _finish(figure, panels, rows, "Context (tokens)")


def draw_sizes(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts = sorted(rows.context.unique())
    figure, panels = style.panels(len(contexts), 3, 2.1)
    for context, axes in zip(contexts, panels, strict=True):
        _draw_panel(axes, rows, rows.loc[rows.context == context], "params")
        axes.set_title(f"context {context:,}")
        axes.set_xlim(rows.params.min() / 1.3, rows.params.max() * 1.3)  # also of a single size
        style.count_scale(axes)
    floors.draw(panels, db, rows, contexts, x=0.985)
    return _finish(figure, panels, rows, "N (parameters)")


def _draw_panel(axes: Axes, rows: DataFrame, part: DataFrame, x: str) -> None:
    colours, mixed = style.palette(rows.attention), style.mixes_sources(rows.source)
    known = spreads(rows)
    bars = ends.shifts(len(colours), rows.context if x == "context" else rows.params)
    for (name, colour), shift in zip(colours.items(), bars, strict=True):
        ends.draw(axes, part.loc[part.attention == name], x, colour, known, mixed, shift)
    ends.label_unequal(axes, part, x)
    ends.mark_unusual(axes, part, x, "loss", colours)
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _finish(figure: Figure, panels: list[Axes], rows: DataFrame, x: str) -> Figure:
    colours = style.palette(rows.attention)
    style.label_outer(panels, x, style.loss_label(rows))
    handles = style.attention_handles(colours, colours, False)
    style.legend(figure, handles + style.published_handle(rows.source))
    ends.note(figure, spreads(rows))
    return figure


FIGURES = {
    "context_scaling": Entry(
        f"""\
Final loss against training context, by model size. Points are the losses of runs on the same
validation tokens, cut to the training context; lines join means over seeds. All runs have the same
budget and the same tokens per step, so a longer context means fewer sequences, not more text.
{MARKS}""",
        CONTEXTS,
        draw_contexts,
        "learning",
    ),
    "parameter_scaling": Entry(
        f"""\
Final loss against model size, by context. Points are the validation losses of runs at the end of
their budget; lines join means over seeds. N counts parameters without embeddings. {MARKS}""",
        SIZES,
        draw_sizes,
        "learning",
    ),
}
