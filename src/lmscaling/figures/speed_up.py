"""Speed-up of a training step over softmax attention. Time of a step with the fastest softmax
implementation that was measured divided by that with another attention, for the same size, context
and setup; above 1 the other one is faster. Bars extend from the lower quartile of the former over
the upper quartile of the latter to the opposite ratio. A line ends where either of the two was not
measured.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed

SECTION = "speed"

QUERY = """
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
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    figure, panels = speed.by_size(rows, "speed_up", "Speed-up (fastest softmax = 1)")
    for axes in panels.values():
        speed.line_at_one(axes)
    return figure
