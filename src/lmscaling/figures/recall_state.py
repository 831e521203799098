"""Recall against the size of the state. Share of the queried values that a model predicts after the
most key-value pairs of each task, against the bytes that sampling keeps of one sequence of that
length in float32. Dots are means over the seeds that have learned and bars their lowest and highest
seed; a line joins the sizes of one attention. Softmax keeps every key and value, so its state grows
with the sequence; that of the others does not.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
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
    colours = style.palette(rows.attention)
    figure, (panels,) = style.grid(1, len(tasks), 2.3, sharey=True)
    for axes, task in zip(panels, tasks, strict=True):
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
        style.log_scale(axes, "x", LogLocator(base=2), lambda value: f"{value / 1024:g}")
        axes.set_ylim(-0.03, 1.05)
    style.label_outer(panels, "State of a sequence (KiB)", "Accuracy (share of targets)")
    style.legend(figure, panels[0].get_legend_handles_labels()[0], 4)
    return figure
