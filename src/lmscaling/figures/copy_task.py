"""Copy task: accuracy, time and memory against the context. A context is a sequence of random
symbols, a separator and the copy. Left: share of the copied tokens predicted correctly after
training, for the contexts that were trained. Middle: time of an update per token, medians with
quartiles over repeats. Right: peak memory. A cross at the upper edge marks a context that ran out
of memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status, updates,
        loss, accuracy, accuracy AS lower_accuracy, accuracy AS upper_accuracy,
        1e6 * seconds / (batch * context) AS microseconds,
        1e6 * lower_seconds / (batch * context) AS lower_microseconds,
        1e6 * upper_seconds / (batch * context) AS upper_microseconds,
        nullif(peak_memory_bytes, 0) / 1e9 AS gigabytes,
        gigabytes AS lower_gigabytes, gigabytes AS upper_gigabytes
    FROM speeds
    WHERE kind = 'copy_task'
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    figure, panels = speed.page(rows, 3, height=2.3, sharey=False)
    accuracy, time, memory = panels
    trained = rows.loc[rows.accuracy.notna()]
    speed.lines(accuracy, trained, "accuracy", speed.looks(rows))
    accuracy.set_ylim(-0.03, 1.03)
    accuracy.yaxis.set_major_locator(MaxNLocator(5))
    accuracy.set_ylabel("Accuracy (share of tokens)")
    if trained.empty:
        accuracy.annotate("no context was trained", (0.5, 0.5), xycoords="axes fraction",
                          ha="center", color="0.4")  # fmt: skip
    for axes, column, label in (
        (time, "microseconds", "Time of an update (µs per token)"),
        (memory, "gigabytes", "Peak memory (GB)"),
    ):
        speed.lines(axes, rows, column, speed.looks(rows))
        speed.log_scale([axes], "")
        axes.set_ylabel(label)
    speed.powers_of_two(panels, rows.context, "Context (tokens)")
    return figure
