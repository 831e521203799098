"""Heat maps of the grid: one panel for each size, one field for each attention and context.

A field has a colour and a text, so that no information depends on colour alone.
"""

from collections.abc import Callable, Iterable

import numpy as np
import seaborn as sns
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from lmscaling.figures.shared import style

NO_CELL = "white"
"""Colour of a field for which the study has no cell."""


def draw(
    rows: DataFrame,
    sizes: list[str],
    summarize: Callable[[DataFrame], tuple[str, str]],
    legend: Iterable[Patch],
) -> Figure:
    """Draw the panels, without rows and columns that have no run.

    Args:
        rows: All runs; seeds and learning rates of a cell share a field.
        sizes: The panels.
        summarize: Colour and text of the runs of a field.
        legend: What colours and letters mean.
    """
    published = ", published" if style.mixes_sources(rows.source) else ""
    origins = rows.source.map({"published": published}).fillna("")
    rows = rows.assign(row=rows.attention + origins)
    every = [
        name + origin for origin in sorted(set(origins)) for name in style.palette(rows.attention)
    ]
    names = [name for name in every if name in set(rows.row)]
    contexts = sorted(rows.context.unique())
    columns = 1 if len(contexts) > 6 else 2
    figure, places = style.panels(
        len(sizes), columns, 0.75 + 0.3 * len(names), top=0.6, sharex=False, sharey=True
    )
    for size, axes in zip(sizes, places, strict=True):
        runs = dict(list(rows.loc[rows["size"] == size].groupby(["row", "context"])))
        keys = [(name, context) for name in names for context in contexts]
        fields = [summarize(runs[key]) if key in runs else (NO_CELL, "") for key in keys]
        colours, texts = zip(*fields, strict=True)
        sns.heatmap(
            np.arange(len(keys)).reshape(len(names), -1),
            annot=np.reshape(texts, (len(names), -1)),
            fmt="",
            annot_kws={"fontsize": "small"},
            cmap=ListedColormap(colours),
            cbar=False,
            linewidths=1.5,
            xticklabels=[style.tokens(context) for context in contexts],
            yticklabels=names,
            ax=axes,
        )
        for text, colour in zip(axes.texts, colours, strict=True):  # seaborn's has less contrast
            text.set_color(_ink(colour))
        axes.tick_params(length=0, labelrotation=0)
        axes.set_title(size)
    style.label_outer(places, "Context (tokens)", "Attention")
    style.legend(figure, legend)
    return figure


def _ink(colour: str) -> str:
    """Black or white, whichever has more contrast with the colour."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
