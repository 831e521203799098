"""Panels of the speed study, with a mark at the upper edge where a measurement failed.

A line is one method of one setup; measurements of other devices, versions or authors are never
joined with it. Colour and marker show the method, stroke and fill the setup. Queries return
``source``, ``setup``, ``sweep``, ``method``, ``context``, ``repeats`` and ``status``, and for each
plotted column the ends of its error bar as ``lower_<column>`` and ``upper_<column>``.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation
from pandas import DataFrame, Series

from lmscaling.figures.shared import style


@dataclass(frozen=True)
class Method:
    """Colour and marker of one implementation of an attention."""

    colour: str
    marker: str


METHODS = {
    "softmax": Method(style.COLOURS["softmax"], "o"),
    "softmax flash": Method(style.COLOURS["softmax"], "o"),
    "softmax flash4": Method("#00A99D", "X"),
    "softmax cudnn": Method("#2B1A5E", "D"),
    "softmax no_flash": Method("#7CC6F2", "s"),
    "linear": Method(style.COLOURS["linear"], "^"),
    "linear chunked": Method(style.COLOURS["linear"], "^"),
    "linear chunked_materialized": Method("#D8AE6A", "v"),
    "linear attention": Method("#949494", "P"),
    "linear attention_parallel": Method("#1B7F3B", "<"),
    "linear attention_parallel_no_flash": Method("#CC78BC", ">"),
    "linear state": Method("#A3000B", "p"),
    "linear state_parallel": Method("#C9BC1F", "h"),
}
"""Methods of the speed study in the order of legends. Softmax flash and linear chunked have the
colour of their attention; the other colours remain distinct for colour-blind readers."""

ENDS = {
    "oom": ("x", "out of memory"), "slow": ("+", "too slow"), "failed": ("1", "failed"),
    "wrong": ("2", "wrong, not timed"),
}  # fmt: skip
"""Mark and legend entry of each status that ends a line."""

END, STEP = "_end", 0.1
"""Label of these marks, which no legend shows, and inches between those of the same context."""

STEP_TIME = "Time of a step per sequence (ms)"

QUARTILES = "medians of {} repeats, bars are quartiles"
"""Default description of points and error bars."""

STROKES = ("-", "--", "-.")
"""Of the first measured setup, the second, and all further ones."""


@dataclass(frozen=True)
class Look:
    """How the lines of one setup are drawn."""

    label: str
    stroke: Literal["-", "--", "-.", ":"]
    width: float
    filled: bool


def looks(rows: DataFrame) -> dict[tuple[str, str], Look]:
    """The look of each source and setup: measured ones first, published ones dotted."""
    pairs = sorted(set(zip(rows.source, rows.setup, strict=True)))
    ours = [pair for pair in pairs if pair[0] == "measured"]
    measured = {
        pair: Look(f"setup {i + 1}", STROKES[min(i, 2)], 1.4, i == 0) for i, pair in enumerate(ours)
    }
    if len(ours) == 1:
        measured[ours[0]] = Look("measured", "-", 1.4, True)
    return measured | {pair: Look(pair[0], ":", 0.9, False) for pair in pairs if pair not in ours}


def methods(names: list[str]) -> dict[str, Method]:
    """Colour and marker of each named method, in the order of legends."""
    known = {name: look for name, look in METHODS.items() if name in set(names)}
    return known | {name: METHODS.get(name) or _method(name) for name in sorted(set(names))}


def _method(name: str) -> Method:
    """The colour of the attention, and a marker by the name of the method."""
    base = name.partition(" ")[0]
    return Method(style.palette([base])[base], style.marker(name))


def page(
    rows: DataFrame,
    n: int,
    *,
    columns: int | None = None,
    height: float | None = None,
    spread: str = QUARTILES,
    handles: list[Line2D] | None = None,
    sharex: bool | Literal["row"] = True,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """``n`` panels with one legend above and a note on setups and repeats below.

    Args:
        rows: All rows of the figure.
        n: Number of panels.
        columns: Panels side by side; by default one to three, depending on ``n``.
        height: Of a panel, inches; by default larger for a single panel.
        spread: Description of points and error bars, with ``{}`` for the number of repeats.
        handles: Legend entries; by default one for each method.
    """
    columns = columns or {1: 1, 2: 2, 4: 2}.get(n, 3)
    height = height or (2.9 if n == 1 else 2.2)
    below = note(rows, spread)
    shown = handles or handles_of(methods(rows.method.tolist()))
    shown = shown + _setups(rows) + _ends(rows)
    ncols = min(len(shown), 3 if max(len(str(h.get_label())) for h in shown) > 24 else 4)
    inches = 0.15 * (2 + below.count("\n")) + 0.2 * -(-len(shown) // ncols)
    figure, places = style.panels(
        n, columns, height + 0.3, top=inches, sharex=sharex, sharey=sharey
    )
    style.legend(figure, shown, ncols)
    style.note(figure, below)
    return figure, places


def note(rows: DataFrame, spread: str) -> str:
    """Hardware, versions and repeats of each setup, wrapped to the page."""
    parts = []
    for (source, setup), look in looks(rows).items():
        counts = rows.loc[(rows.source == source) & (rows.setup == setup), "repeats"]
        counts = counts[counts > 0].astype(int)
        low, high = (counts.min(), counts.max()) if len(counts) else (0, 0)
        number = f"{low}" if low == high else f"{low} to {high}"
        label = "Measured on " if look.label == "measured" else f"{look.label.capitalize()}: "
        repeats = spread.format(number) if len(counts) else "number of repeats not published"
        parts.append(f"{label}{setup}; {repeats}.")
    return "\n".join(style.filled(part) for part in parts)


def by_size(rows: DataFrame, y: str, label: str, **options) -> tuple[Figure, dict[str, Axes]]:
    """A panel for each size, column ``y`` against the context on logarithmic axes."""
    sizes = style.sizes_of(rows)
    figure, places = page(rows, len(sizes), **options)
    panels = dict(zip(sizes, places, strict=True))
    for size, axes in panels.items():
        lines(axes, rows.loc[rows["size"] == size], y, looks(rows))
        axes.set_title(size)
    powers_of_two(places, rows.context, "Context (tokens)")
    log_scale(places, label)
    return figure, panels


def lines(
    axes: Axes,
    rows: DataFrame,
    y: str,
    of: dict[tuple[str, str], Look],
    *,
    x: str = "context",
    known: dict[str, Method] | None = None,
) -> None:
    """A line for each method and setup, column ``y`` against ``x``; ``known`` are other things than
    methods that the column ``method`` names."""
    known = methods(rows.method.tolist()) if known is None else known
    order = {name: i for i, name in enumerate(known)}
    groups: list[tuple[Any, DataFrame]] = list(rows.groupby(["method", "source", "setup", "sweep"]))
    for (name, source, setup, _), part in sorted(groups, key=lambda g: (order[g[0][0]], g[0])):
        _line(axes, part, x, y, known[name], of[source, setup])


def _line(axes: Axes, rows: DataFrame, x: str, y: str, method: Method, look: Look) -> None:
    """One line with error bars, and a mark for each measurement that failed."""
    done = rows.loc[rows[y].notna()].sort_values(x)
    # A logarithmic axis cannot show a bar that begins at zero or below.
    low = (done[y] - done[f"lower_{y}"].clip(lower=done[y] / 10)).clip(lower=0)
    high = (done[f"upper_{y}"] - done[y]).clip(lower=0)
    axes.errorbar(
        done[x], done[y], yerr=np.array([low, high], dtype=float),
        color=method.colour, linestyle=look.stroke, linewidth=look.width, elinewidth=1.0,
        marker=method.marker, markersize=4.5, markeredgewidth=0.8, zorder=2 + look.filled / 2,
        markerfacecolor=method.colour if look.filled else "white",
    )  # fmt: skip
    ends = rows.loc[rows.status != "done"]
    for at, status in zip(ends[x], ends.status, strict=True):
        marks = [line for line in axes.lines if line.get_label() == END]
        same = sum(np.asarray(mark.get_xdata())[0] == at for mark in marks)
        axes.plot(
            at, 1.0, ENDS[status][0], label=END,
            color=method.colour, markersize=6, markeredgewidth=1.4, zorder=4, clip_on=False,
            transform=axes.get_xaxis_transform() + ScaledTranslation(
                0, -STEP * same, axes.figure.dpi_scale_trans
            ),
        )  # fmt: skip


def powers_of_two(panels: list[Axes], values: Series, label: str) -> None:
    """Logarithmic x axes with about six ticks at powers of two."""
    first, last = int(np.ceil(np.log2(values.min()))), int(np.log2(values.max()))
    step = -(-(last - first + 1) // (14 // style.columns_of(panels[0])))
    for axes in panels:
        style.log_scale(axes, "x", [2**i for i in range(first, last + 1, step)], style.tokens)
        if axes.xaxis.get_tick_params()["labelbottom"]:
            axes.set_xlabel(label)


def log_scale(panels: list[Axes], label: str) -> None:
    """Logarithmic y axes with plain numbers; ticks depend on the range."""
    for axes in panels:
        axes.set_yscale("log")
    for axes in panels:
        low, high = axes.get_ylim()
        many = LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,), numticks=8)
        ticks = MaxNLocator(5) if high < 4 * low else many
        style.log_scale(axes, "y", ticks, "{:,.10g}".format)
        place = axes.get_subplotspec()
        if place and place.is_first_col():
            axes.set_ylabel(label)


def line_at_one(axes: Axes) -> None:
    """A line at ratio 1, where a method takes as long as its reference."""
    axes.axhline(1.0, color="0.35", linewidth=1.0, zorder=1)


def handles_of(known: dict[str, Method]) -> list[Line2D]:
    """Legend entries of methods."""
    return [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5, label=name)
        for name, look in known.items()
    ]


def _setups(rows: DataFrame) -> list[Line2D]:
    """Legend entries of setups; none if there is a single measured setup."""
    by_label = {look.label: look for look in looks(rows).values()}
    if list(by_label) == ["measured"]:
        return []
    return [
        Line2D(
            [], [], color="0.3", linestyle=look.stroke, linewidth=look.width, marker="o",
            markersize=4.5, markerfacecolor="0.3" if look.filled else "white", label=label,
        )
        for label, look in by_label.items()
    ]  # fmt: skip


def _ends(rows: DataFrame) -> list[Line2D]:
    statuses = set(rows.status)
    return [
        Line2D([], [], color="0.3", linestyle="", marker=mark, markeredgewidth=1.4, label=meaning)
        for status, (mark, meaning) in ENDS.items()
        if status in statuses
    ]
