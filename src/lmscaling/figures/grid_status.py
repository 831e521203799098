"""Status of every run of the study. Each field is an attention and a context, with the letter of
its status and the number of its runs. The colour is that of the worst status. White fields have no
run, or only skipped ones. Sizes, attentions and contexts of which all runs are skipped are not
shown.
"""

from collections import Counter

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from lmscaling.figures.shared import heatmap

SECTION = "grid"

QUERY = """
    SELECT
        source, attention, size, params, context, seed, lr_scale, status,
        coalesce(skipped, message, '') AS note
    FROM status
    ORDER BY place
"""

LOOKS = {
    "done": ("D", "#3B6FB6"),
    "running": ("R", "#9CC3E6"),
    "interrupted": ("I", "#C9DDF0"),
    "pending": ("P", "#EDEDED"),
    "skipped": ("S", "#C8C8C8"),
    "held": ("H", "#7A9E7E"),
    "out_of_tokens": ("T", "#F2C14E"),
    "no_trunk": ("N", "#B08968"),
    "oom": ("M", "#E07A3F"),
    "damaged": ("Z", "#5C4033"),
    "exploded": ("E", "#D1495B"),
    "diverged": ("X", "#B00020"),
}
"""Letter and colour of each status, from best to worst."""

NAMES = {"oom": "out of memory"}


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    asked = rows.loc[rows.status != "skipped"]
    rows = asked if len(asked) else rows
    legend = [
        Patch(facecolor=colour, label=f"{letter}  {NAMES.get(status, status.replace('_', ' '))}")
        for status, (letter, colour) in LOOKS.items()
        if status in set(rows.status)
    ]
    sizes = list(dict.fromkeys(rows["size"]))  # in the order of the study: N of pending is unknown
    return heatmap.draw(rows, sizes, _field, legend)


def _field(rows: DataFrame) -> tuple[str, str]:
    """Colour and letters of one field."""
    counts = Counter(rows.status)
    present = [status for status in LOOKS if counts[status]]
    colour = LOOKS[present[-1]][1]
    if len(rows) == 1:
        return colour, LOOKS[present[0]][0]
    return colour, " ".join(f"{counts[status]}{LOOKS[status][0]}" for status in present)
