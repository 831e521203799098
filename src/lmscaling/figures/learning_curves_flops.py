"""Training loss along each run, against FLOPs. Lines, dots and diamonds are those against updates;
FLOPs are counted, not measured: each attention states its own, causal half counted. Published runs
have no such count and are left out.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import curves

SECTION = "learning"

SWITCH = ("Training loss against", "FLOPs")

QUERY = f"SELECT * FROM ({curves.QUERY}) WHERE flops IS NOT NULL ORDER BY ALL"


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return curves.draw(rows, "flops")
