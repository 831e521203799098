"""Time of a training step per sequence against the chunk size. One line for each context, darker
for longer ones; a star marks its fastest chunk size. One panel for each model size and
implementation. Bars are quartiles over repeats. A cross at the upper edge marks a chunk size that
ran out of memory, a plus one that exceeded the time limit.
"""

from itertools import cycle

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params,
        concat_ws(' ', attention, nullif(implementation, '')) AS method,
        context, chunk, batch, repeats, status,
        1e3 * median_seconds / batch AS milliseconds,
        1e3 * lower_seconds / batch AS lower_milliseconds,
        1e3 * upper_seconds / batch AS upper_milliseconds
    FROM measurements
    WHERE kind = 'time_step' AND chunk IS NOT NULL
    QUALIFY count(*) OVER (PARTITION BY source, setup, sweep, size, method, context, batch) > 1
    ORDER BY ALL
"""


STAR = {"marker": "*", "color": "white", "markeredgecolor": "black", "markersize": 9, "zorder": 5}


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    timed = set(rows[["size", "method"]].itertuples(index=False, name=None))
    methods, sizes = speed.methods(rows.method.tolist()), style.sizes_of(rows)
    wanted = [(s, m) for m in methods for s in sizes if (s, m) in timed]
    shades = _shades(sorted(rows.context.unique()))
    fastest = Line2D([], [], linestyle="", label="fastest", **STAR)
    figure, panels = speed.page(rows, len(wanted), handles=[*speed.handles_of(shades), fastest])
    for axes, (size, method) in zip(panels, wanted, strict=True):
        part = rows.loc[(rows["size"] == size) & (rows.method == method)]
        part = part.assign(method=part.context.map(_name))
        speed.lines(axes, part, "milliseconds", speed.looks(rows), x="chunk", known=shades)
        done = part.loc[part.milliseconds.notna()]
        best = done.groupby(["method", "source", "setup", "sweep"]).milliseconds.idxmin()
        axes.plot(done.chunk[best], done.milliseconds[best], linestyle="", **STAR)
        axes.set_title(f"{size}, {method}")
    speed.powers_of_two(panels, rows.chunk, "Chunk (tokens)")
    speed.log_scale(panels, speed.STEP_TIME)
    return figure


def _name(context: int) -> str:
    return f"context {style.tokens(context)}"


def _shades(contexts: list[int]) -> dict[str, speed.Method]:
    """The look of each context: the colour of linear attention, darker for longer ones."""
    shades = style.shades(style.COLOURS["linear"], len(contexts))
    looks = zip(shades, cycle(style.MARKERS), strict=False)
    return {_name(c): speed.Method(*look) for c, look in zip(contexts, looks, strict=False)}
