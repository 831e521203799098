"""Heat maps of the grid: one panel for each attention, one field for each size and context.

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
    """Draw the panels; the first size is the lowest row.

    Args:
        rows: All runs; seeds and learning rates of a cell share a field.
        sizes: The rows of a panel.
        summarize: Colour and text of the runs of a field.
        legend: What colours and letters mean.
    """
    shown, contexts = panels_of(rows), sorted(rows.context.unique())
    columns = 1 if len(contexts) > 6 else 2
    figure, places = style.panels(
        len(shown), columns, 0.75 + 0.36 * len(sizes), top=0.6, sharex=False, sharey=False
    )
    for (title, part), axes in zip(shown.items(), places, strict=True):
        runs = dict(list(part.groupby(["size", "context"])))
        keys = [(size, context) for size in sizes for context in contexts]
        fields = [summarize(runs[key]) if key in runs else (NO_CELL, "") for key in keys]
        colours, texts = zip(*fields, strict=True)
        sns.heatmap(
            np.arange(len(keys)).reshape(len(sizes), -1),
            annot=np.reshape(texts, (len(sizes), -1)),
            fmt="",
            annot_kws={"fontsize": "small"},
            cmap=ListedColormap(colours),
            cbar=False,
            linewidths=1.5,
            xticklabels=[style.tokens(context) for context in contexts],
            yticklabels=sizes,
            ax=axes,
        )
        for text, colour in zip(axes.texts, colours, strict=True):  # seaborn's has less contrast
            text.set_color(_ink(colour))
        axes.invert_yaxis()
        axes.tick_params(length=0, labelrotation=0)
        axes.set_title(title)
    style.label_outer(places, "Context (tokens)", "Size (N)")
    style.legend(figure, legend)
    return figure


def panels_of(rows: DataFrame) -> dict[str, DataFrame]:
    """The rows of each attention and source by panel title, measured rows first."""
    panels = {}
    for source in sorted(set(rows.source)):
        for attention in style.palette(rows.attention):
            part = rows.loc[(rows.attention == attention) & (rows.source == source)]
            if len(part):
                origin = ", published" if source == "published" else ""
                panels[f"{attention} attention{origin}"] = part
    return panels


def _ink(colour: str) -> str:
    """Black or white, whichever has more contrast with the colour."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
