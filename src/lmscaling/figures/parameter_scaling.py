"""Final loss against model size, by attention and context. Each point is the validation loss of one
run at the end of its budget; lines join means over the seeds that have not failed, and bars,
shifted sideways, are explained below the panels. N counts parameters without embeddings. Hollow
diamonds spent over 5 % more or less than their budget, as written beside them, and no line joins
them. Open circles are the last losses of unfinished runs. Arrows at the upper edge are failed runs
(diverged or exploded). Published runs (squares and dotted lines beside measured runs) are training
losses; the post averaged the last updates.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import ends, style
from lmscaling.fits.ends import QUERY as ENDS
from lmscaling.fits.ends import spreads

SECTION = "learning"

QUERY = f"""{ENDS.rstrip()}
    ORDER BY source, context, attention DESC, params, size, seed
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours, mixed = style.palette(rows.attention), style.mixes_sources(rows.source)
    contexts, known = sorted(rows.context.unique()), spreads(rows)
    bars = ends.shifts(len(colours), rows.params)
    figure, panels = style.panels(len(contexts), 3, 2.1)
    for context, axes in zip(contexts, panels, strict=True):
        part = rows.loc[rows.context == context]
        for (attention, colour), shift in zip(colours.items(), bars, strict=True):
            own = part.loc[part.attention == attention]
            ends.draw(axes, own, "params", colour, known, mixed, shift)
        ends.label_unequal(axes, part, "params")
        ends.mark_unusual(axes, part, "params", "loss", colours)
        axes.set_title(f"context {context:,}")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlim(rows.params.min() / 1.3, rows.params.max() * 1.3)  # also of a single size
        style.count_scale(axes)
    style.label_outer(panels, "N (parameters)", style.loss_label(rows))
    handles = style.attention_handles(colours, colours, False)
    style.legend(figure, handles + style.published_handle(rows.source))
    ends.note(figure, known)
    return figure
