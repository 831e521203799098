"""Training loss of each run against hours. Lines, dots and diamonds as in the figure against
updates. Hours are productive time, which the budget counts; within the same budget a faster
attention completes more updates.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import curves

SECTION = "learning"

SWITCH = ("Training loss against", "hours")

QUERY = curves.QUERY


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return curves.draw(rows, "hours")
