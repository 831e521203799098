"""Training loss of each run against tokens. Lines, dots and diamonds as in the figure against
updates. If all runs have the same tokens per update, the x axes differ by a constant factor.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import curves

SECTION = "learning"

SWITCH = ("Training loss against", "tokens")

QUERY = curves.QUERY


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return curves.draw(rows, "tokens")
