"""Measured against predicted, sealed before the run began. Each point is one run, at its predicted
value; its height is the measured value over the predicted one. Thick bars are 80 % intervals of the
prediction, thin ones 95 %; of two seals of a run both are shown. Titles count the intervals that
hold what was measured. Predictions of one study are made from the same runs, so they tend to err
alike.
"""

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import style
from lmscaling.fits import forecast_scores, unfinished
from lmscaling.records.forecast import Predicted

SECTION = "forecasts"

LABELS = {
    "update_seconds": "time of an update (s)",
    "memory_bytes": "memory (GB)",
    "loss": "final loss (nats per token)",
}
UNITS = {"memory_bytes": 1e9}

QUERY = """
    SELECT
        seal, sealed, run, name, attention, size, context, seed, quantity, median, sd, degrees,
        baseline, baseline_median, baseline_sd, started, measured
    FROM forecast_scores
    WHERE state = 'scored'
    ORDER BY quantity DESC, seal, attention DESC, size, context, seed
"""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    colours = style.palette(rows.attention.tolist())
    quantities = [name for name in LABELS if name in set(rows.quantity)]
    size = style.PAGE, 3.2
    figure, panels = plt.subplots(
        1, len(quantities), figsize=size, squeeze=False, layout="constrained"
    )
    for quantity, axes in zip(quantities, panels[0], strict=True):
        part = rows.loc[rows.quantity == quantity]
        _draw(axes, part, colours, UNITS.get(quantity, 1.0))
        axes.set_title(_title(part))
        axes.set_xlabel(f"Predicted {LABELS[quantity]}")
    panels[0, 0].set_ylabel("Measured over predicted (ratio)")
    sns.despine(figure)
    names = [name for name in colours if name in set(rows.attention)]
    handles = [
        Line2D([], [], color=colours[name], marker="o", linestyle="", markersize=4, label=name)
        for name in names
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)))
    return figure


def _draw(axes: Axes, rows: DataFrame, colours: dict[str, str], unit: float) -> None:
    for row in _values(rows):
        at, colour = row["median"] / unit, colours[row["attention"]]
        predicted = Predicted(median=1.0, sd=row["sd"], degrees=row["degrees"])
        for level, width in zip(forecast_scores.LEVELS, (2.6, 0.9), strict=True):
            ends = unfinished.interval(predicted, level) or ()
            axes.plot([at, at], ends, color=colour, alpha=0.45, linewidth=width, zorder=2)
        ratio = row["measured"] / row["median"]
        axes.scatter([at], [ratio], s=16, color=colour, linewidth=0, zorder=3)
    axes.axhline(1, color="0.6", linewidth=0.8, zorder=1)
    medians = rows["median"].to_numpy()
    if medians.max() > 3 * medians.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axes.get_ylim()
    if high > 3 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _title(rows: DataFrame) -> str:
    found = forecast_scores.score(_values(rows))
    held = ", ".join(f"{one.held} in {100 * level:.0f} %" for level, one in found.held.items())
    return f"{found.scored} runs: {held}"


def _values(rows: DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries, with None for what is missing."""
    known = rows.astype(object).where(rows.notna(), None)
    return [dict(zip(known.columns, row, strict=True)) for row in known.itertuples(index=False)]
