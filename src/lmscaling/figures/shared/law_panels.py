"""What figures of laws share: rows and columns of panels, words in a panel, and intervals.

A law that has no answer is never an empty panel: its status stands there in words.
"""

import textwrap
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import style
from lmscaling.fits.parabola import AROUND, Optimum
from lmscaling.fits.points import Group, Point, read
from lmscaling.fits.uncertainty import Interval

Stroke = Literal["-", "--", ":", "-."]

COUNT = 400
"""Replicates: ten lie beyond either end of an interval, enough for a line's width."""
MOST_CONTEXTS = 4
"""Rows or columns that a page can hold."""
STROKES: tuple[Stroke, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


def points(rows: DataFrame) -> list[Point]:
    """The data of a figure as what fits read; numbers that are missing are None."""
    plain = rows.astype(object).where(rows.notna(), None)
    return read(plain.itertuples(index=False, name=None))


def of_one_source(query: str) -> str:
    """The rows of ours, or published ones where we have none: laws of both would cover each other,
    and tables hold them."""
    return query.replace("ORDER BY", "QUALIFY source = min(source) OVER () ORDER BY")


def most_sizes(known: Sequence[Point]) -> list[int]:
    """Contexts at which most sizes were trained."""
    sizes = {p.context: {q.size for q in known if q.context == p.context} for p in known}
    most = max(map(len, sizes.values()))
    widest = sorted(context for context, found in sizes.items() if len(found) == most)
    return style.spread(widest, MOST_CONTEXTS)


def grid(rows: int, columns: int, height: float, **options) -> tuple[Figure, np.ndarray]:
    """Panels as wide as the page, each so high in inches."""
    figure, panels = plt.subplots(
        rows, columns, figsize=(style.PAGE, 0.9 + height * rows),
        squeeze=False, layout="constrained", **options,
    )  # fmt: skip
    sns.despine(figure)
    return figure, panels


def name_row(axes: Axes, text: str) -> None:
    """Right of the last panel of a row."""
    axes.annotate(text, (1.02, 0.5), xycoords="axes fraction", rotation=270, va="center")


def say(axes: Axes, text: str, width: int = 30) -> None:
    """Words above what a panel shows; nothing is covered."""
    if text:
        wrapped = "\n".join(textwrap.fill(line, width) for line in text.split("\n"))
        axes.set_title(wrapped, fontsize="x-small", color="0.25", loc="left", pad=3)


def say_instead(axes: Axes, text: str, width: int = 26) -> None:
    """Words in place of a panel that has nothing to show."""
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, textwrap.fill(text, width), transform=axes.transAxes,
        ha="center", va="center", fontsize="small", color="0.35",
    )  # fmt: skip


def told(statuses: Mapping[Any, str], meanings: Mapping[str, str], besides: set[str]) -> str:
    """Statuses in words, those of several together; ``besides`` need none."""
    count = Counter(status for status in statuses.values() if status not in besides)
    lines = []
    for status, n in count.items():
        names = [str(name) for name, own in statuses.items() if own == status]
        head = "all" if n == len(statuses) > 1 else ", ".join(names)
        lines.append(f"{head}: {meanings[status]}")
    return "\n".join(lines)


def ends(interval: Interval) -> str:
    """``0.41 to 0.47``, with ``open`` for an end that is."""
    low, high = ("open" if e is None else f"{e:.2f}" for e in (interval.low, interval.high))
    return f"{low} to {high}"


def bar(axes: Axes, x: float, y: float, interval: Interval, colour: str, across: bool) -> None:
    """An interval along x if ``across``, else along y; an open end reaches the edge of the panel.

    Axes must have their limits."""
    low, high = axes.get_xlim() if across else axes.get_ylim()
    ends = [low if interval.low is None else interval.low]
    ends.append(high if interval.high is None else interval.high)
    place = (ends, [y, y]) if across else ([x, x], ends)
    axes.plot(
        *place, color=colour, linewidth=1.2, marker="|" if across else "_", markersize=7, zorder=5
    )
    if across:
        axes.set_xlim(low, high)
    else:
        axes.set_ylim(low, high)


def optimum(
    axes: Axes, best: Optimum, values: Iterable[float], line: str, face: str, size: float = 7
) -> None:
    """The parabola through the points around the lowest, its vertex as a star, and the interval;
    nothing where there is none. Axes must have their limits."""
    if best.at is None or best.loss is None or best.bend is None or best.interval is None:
        return
    known = sorted(set(values))
    place = known.index(best.lowest or known[0])
    ends = known[max(0, place - AROUND)], known[min(len(known) - 1, place + AROUND)]
    x = np.geomspace(*ends, 30)
    bent = best.loss + best.bend * np.log(x / best.at) ** 2
    axes.plot(x, bent, color=line, linewidth=0.8, linestyle=":", zorder=3)
    bar(axes, best.at, best.loss, best.interval, "black", across=True)
    axes.plot(best.at, best.loss, "*", color=face, mec="black", mew=0.6, markersize=size, zorder=6)


def band(axes: Axes, x: Sequence[float], intervals: Sequence[Interval], colour: str) -> None:
    """Intervals along a curve, cut where an end is open."""
    low = [np.nan if i.low is None else i.low for i in intervals]
    high = [np.nan if i.high is None else i.high for i in intervals]
    axes.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0)


def context_scale(axes: Axes, contexts: Iterable[int]) -> None:
    known = sorted(set(contexts))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(known[:: 1 if len(known) < 6 else 2]))
    axes.xaxis.set_major_formatter(FuncFormatter(style.tokens))
    axes.xaxis.set_minor_locator(NullLocator())


def plain_log(axes: Axes, ticks: Sequence[float], which: str) -> None:
    """A logarithmic axis with plain numbers at those ticks that it shows."""
    getattr(axes, f"set_{which}scale")("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def looks(names: Iterable[Hashable], colours: Sequence) -> dict:
    """Colour and marker of each, so that they are told in grey, too."""
    return {
        name: (colour, MARKERS[i % len(MARKERS)])
        for i, (name, colour) in enumerate(zip(names, colours, strict=True))
    }


def legend(figure: Figure, handles: list[Line2D], title: str | None = None) -> None:
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(7, len(handles)), title=title
    )


def note(figure: Figure, groups: Iterable[Group], more: str = "") -> None:
    """Below: what the points are and what the intervals assume."""
    kinds = dict.fromkeys(group.of for group in groups)
    text = f"Points: {'; '.join(kinds)}. {more}".strip()
    figure.supxlabel(textwrap.fill(text, 128), x=0.005, ha="left", fontsize="small", color="0.35")
