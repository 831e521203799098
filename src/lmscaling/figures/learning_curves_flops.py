"""Training loss of each run against FLOPs. Lines, dots and diamonds as in the figure against
updates. FLOPs are counted by formula for each attention, causal attention at half the cost; those
of published runs are counted from the shapes of their models, as the post has no such numbers.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import curves

SECTION = "learning"

SWITCH = ("Training loss against", "FLOPs")

QUERY = "FROM learning_curves WHERE flops IS NOT NULL ORDER BY ALL"


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return curves.draw(rows, "flops")
