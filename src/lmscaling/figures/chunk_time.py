"""Time of a training step per sequence against the chunk size. One line for each context, darker
for longer ones; a star marks its fastest chunk size. One panel for each model size and
implementation. Bars are quartiles over repeats. A cross at the upper edge marks a chunk size that
ran out of memory, a plus one that exceeded the time limit.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
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


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    methods = list(speed.methods(rows.method.tolist()))
    timed = set(rows[["size", "method"]].itertuples(index=False, name=None))
    wanted = [(s, m) for m in methods for s in style.sizes_of(rows) if (s, m) in timed]
    shades = _context_shades(rows)
    figure, panels = speed.page(rows, len(wanted), handles=_legend(shades))
    for axes, (size, method) in zip(panels, wanted, strict=True):
        part = rows.loc[(rows["size"] == size) & (rows.method == method)]
        _draw_panel(axes, part, shades, speed.looks(rows))
        axes.set_title(f"{size}, {method}")
    speed.powers_of_two(panels, rows.chunk, "Chunk (tokens)")
    speed.log_scale(panels, speed.STEP_TIME)
    return figure


def _context_shades(rows: DataFrame) -> dict[int, speed.Method]:
    """The look of each context: the colour of linear attention, darker for longer ones."""
    contexts = sorted(rows.context.unique())
    shades = style.shades(style.COLOURS["linear"], len(contexts) + 3)[3:]  # the first are too light
    return {
        context: speed.Method(shade, style.MARKERS[i % len(style.MARKERS)])
        for i, (context, shade) in enumerate(zip(contexts, shades, strict=True))
    }


def _draw_panel(
    axes: Axes,
    rows: DataFrame,
    shades: dict[int, speed.Method],
    looks: dict[tuple[str, str], speed.Look],
) -> None:
    groups: list[tuple[Any, DataFrame]] = list(
        rows.groupby(["context", "source", "setup", "sweep"])
    )
    for (context, source, setup, _), part in groups:
        speed.line(axes, part, "chunk", "milliseconds", shades[context], looks[source, setup])
        done = part[part.milliseconds.notna()]
        if len(done):
            best = done.loc[done.milliseconds.idxmin()]
            axes.plot(best.chunk, best.milliseconds, **STAR)


STAR = {"marker": "*", "color": "white", "markeredgecolor": "black", "markersize": 9, "zorder": 5}


def _legend(shades: dict[int, speed.Method]) -> list[Line2D]:
    return [
        *(
            Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5,
                   label=f"context {style.tokens(context)}")
            for context, look in shades.items()
        ),
        Line2D([], [], linestyle="", label="fastest", **STAR),
    ]  # fmt: skip
