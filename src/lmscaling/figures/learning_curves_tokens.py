"""Training loss along each run, against tokens. Lines, dots and diamonds are those against updates.
Where every update reads as many tokens, the two pictures differ by a factor only.
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
