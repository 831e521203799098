"""Wall-clock time of every run by purpose. One bar for each run, by attention and size; larger
models are darker. From the bottom: training time, which the budget counts; time of steps that were
lost with an attempt and repeated; all other time of the attempts, such as validation, checkpoints
and compilation. Attempts are timed to ten seconds. The dashed line is the
budget, if it is a time. Where a study counts the time of the processor, waiting for it is other
time. For published runs only the total time is known; their line is the budget of 24 hours stated
in the post.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from lmscaling.figures.shared import style

SECTION = "audit"

QUERY = """
    SELECT
        k.source, attention, size, k.params, context, seed, lr_scale, k.status,
        budget_hours,
        r.train_seconds / 3600 AS productive_hours,
        r.lost_seconds / 3600 AS lost_hours,
        CASE WHEN r.attempt_seconds IS NOT NULL THEN
            greatest(0, r.attempt_seconds - r.train_seconds - r.lost_seconds) / 3600
        END AS other_hours
    FROM known k JOIN runs r USING (run)
    WHERE branch IS NULL
    ORDER BY ALL
"""

LOST, OTHER = "#B00020", "0.55"


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    shades, contexts = style.shades_of(rows), sorted(rows.context.unique())
    figure, places = style.panels(len(contexts), 3, 1.9, top=0.6, sharex=False)
    for context, axes in zip(contexts, places, strict=True):
        _draw_panel(axes, rows.loc[rows.context == context], shades)
        axes.set_title(f"context {context:,}")
    style.label_outer(places, "Runs (by attention and size)", "Wall clock (hours)")
    others = [Patch(color=LOST, label="lost"), Patch(color=OTHER, label="other")]
    style.legend_of(figure, shades, others=others if rows.lost_hours.notna().any() else [])
    return figure


def _draw_panel(axes: Axes, rows: DataFrame, shades: dict[tuple[str, str], str]) -> None:
    order = {key: i for i, key in enumerate(shades)}
    keys = list(zip(rows.attention, rows["size"], strict=True))
    part = rows.assign(order=[order[key] for key in keys], colour=[shades[key] for key in keys])
    part = part.sort_values(["source", "order", "seed", "lr_scale"])
    looks = {"productive_hours": part.colour, "lost_hours": LOST, "other_hours": OTHER}
    lower, places = 0.0, range(len(part))
    for column, colour in looks.items():
        hours = part[column].fillna(0.0).to_numpy()
        axes.bar(places, hours, width=0.9, bottom=lower, color=colour)
        lower = lower + hours
    if rows.budget_hours.notna().any():
        axes.axhline(rows.budget_hours.max(), color="0.2", linestyle="--", linewidth=1.0)
    axes.set_xticks([])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(False, axis="x")
