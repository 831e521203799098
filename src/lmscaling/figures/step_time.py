"""Time of a training step per sequence against the context. A step is the forward pass, backward
pass and optimizer update of as many sequences as have the tokens of the study, one if none are
given; published steps have one. One panel for each size. Softmax attention is computed without
storing the attention matrix (flash, flash4, cudnn) or with it (no_flash), linear attention token by
token (state) or in chunks of tokens (chunked). Bars are quartiles over repeats. Thin grey lines
grow linearly (1) and quadratically (2) with the context. Marks at the upper edge have no height: a
cross is a context that ran out of memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, chunk, repeats, status,
        1e3 * seconds / batch AS milliseconds,
        1e3 * lower_seconds / batch AS lower_milliseconds,
        1e3 * upper_seconds / batch AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_step' AND (
        method IN (
            'softmax flash', 'softmax flash4', 'softmax no_flash', 'softmax cudnn', 'linear state',
            'linear chunked'
        ) OR attention NOT IN ('softmax', 'linear')
    )
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    figure, panels = speed.by_size(rows, "milliseconds", speed.STEP_TIME)
    for size, axes in panels.items():
        _draw_slopes(axes, rows.loc[(rows["size"] == size) & rows.milliseconds.notna()])
    return figure


def _draw_slopes(axes: Axes, rows: DataFrame) -> None:
    """Draw guides of slope 1 and 2 below the lines. The steeper one ends at the last context, at
    half of the shortest time there."""
    last, least = rows.context.max(), rows.milliseconds.min()
    width = (rows.milliseconds[rows.context == last].min() / 2 / least) ** 0.5
    if not width > 1.5:  # too short to show a slope, or NaN without a measurement
        return
    for slope in (1, 2):
        height = least * width**slope
        axes.plot([last / width, last], [least, height], color="0.6", linewidth=0.7, zorder=0)
        axes.annotate(
            str(slope), (last, height), (3, 0), textcoords="offset points",
            color="0.45", fontsize="small", va="center", annotation_clip=False,
        )  # fmt: skip
