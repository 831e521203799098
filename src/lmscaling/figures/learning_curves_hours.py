"""Training loss along each run, against hours. Lines, dots and diamonds are those against updates;
hours are productive time, as the budget counts it. They show what an attention costs: a run that is
faster gets further within the same budget.
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
