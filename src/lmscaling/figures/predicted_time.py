"""Predicted over measured time of a training step against the context. The throughput model adds
the times of matrix products, attention, elementwise operations, logits, the optimizer and launches.
Published steps of a size are predicted from those of the other sizes, own steps from published ones
alone. Bars are 80 % prediction intervals: four of five should cross 1. A prediction above the line
is too slow. Devices without a listed peak and bandwidth are left out.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import predictions, speed, style

SECTION = "speed"

QUERY = predictions.QUERY


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    for index, prediction in predictions.predicted(rows):
        low, high = prediction.interval(0.8)
        seconds = rows.at[index, "seconds"]
        rows.loc[index, ["predicted_seconds", "ratio", "lower_ratio", "upper_ratio"]] = (
            prediction.seconds, prediction.seconds / seconds, low / seconds, high / seconds
        )  # fmt: skip
    if "ratio" not in rows:
        return style.nothing("No step was measured on a device whose peak is listed.")
    shown = rows.loc[rows.ratio.notna()]
    figure, panels = speed.by_size(
        shown, "ratio", "Time (predicted / measured)",
        spread="medians of {} repeats, bars are 80 % prediction intervals",
    )  # fmt: skip
    for axes in panels.values():
        speed.line_at_one(axes)
    return figure
