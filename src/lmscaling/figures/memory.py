"""Peak memory of a training step against context. On a GPU it is the most that was allocated at
once, weights and optimizer included; on the CPU the most that was resident, less what was before.
Panels are sizes. A line ends with a cross where the next context ran out of memory, and with a plus
where it took too long, where the last two points lead.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

# Zero has no place on a logarithmic axis; published numbers say nothing of memory.
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
    spread = "the most of {} repeats"
    return speed.by_size(rows, "gigabytes", "Peak memory (GB)", spread=spread)[0]
