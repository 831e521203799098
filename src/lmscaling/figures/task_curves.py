"""Learning of each task. Accuracy of the hardest targets and validation loss over the steps:
means over seeds at the best factor of the learning rate, with the range of the seeds as a band. A
loss is in nats per target that counts. Tasks without targets that are scored, such as images, have
a loss only.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import floors, style

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
    texts = db.sql("SELECT DISTINCT task, dataset, context FROM tasks").df().set_index("task")
    colours = style.palette(rows.attention)
    figure, places = style.grid(2, len(tasks), 1.65, sharex="col")
    for column, task in enumerate(tasks):
        top, bottom = places[:, column]
        for name, part in rows.loc[rows.task == task].groupby("attention", sort=False):
            look = colours[str(name)], style.dashes(str(name))
            style.draw_range(top, part.dropna(subset="accuracy"), "updates", "accuracy", *look)
            style.draw_range(bottom, part, "updates", "loss", *look)
        of = texts.loc[task]
        floors.draw([bottom], db, rows, [of.context], of.dataset)
        if top.lines:
            top.set_ylim(-0.03, 1.05)
        else:
            top.set_axis_off()
        (top if top.axison else bottom).set_title(task, fontsize="medium")
        bottom.set_xlabel("Steps")
    places[0, 0].set_ylabel("Accuracy (share)")
    places[1, 0].set_ylabel("Loss (nats per target)")
    style.legend(figure, style.attention_handles(colours, rows.attention.unique(), False), 4)
    return figure
