"""Linear attention by chunks against the ways that it combines. Each line is the time of a training
step. Within a chunk it works on all pairs of tokens, as attention_parallel does, and between chunks
on a state, as state_parallel does; chunked_materialized writes the states down. Softmax by
FlashAttention is what they compete with. A line ends with a cross where the next context ran out of
memory, and with a plus where it took too long, where the last two points lead.
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
