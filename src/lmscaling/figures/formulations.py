"""Five formulations of linear attention by the time of a training step. All compute the same
function: from all pairs of tokens in a loop (attention), in one matrix
(attention_parallel_no_flash) or tile by tile (attention_parallel); or from a state that is updated
token by token (state) or stored for all tokens (state_parallel). Time per sequence against the
context, one panel for each size; a step has as many sequences as have the tokens of the study,
published steps have one. Bars are quartiles over repeats. Marks at the upper edge have no height: a
cross is a context that ran out of memory, a plus one that exceeded the time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status,
        1e3 * seconds / batch AS milliseconds,
        1e3 * lower_seconds / batch AS lower_milliseconds,
        1e3 * upper_seconds / batch AS upper_milliseconds
    FROM speeds
    WHERE kind = 'time_step' AND method IN (
        'linear attention', 'linear attention_parallel_no_flash', 'linear attention_parallel',
        'linear state', 'linear state_parallel'
    )
    ORDER BY ALL
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return speed.by_size(rows, "milliseconds", speed.STEP_TIME)[0]
