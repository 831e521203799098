"""Final loss against training context, by attention and size. Each point is the validation loss of
one run at the end of its budget, on the same validation tokens cut to its training context; lines
join means over the seeds that have not failed, darker lines are larger models, and bars, shifted
sideways, are explained below the panels. All runs have the same budget and the same tokens per
update, so a longer context means fewer sequences, not more text. Hollow diamonds spent over 5 %
more or less than their budget, as written beside them, and no line joins them. Open circles are the
last losses of unfinished runs. Arrows at the upper edge are failed runs (diverged or exploded).
Published runs (squares and dotted lines beside measured runs) are training losses; the post
averaged the last updates.
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
    ORDER BY source, attention DESC, params, size, context, seed
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours, shades = style.palette(rows.attention), style.shades_of(rows)
    attentions = list(dict.fromkeys(attention for attention, _ in shades))
    known = spreads(rows)
    figure, panels = style.panels(len(attentions), 2, 2.6)
    for attention, axes in zip(attentions, panels, strict=True):
        part = rows.loc[rows.attention == attention]
        sizes = [(size, shade) for (name, size), shade in shades.items() if name == attention]
        for (size, shade), shift in zip(sizes, ends.shifts(len(sizes), rows.context), strict=True):
            own, mixed = part.loc[part["size"] == size], style.mixes_sources(rows.source)
            ends.draw(axes, own, "context", shade, known, mixed, shift)
        ends.label_unequal(axes, part, "context")
        ends.mark_unusual(axes, part, "context", "loss", colours)
        style.context_scale(axes, rows.context, 7)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(f"{attention} attention")
        axes.set_xlabel("Context (tokens)")
    panels[0].set_ylabel(style.loss_label(rows))
    style.legend_of(figure, shades, rows.source)
    ends.note(figure, known)
    return figure
