"""Images drawn from the state. Each row shows images that the run of the first seed has drawn pixel
by pixel, and the first row validation images. Bits per pixel are means over seeds. Pixels per
second are those of 16 images at once, of process time on a CPU, and the state is that of one image.
"""

import json
from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import style
from lmscaling.formatting import bytes_of

SECTION = "tasks"

QUERY = """
    WITH bits AS (
        SELECT task, attention, size, avg(bits) AS bits, count(*) AS seeds
        FROM task_scores GROUP BY ALL
    )
    SELECT t.task, t.attention, t.size, t.place, bits, seeds, s.run, s.tokens_per_second, s.batch,
        s.device, t.state_bytes, s.levels, s.shape::VARCHAR AS shape, s.images::VARCHAR AS images,
        s.data::VARCHAR AS data
    FROM samples s JOIN tasks t USING (run) JOIN bits USING (task, attention, size)
    SEMI JOIN task_rates USING (task, attention, size, context, lr_scale)
    WHERE json_array_length(s.images) > 0
    QUALIFY row_number() OVER (PARTITION BY task, attention, size ORDER BY t.place) = 1
    ORDER BY t.place
"""

SHOWN = 12
"""Images in a row."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    strips = []
    for _, own in rows.groupby("task", sort=False):
        records = own.to_dict("records")
        first = records[0]
        strips.append((f"{first['task']}: data", "", first["data"], first))
        several = len({row["size"] for row in records}) > 1
        for row in records:
            name = f"{row['attention']} {row['size']}" if several else row["attention"]
            strips.append((name, _told(row), row["images"], row))
    figure, places = plt.subplots(
        len(strips), 1, figsize=(style.PAGE, 0.48 * len(strips) + 0.1), squeeze=False
    )
    figure.subplots_adjust(left=0.19, right=0.70, top=1.0, bottom=0.0, hspace=0.12)
    for axes, (name, told, images, row) in zip(places.flat, strips, strict=True):
        _strip(axes, images, row)
        axes.text(-0.02, 0.5, name, transform=axes.transAxes, ha="right", va="center")
        axes.text(1.02, 0.5, told, transform=axes.transAxes, va="center", fontsize="small")
    return figure


def _told(row: dict[Any, Any]) -> str:
    seeds = "1 seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
    return (
        f"{row['bits']:.3f} bits per pixel, {seeds}\n"
        f"{row['tokens_per_second']:,.0f} pixels/s, state {bytes_of(row['state_bytes'])}"
    )


def _strip(axes: Axes, images: str, row: dict[Any, Any]) -> None:
    """Some images side by side, with a white column between two."""
    shape = json.loads(row["shape"])
    pixels = np.array(json.loads(images)[:SHOWN], dtype=float).reshape(-1, *shape)
    gap = [(0, 0), (0, 0), (0, 1), (0, 0)][: pixels.ndim]
    shown = np.pad(pixels / row["levels"], gap, constant_values=1.0 if pixels.ndim > 3 else np.nan)
    strip = np.concatenate(list(shown), 1)[:, :-1]
    axes.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="none", aspect="equal")
    axes.set_axis_off()
