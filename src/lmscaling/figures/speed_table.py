"""Figures of the speed study that are a panel for each size, and differ in methods and column."""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style
from lmscaling.figures.shared.entry import Entry

STEPS = """
    SELECT source, setup, sweep, size, params, method, context, batch, chunk, repeats, status,
        1e3 * seconds / batch AS milliseconds,
        1e3 * lower_seconds / batch AS lower_milliseconds,
        1e3 * upper_seconds / batch AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_step' AND {}
    ORDER BY ALL
"""
"""Times of steps, milliseconds of one sequence."""


def _by_size(column: str, label: str, *, slopes: bool = False, one: bool = False, **options) -> Any:
    """Draw a panel for each size, with guides of ``slopes``, or a line at ``one``."""

    def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
        figure, panels = speed.by_size(rows, column, label, **options)
        for size, axes in panels.items():
            if slopes:
                _draw_slopes(axes, rows.loc[(rows["size"] == size) & rows[column].notna()])
            if one:
                speed.line_at_one(axes)
        return figure

    return draw


def _draw_decode_time(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
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


FIGURES = {
    "chunked_against_all": Entry(
        """\
Chunked linear attention against the two forms that it combines. Time of a training step per
sequence against the context, one panel for each size; a step has as many sequences as have the
tokens of the study, published steps have one. The chunked form computes all pairs of tokens within
a chunk, as attention_parallel does, and passes a state between chunks, as state_parallel does;
chunked_materialized stores the states of all chunks. Softmax without a stored attention matrix
(flash, flash4, cudnn) is the baseline. Bars are quartiles over repeats. Marks at the upper edge
have no height: a cross is a context that ran out of memory, a plus one that exceeded the time
limit.
""",
        STEPS.format("""method IN (
        'linear chunked', 'linear chunked_materialized', 'linear attention_parallel',
        'linear state_parallel', 'softmax flash', 'softmax flash4', 'softmax cudnn'
    )"""),
        _by_size("milliseconds", speed.STEP_TIME),
        "speed",
    ),
    "decode_time": Entry(
        """\
Time to sample one token against the context length. Softmax attention reads a cache of keys and
values that grows with the context, linear attention a state of fixed size. One panel for each model
size and batch size; the time is that of one token for every sequence of the batch. Bars are
quartiles over repeats. Marks at the upper edge have no height: a cross is a context that ran out of
memory, a plus one that exceeded the time limit.
""",
        """
    SELECT source, setup, sweep, size, params, batch, method, context, repeats, status,
        1e3 * seconds AS milliseconds,
        1e3 * lower_seconds AS lower_milliseconds, 1e3 * upper_seconds AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_decode'
    ORDER BY ALL
""",
        _draw_decode_time,
        "speed",
    ),
    "formulations": Entry(
        """\
Five formulations of linear attention by the time of a training step. All compute the same
function: from all pairs of tokens in a loop (attention), in one matrix
(attention_parallel_no_flash) or tile by tile (attention_parallel); or from a state that is updated
token by token (state) or stored for all tokens (state_parallel). Time per sequence against the
context, one panel for each size; a step has as many sequences as have the tokens of the study,
published steps have one. Bars are quartiles over repeats. Marks at the upper edge have no height: a
cross is a context that ran out of memory, a plus one that exceeded the time limit.
""",
        STEPS.replace(" chunk,", "").format("""method IN (
        'linear attention', 'linear attention_parallel_no_flash', 'linear attention_parallel',
        'linear state', 'linear state_parallel'
    )"""),
        _by_size("milliseconds", speed.STEP_TIME),
        "speed",
    ),
    "memory": Entry(
        """\
Peak memory of a training step against the context. A step has as many sequences as have the
tokens of the study, one if none are given. On a GPU the largest amount allocated at any
time, including weights and optimizer state; on a CPU the peak resident memory minus that before the
measurement. One panel for each size. Marks at the upper edge have no height: a cross is a context
that ran out of memory, a plus one that exceeded the time limit. Published data have no memory
values and are excluded.
""",
        """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status,
        nullif(peak_memory_bytes, 0) / 1e9 AS gigabytes,
        gigabytes AS lower_gigabytes, gigabytes AS upper_gigabytes
    FROM speeds
    WHERE kind = 'time_step'
    QUALIFY max(peak_memory_bytes) OVER (PARTITION BY source, setup) > 0
    ORDER BY ALL
""",
        _by_size("gigabytes", "Peak memory (GB)", spread="maximum of {} repeats"),
        "speed",
    ),
    "speed_up": Entry(
        """\
Speed-up of a training step over softmax attention. Time of a step with the fastest softmax
implementation that was measured divided by that with another attention, for the same size, context
and setup; above 1 the other one is faster. Bars extend from the lower quartile of the former over
the upper quartile of the latter to the opposite ratio. A line ends where either of the two was not
measured.
""",
        """
    WITH step AS (SELECT * FROM speeds WHERE kind = 'time_step' AND status = 'done')
    SELECT source, setup, sweep, size, s.params, s.method, context, batch, s.repeats, s.status,
        b.method AS baseline, 1e3 * b.seconds / batch AS baseline_milliseconds,
        1e3 * s.seconds / batch AS milliseconds, b.seconds / s.seconds AS speed_up,
        b.lower_seconds / s.upper_seconds AS lower_speed_up,
        b.upper_seconds / s.lower_seconds AS upper_speed_up
    FROM step s
    JOIN (
        FROM step WHERE attention = 'softmax'
        QUALIFY row_number() OVER (
            PARTITION BY source, setup, sweep, size, context, batch ORDER BY seconds, method
        ) = 1
    ) b USING (source, setup, sweep, size, context, batch)
    WHERE s.attention <> 'softmax'
    ORDER BY ALL
""",
        _by_size("speed_up", "Speed-up (fastest softmax = 1)", one=True),
        "speed",
    ),
    "step_time": Entry(
        """\
Time of a training step per sequence against the context. A step is the forward pass, backward
pass and optimizer step of as many sequences as have the tokens of the study, one if none are
given; published steps have one. One panel for each size. Softmax attention is computed without
storing the attention matrix (flash, flash4, cudnn) or with it (no_flash), linear attention token by
token (state) or in chunks of tokens (chunked). Bars are quartiles over repeats. Thin grey lines
grow linearly (1) and quadratically (2) with the context. Marks at the upper edge have no height: a
cross is a context that ran out of memory, a plus one that exceeded the time limit.
""",
        STEPS.format("""(
        method IN (
            'softmax flash', 'softmax flash4', 'softmax no_flash', 'softmax cudnn', 'linear state',
            'linear chunked'
        ) OR attention NOT IN ('softmax', 'linear')
    )"""),
        _by_size("milliseconds", speed.STEP_TIME, slopes=True),
        "speed",
    ),
}
