"""Training loss of each run against updates. Lines are means over 60 logarithmic intervals without
spikes; a thin vertical stroke reaches up to the highest spike of an interval. Dots are validation
losses. One panel for each context; colours and strokes are attentions, darker lines larger models.
Hollow diamonds are validation losses at the ends of decayed branches, at the total cost of trunk
and branch. Published runs (dotted beside measured runs) have training losses only: about 50 points
for each run, each a mean over 100 updates, which hide most spikes.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import curves

SECTION = "learning"

SWITCH = ("Training loss against", "updates")

QUERY = curves.QUERY


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    return curves.draw(rows, "updates")
