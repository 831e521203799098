"""Recall against the size of the state. Share of the queried values that a model predicts after the
most key-value pairs of each task, against the bytes that sampling keeps of one sequence of that
length in float32. Dots are means over the seeds that have learned and bars their lowest and highest
seed; a line joins the sizes of one attention. Softmax keeps every key and value, so its state grows
with the sequence; that of the others does not.
"""

from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "tasks"

QUERY = """
    SELECT task, "group" AS pairs, attention, size, params, state_bytes, min(place) AS place,
        count(*) FILTER (learned) AS seeds, count(*) AS started,
        avg(accuracy) FILTER (learned) AS accuracy,
        min(accuracy) FILTER (learned) AS lowest, max(accuracy) FILTER (learned) AS highest
    FROM task_scores
    WHERE kind = 'recall' AND state_bytes IS NOT NULL
    GROUP BY ALL
    ORDER BY place
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    tasks = rows.task.unique().tolist()
    colours = style.palette(rows.attention.tolist())
    figure, places = plt.subplots(
        1, len(tasks), figsize=(style.PAGE, 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, task in zip(places.flat, tasks, strict=True):
        own = rows.loc[(rows.task == task) & rows.accuracy.notna()]
        for name, part in own.groupby("attention", sort=False):
            part = part.sort_values("state_bytes")
            error = [part.accuracy - part.lowest, part.highest - part.accuracy]
            axes.errorbar(
                part.state_bytes, part.accuracy, error, color=colours[str(name)], label=name,
                marker=style.marker(str(name)), markersize=5, linewidth=1.2, capsize=2,
            )  # fmt: skip
        pairs = rows.loc[rows.task == task, "pairs"].iloc[0]
        axes.set_title(f"{task}: {pairs} pairs", fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:g}"))
        axes.set_xlabel("State of a sequence (KiB)")
        axes.set_ylim(-0.03, 1.05)
        axes.spines[["top", "right"]].set_visible(False)
    places[0, 0].set_ylabel("Accuracy (share of targets)")
    handles, labels = places[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure
