"""Time of every implementation of attention against the context, with the limit set by memory
bandwidth. Left: one sequence. Right: as many as fill the device. Rows are passes. The grey line is
the time to read and write every input, output and gradient once, at the bandwidth of a copy on the
same device. Bars are ranges over repeats. Implementations that failed the comparison with exact
results were not timed.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "speed"

QUERY = """
    SELECT source, setup, '' AS sweep, concat_ws(' ', kind, implementation) AS method,
        passes, dtype, if(batch = 1, 1, batch * context) AS tokens,
        n_head, d_head, context, batch, repeats, status, message,
        ns_per_token_head AS nanoseconds,
        least_seconds / median_seconds * ns_per_token_head AS lower_nanoseconds,
        most_seconds / median_seconds * ns_per_token_head AS upper_nanoseconds,
        floor_fraction, ns_per_token_head * floor_fraction AS floor_nanoseconds
    FROM kernel_times
    WHERE context > 0
    QUALIFY n_head = min(n_head) OVER ()
    ORDER BY ALL
"""

SPREAD = "medians of {} repeats"


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    loads = sorted(rows.tokens.unique())
    wanted = [(passes, load) for passes in sorted(rows.passes.unique()) for load in loads]
    figure, panels = speed.page(
        rows, len(wanted), columns=len(loads), height=2.4, spread=f"{SPREAD}{_wrong(db)}"
    )
    heads = f"{rows.n_head.min()} heads of {rows.d_head.min()}"
    for axes, (passes, load) in zip(panels, wanted, strict=True):
        part = rows.loc[(rows.passes == passes) & (rows.tokens == load)]
        speed.lines(axes, part, "nanoseconds", speed.looks(rows))
        _draw_floor(axes, part)
        axes.set_title(f"{passes}, {_at_once(load)}, {heads}", fontsize="small")
    speed.powers_of_two(panels, rows.context, "Context (tokens)")
    speed.log_scale(panels, "Time (ns per token, head)")
    return figure


def _at_once(load: int) -> str:
    return "1 sequence" if load == 1 else f"{style.tokens(load)} tokens"


def _draw_floor(axes: Axes, rows: DataFrame) -> None:
    floors = rows.floor_nanoseconds.dropna()
    if len(floors):
        axes.axhline(floors.median(), color="0.35", linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)


def _wrong(db: DuckDBPyConnection) -> str:
    """What was not timed, as the end of the note."""
    query = "SELECT DISTINCT implementation FROM kernel_times WHERE status = 'wrong' ORDER BY ALL"
    names = [name for (name,) in db.sql(query).fetchall()]
    return f"; wrong and not timed: {', '.join(names)}" if names else ""
