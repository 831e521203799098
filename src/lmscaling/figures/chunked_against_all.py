"""Chunked linear attention against the two forms that it combines. Time of a training step against
the context, one panel for each size. The chunked form computes all pairs of tokens within a chunk,
as attention_parallel does, and passes a state between chunks, as state_parallel does;
chunked_materialized stores the states of all chunks. FlashAttention is the softmax baseline. Bars
are quartiles over repeats. Marks at the upper edge have no height: a cross is a context that ran
out of memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, chunk, repeats, status,
        1e3 * seconds AS milliseconds,
        1e3 * lower_seconds AS lower_milliseconds, 1e3 * upper_seconds AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_step' AND method IN (
        'linear chunked', 'linear chunked_materialized', 'linear attention_parallel',
        'linear state_parallel', 'softmax flash'
    )
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return speed.by_size(rows, "milliseconds", "Time of a step (ms)")[0]
