"""Peak memory of a training step against the context. A step has as many sequences as have the
tokens of the study, one if none are given. On a GPU the largest amount allocated at any
time, including weights and optimizer state; on a CPU the peak resident memory minus that before the
measurement. One panel for each size. Marks at the upper edge have no height: a cross is a context
that ran out of memory, a plus one that exceeded the time limit. Published data have no memory
values and are excluded.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

# A logarithmic axis cannot show zero; published rows have no memory values.
QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status,
        nullif(peak_memory_bytes, 0) / 1e9 AS gigabytes,
        gigabytes AS lower_gigabytes, gigabytes AS upper_gigabytes
    FROM speeds
    WHERE kind = 'time_step'
    QUALIFY max(peak_memory_bytes) OVER (PARTITION BY source, setup) > 0
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    spread = "maximum of {} repeats"
    return speed.by_size(rows, "gigabytes", "Peak memory (GB)", spread=spread)[0]
