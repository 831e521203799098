"""Heat maps of the grid: one panel for each attention, one field for each size and context.

A field has a colour and a text, so that no information depends on colour alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pandas import DataFrame

from lmscaling.figures.shared import style

Fields = Mapping[tuple[str, str, int], tuple[str, str]]
"""Colour and text by panel, size and context."""

NO_CELL = "white"
"""Colour of a field for which the study has no cell."""


def draw(sizes: list[str], fields: Fields, legend: Iterable[Patch]) -> Figure:
    """Draw the panels; the first size is the lowest row."""
    panels = list(dict.fromkeys(panel for panel, _, _ in fields))
    contexts = sorted({context for _, _, context in fields})
    columns = 1 if len(contexts) > 6 else min(2, len(panels))
    n_rows = -(-len(panels) // columns)
    figure, places = plt.subplots(
        n_rows, columns, figsize=(style.PAGE, 0.6 + n_rows * (0.75 + 0.36 * len(sizes))),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(places.flat, panels, strict=False):
        _draw_panel(axes, panel, sizes, contexts, fields)
    figure.legend(handles=list(legend), loc="outside upper center", ncols=5)
    return figure


def panels_of(rows: DataFrame) -> dict[str, DataFrame]:
    """The rows of each attention and source by panel title, measured rows first."""
    panels = {}
    for source in sorted(set(rows.source)):
        for attention in style.palette(rows.attention.tolist()):
            part = rows.loc[(rows.attention == attention) & (rows.source == source)]
            if len(part):
                origin = ", published" if source == "published" else ""
                panels[f"{attention} attention{origin}"] = part
    return panels


def fields_of(rows: DataFrame, summarize: Callable[[DataFrame], tuple[str, str]]) -> Fields:
    """Colour and text of each field; seeds and learning rates of a cell share a field."""
    fields = {}
    for panel, part in panels_of(rows).items():
        groups: list[tuple[Any, DataFrame]] = list(part.groupby(["size", "context"]))
        fields |= {(panel, size, int(context)): summarize(runs) for (size, context), runs in groups}
    return fields


def _draw_panel(
    axes: Axes, panel: str, sizes: list[str], contexts: list[int], fields: Fields
) -> None:
    for i, size in enumerate(sizes):
        for j, context in enumerate(contexts):
            colour, text = fields.get((panel, size, context), (NO_CELL, ""))
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
            axes.text(
                j + 0.5, i + 0.5, text,
                ha="center", va="center", color=_ink(colour), fontsize="small",
            )  # fmt: skip
    axes.set(xlim=(0, len(contexts)), ylim=(0, len(sizes)), title=panel)
    axes.set_xticks([j + 0.5 for j in range(len(contexts))], [style.tokens(c) for c in contexts])
    axes.set_yticks([i + 0.5 for i in range(len(sizes))], sizes)
    axes.set_xlabel("Context (tokens)")
    place = axes.get_subplotspec()
    if place and place.is_first_col():
        axes.set_ylabel("Size (N)")
    axes.grid(False)
    axes.tick_params(length=0)
    sns.despine(ax=axes, left=True, bottom=True)


def _ink(colour: str) -> str:
    """Black or white, whichever has more contrast with the colour."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
