"""Copy task: time and memory against the length. The model is the size that the study calls
copy, as small as that of the task. Time of a step and peak memory for each sequence, medians
with quartiles over repeats; a slope is the exponent over the longest three octaves, with its 95 %
interval (Student's t of the residuals; none for fewer than three lengths). A cross at the upper
edge marks a length that ran out of memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed
from lmscaling.fits import slopes

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status,
        1e3 * seconds / batch AS milliseconds,
        1e3 * lower_seconds / batch AS lower_milliseconds,
        1e3 * upper_seconds / batch AS upper_milliseconds,
        nullif(peak_memory_bytes, 0) / batch / 1e6 AS megabytes,
        megabytes AS lower_megabytes, megabytes AS upper_megabytes
    FROM speeds
    WHERE kind = 'copy_task'
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    figure, panels = speed.page(rows, 2, height=2.3, sharey=False)
    for axes, column, label in (
        (panels[0], "milliseconds", "Time (ms per sequence)"),
        (panels[1], "megabytes", "Memory (MB per sequence)"),
    ):
        speed.lines(axes, rows, column, speed.looks(rows))
        speed.log_scale([axes], "")
        axes.set_ylabel(label)
        _write_slopes(axes, rows, column)
    speed.powers_of_two(panels, rows.context, "Length (tokens)")
    return figure


def _write_slopes(axes: Axes, rows: DataFrame, column: str) -> None:
    """The exponents of the methods of the first sweep, in their colours."""
    own = rows.loc[rows[["source", "setup", "sweep", "size"]].eq(rows.iloc[0]).all(axis=1)]
    own = own.loc[own[column].notna()]
    methods = speed.methods(own.method.tolist())
    told = {name: _slope(own.loc[own.method == name], column) for name in methods}
    for i, (name, text) in enumerate((name, text) for name, text in told.items() if text):
        axes.text(
            0.02, 0.98 - 0.09 * i, f"slope {text}", color=methods[name].colour,
            fontsize="x-small", va="top", transform=axes.transAxes,
        )  # fmt: skip


def _slope(rows: DataFrame, column: str) -> str:
    found = slopes.exponent(rows.context, rows[column])
    if not found:
        return ""
    slope, interval = found
    return f"{slope:.2f} ({interval.low:.2f} to {interval.high:.2f})"
