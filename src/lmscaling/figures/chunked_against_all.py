"""Chunked linear attention against the two forms that it combines. Time of a training step per
sequence against the context, one panel for each size; a step has as many sequences as have the
tokens of the study, published steps have one. The chunked form computes all pairs of tokens within
a chunk, as attention_parallel does, and passes a state between chunks, as state_parallel does;
chunked_materialized stores the states of all chunks. Softmax without a stored attention matrix
(flash, flash4, cudnn) is the baseline. Bars are quartiles over repeats. Marks at the upper edge
have no height: a cross is a context that ran out of memory, a plus one that exceeded the time
limit.
"""

from duckdb import DuckDBPyConnection
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
    WHERE kind = 'time_step' AND method IN (
        'linear chunked', 'linear chunked_materialized', 'linear attention_parallel',
        'linear state_parallel', 'softmax flash', 'softmax flash4', 'softmax cudnn'
    )
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return speed.by_size(rows, "milliseconds", speed.STEP_TIME)[0]
