"""Training loss along each run, against updates. Lines are means over 60 intervals of equal ratio;
dots are validation losses. Panels are contexts, colours attentions (all but the first dashed), and
darker lines larger models. Hollow diamonds, where there are any, are validation losses at the ends
of decayed branches, placed by all that the branch and its trunk spent. Published runs, dotted where
ours stand beside them, are training losses alone: some 50 points a run, each a mean over 100
updates, so that most of their spikes lie between two points.
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
