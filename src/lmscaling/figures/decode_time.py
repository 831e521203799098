"""Time to sample one token against the context length. Softmax attention reads a cache of keys and
values that grows with the context, linear attention a state of fixed size. One panel for each model
size and batch size; the time is that of one token for every sequence of the batch. Bars are
quartiles over repeats. Marks at the upper edge have no height: a cross is a context that ran out of
memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, batch, method, context, repeats, status,
        1e3 * seconds AS milliseconds,
        1e3 * lower_seconds AS lower_milliseconds, 1e3 * upper_seconds AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_decode'
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    batches = sorted(rows.batch.unique())
    wanted = [(size, batch) for size in style.sizes_of(rows) for batch in batches]
    columns = len(batches) if len(batches) > 1 else None
    figure, panels = speed.page(rows, len(wanted), columns=columns, height=1.8)
    for axes, (size, batch) in zip(panels, wanted, strict=True):
        part = rows.loc[(rows["size"] == size) & (rows.batch == batch)]
        speed.lines(axes, part, "milliseconds", speed.looks(rows))
        axes.set_title(f"{size}, {batch} sequence{'s' if batch > 1 else ''}")
    speed.powers_of_two(panels, rows.context, "Context (tokens)")
    speed.log_scale(panels, "Time per token (ms)")
    return figure
