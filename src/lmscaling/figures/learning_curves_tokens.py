"""Training loss along each run, against tokens. Lines, dots and diamonds are those against updates.
Where every update reads as many tokens, the two pictures differ by a factor only.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures import _curves

SECTION = "learning"

SWITCH = ("Training loss against", "tokens")

QUERY = _curves.QUERY


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return _curves.draw(rows, "tokens")
