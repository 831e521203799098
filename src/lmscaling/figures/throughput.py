"""Throughput of a training step that fills the device, against model size. Steps have several
sequences; of their contexts the three shortest are shown. Upper row: tokens per second. Lower row:
model FLOPs utilization (MFU), counted FLOPs per second, causal attention at half the cost, over the
dense bfloat16 peak of the device, known for GPUs only. A step is the forward pass, backward pass
and optimizer step; bars are quartiles over repeats. A cross at the upper edge marks a size that
ran out of memory.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "speed"

QUERY = """
    SELECT source, setup, '' AS sweep, size,
        coalesce(params, max(params) OVER (PARTITION BY size)) AS params,
        method, context, batch, repeats, status,
        batch * context / seconds AS pace,
        batch * context / upper_seconds AS lower_pace,
        batch * context / lower_seconds AS upper_pace,
        100 * mfu AS percent, 100 * mfu * seconds / upper_seconds AS lower_percent,
        100 * mfu * seconds / lower_seconds AS upper_percent
    FROM speeds
    WHERE kind = 'time_step' AND batch > 1
    QUALIFY params IS NOT NULL AND dense_rank() OVER (ORDER BY context) <= 3
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts = sorted(rows.context.unique())
    columns = {"pace": "Throughput (tokens per second)"}
    if rows.percent.notna().any():
        columns["percent"] = "MFU (%)"
    figure, panels = speed.page(
        rows, len(contexts) * len(columns), columns=len(contexts), height=2.4, sharey=False
    )
    wanted = [(column, context) for column in columns for context in contexts]
    for axes, (column, context) in zip(panels, wanted, strict=True):
        part = rows.loc[rows.context == context]
        speed.lines(axes, part, column, speed.looks(rows), x="params")
        axes.set_title(f"{part.batch.max()} sequences of {style.tokens(context)} tokens")
        style.count_scale(axes)
        axes.set_xlabel("N (parameters)")
        speed.log_scale([axes], "")
        axes.set_ylabel(columns[column])
    return figure
