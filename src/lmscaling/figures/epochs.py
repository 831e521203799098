"""Losses over the epochs of a small text. Validation loss (full line) and the mean training loss of
each epoch (dashed), means over seeds with their range as a band, one panel an attention. The dot is
the best epoch and its loss, means over the seeds, with 95 % intervals (Student's t) as far as runs
last; it is hollow if the loss of a seed is lowest at the end, so that more epochs may be better.
Only runs that read their text more than once are shown.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from lmscaling.figures.shared import floors, style
from lmscaling.fits import seeds

SECTION = "learning"

QUERY = """
    WITH lengths AS (
        SELECT run, min("update") FILTER (epoch = 2) - 1 AS per_epoch
        FROM updates WHERE surviving GROUP BY run HAVING max(epoch) > 1
    ),
    losses AS (
        SELECT run, 'validation' AS split, "update" / per_epoch AS epochs, val_loss AS loss
        FROM validations JOIN lengths USING (run) WHERE surviving AND val_loss IS NOT NULL
        UNION ALL
        SELECT run, 'train', epoch - 0.5, avg(train_loss)
        FROM updates JOIN lengths USING (run)
        WHERE surviving AND train_loss IS NOT NULL AND "update" <= epoch * per_epoch
        GROUP BY run, epoch HAVING count(*) = any_value(per_epoch)
    )
    SELECT s.attention, s.size, s.context, s.params, s.seed, s.place, run, s.status, split, epochs,
        loss
    FROM losses JOIN status s USING (run) SEMI JOIN chosen USING (run)
    ORDER BY s.place, split, epochs
"""

COLUMNS = 4


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    key = ["attention", "size", "context"]
    cells = list(rows[key].drop_duplicates().itertuples(index=False, name=None))
    places = rows[["size", "context"]].drop_duplicates()
    colours = style.palette(rows.attention)
    figure, panels = style.panels(len(cells), COLUMNS, 1.7)
    for axes, (name, size, context) in zip(panels, cells, strict=True):
        own = rows.loc[(rows[key] == [name, size, context]).all(axis=1)]
        colour = colours[name]
        for split, stroke in (("train", "--"), ("validation", "-")):
            style.draw_range(axes, own.loc[own.split == split], "epochs", "loss", colour, stroke)
        _mark_best(axes, own.loc[own.split == "validation"], colour)
        title = name if len(places) == 1 else f"{name}, {size} at {context:,}"
        axes.set_title(title, fontsize="medium")
    floors.draw(panels, db, rows, [context for *_, context in cells])
    style.label_outer(panels, "Epochs (passes)", "Loss (nats per token)")
    handles = [
        Line2D([], [], color="0.3", label="validation"),
        Line2D([], [], color="0.3", linestyle="--", label="training, mean of an epoch"),
        Line2D([], [], color="0.3", marker="o", linestyle="", label="best epoch, 95 % interval"),
    ]
    style.legend(figure, handles)
    return figure


def _mark_best(axes: Axes, rows: DataFrame, colour: str) -> None:
    """The best epoch of each seed, as a mean with an interval over seeds."""
    best = rows.loc[rows.groupby("run").loss.idxmin()]
    first, last = rows.epochs.min(), rows.epochs.max()
    is_last = (best.epochs == best.run.map(rows.groupby("run").epochs.max())).any()
    (x, x_interval), (y, y_interval) = (seeds.mean(best[of].tolist()) for of in ("epochs", "loss"))
    if x_interval and y_interval:
        half = x_interval.width / 2
        ends = np.clip([x - half, x + half], first, last)
        axes.errorbar(
            [x], [y], xerr=np.abs(ends - x)[:, None], yerr=[y_interval.width / 2], color=colour,
            capsize=2, linewidth=1, zorder=4,
        )  # fmt: skip
    face = "white" if is_last else colour
    axes.plot([x], [y], "o", color=colour, markerfacecolor=face, markersize=4, zorder=5)
