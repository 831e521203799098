"""Learning of each task. Accuracy of the hardest targets and validation loss over the updates:
means over seeds at the best factor of the learning rate, with the range of the seeds as a band. A
loss is in nats per target that counts. Tasks without targets that are scored, such as images, have
a loss only.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "tasks"

QUERY = """
    WITH hardest AS (
        SELECT run, "update", arg_max(accuracy, coalesce(pairs, 0)) AS accuracy
        FROM task_groups GROUP BY ALL
    ),
    first AS (SELECT task, attention, min(place) AS place FROM task_scores GROUP BY ALL)
    SELECT v.task, v.attention, v.size, v.place, v.seed, v."update" AS updates, accuracy,
        v.val_loss AS loss, v.run, v.status
    FROM task_validations v LEFT JOIN hardest USING (run, "update")
    SEMI JOIN task_rates USING (task, attention, size, context, lr_scale)
    SEMI JOIN (SELECT task, attention, size FROM tasks JOIN first USING (task, attention, place)) f
        ON (v.task, v.attention, v.size) = (f.task, f.attention, f.size)
    WHERE v.val_loss IS NOT NULL
    ORDER BY v.place, updates
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    tasks = rows.task.unique().tolist()
    colours = style.palette(rows.attention.tolist())
    figure, places = plt.subplots(
        2, len(tasks), figsize=(style.PAGE, 4.2), sharex="col", squeeze=False, layout="constrained"
    )
    for column, task in enumerate(tasks):
        own = rows.loc[rows.task == task]
        top, bottom = places[:, column]
        if own.accuracy.notna().any():
            _lines(top, own, "accuracy", colours)
            top.set_ylim(-0.03, 1.05)
        else:
            top.set_axis_off()
        _lines(bottom, own, "loss", colours)
        (top if top.axison else bottom).set_title(task, fontsize="medium")
        bottom.set_xlabel("Updates")
    places[0, 0].set_ylabel("Accuracy (share)")
    places[1, 0].set_ylabel("Loss (nats per target)")
    known: dict[str, Any] = {}
    for axes in places.flat:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="outside upper center", ncols=4)
    return figure


def _lines(axes: Axes, rows: DataFrame, column: str, colours: dict[str, str]) -> None:
    for name, part in rows.groupby("attention", sort=False):
        found = part.groupby("updates")[column].agg(["mean", "min", "max"])
        colour = colours[str(name)]
        axes.plot(found.index, found["mean"], color=colour, linewidth=1.2, label=name,
                  linestyle=style.dashes(str(name)))  # fmt: skip
        axes.fill_between(found.index, found["min"], found["max"], color=colour, alpha=0.15, lw=0)
    axes.spines[["top", "right"]].set_visible(False)
