"""The common style of all figures: theme, colours, markers, grids of panels, legends and scales."""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeVar

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator
from pandas import DataFrame

from lmscaling.formatting import short

T = TypeVar("T")

PAGE = 7.4
"""Width of a figure across the page, inches."""

MOST_LINES = 4
"""Lines of a legend in the height of a figure; it grows with each further line."""
LINE = 0.17
"""Inches of a line of a legend, about."""
WIDEST = 16
"""Characters of a label of which four fit across the page."""

COLOURS = {
    "softmax": "#0173B2",
    "linear": "#DE8F05",
    "gated_delta": "#029E73",
    "gated": "#CC78BC",
    "mamba2": "#D55E00",
    "retention": "#CA9161",
    "elu": "#B5A300",
    "taylor2": "#56B4E9",
    "favor": "#949494",
    "cosformer": "#7B3294",
    "local": "#1A3A8F",
}
"""Colours of the variants of this package, distinct for colour-blind readers if few are shown."""
SHADES = {
    name: [
        to_hex(rgb) for rgb in sns.light_palette(colour, 8)[4:7] + sns.dark_palette(colour, 8)[5:]
    ]
    for name, colour in COLOURS.items()
}
"""Colours of a variant with options, which are chosen by its name."""
OTHERS = [to_hex(rgb) for rgb in sns.husl_palette(17, h=0.42, s=0.85, l=0.5)]
"""Colours of other variants, which are chosen by their name."""
MARKERS = "o^sDvP<>phHd8X*"
"""Markers in the order in which they are given; the first two are those of softmax and linear."""
KNOWN_MARKERS = {"softmax": "o", "linear": "^"}
DASHES: dict[str, Any] = {"softmax": "-", "linear": "--"}
OTHER_DASHES: tuple[Any, ...] = (
    "-.",
    (0, (6, 1)),
    (0, (3, 1, 1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
)


PUBLISHED = {"linestyle": (0, (1, 1)), "linewidth": 1.1}
"""Lines of published runs in figures that also show measured runs."""

LOSSES = {"validation": "Validation loss", "train": "Training loss"}

FAILED = ("diverged", "exploded")


def use() -> None:
    """Set the theme. A fixed hash salt and a font that Matplotlib brings make the SVG of equal data
    equal in every byte."""
    sns.set_theme(context="paper", style="ticks", font_scale=0.95)
    mpl.rcParams |= {
        "svg.hashsalt": "lmscaling",
        "font.family": "DejaVu Sans",
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "axes.grid": True,
        "grid.color": "0.92",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "axes.titley": 1.0,  # no axis is above a panel; to look for one takes a fifth of a drawing
    }


def palette(attentions: Iterable[str]) -> dict[str, str]:
    """The colour of each attention, which depends on its name alone; variants of this package come
    first."""
    names = set(attentions)
    return {n: colour(n) for n in [*COLOURS, *sorted(names - COLOURS.keys())] if n in names}


def marker(name: str) -> str:
    """The marker of an attention or a method, which depends on the name alone."""
    return _pick(name, KNOWN_MARKERS, MARKERS[2:])


def colour(name: str) -> str:
    """The colour of an attention by its name; ``local.window128`` has a shade of that of local."""
    base, *options = name.split(".")
    if (
        base in COLOURS
        and options
        and not any(re.sub(r"_x\d+$", "", o) in COLOURS for o in options)
    ):
        return SHADES[base][int(sha256(name.encode()).hexdigest(), 16) % len(SHADES[base])]
    return _pick(name, COLOURS, OTHERS)


def _pick(name: str, known: dict[str, T], others: Sequence[T]) -> T:
    """What belongs to a name, in any company; two other names may get the same."""
    return (
        known[name]
        if name in known
        else others[int(sha256(name.encode()).hexdigest(), 16) % len(others)]
    )


def tokens(value: float) -> str:
    """``64k`` for 65536; numbers that are no multiple of 1024 are written out."""
    return f"{value / 1024:g}k" if value and value % 1024 == 0 else f"{value:g}"


def spread(values: list[int], most: int) -> list[int]:
    """At most ``most`` of the values, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def shades(colour: str, n: int) -> list[str]:
    """``n`` shades of a colour, from light (the smallest size) to full (the largest)."""
    return [to_hex(rgb) for rgb in sns.light_palette(colour, n_colors=n + 2)[2:]]


def shades_of(rows: DataFrame) -> dict[tuple[str, str], str]:
    """A shade for each attention and size that the rows have; larger models are darker."""
    sizes, present = sizes_of(rows), set(zip(rows.attention, rows["size"], strict=True))
    return {
        (attention, size): shade
        for attention, colour in palette(rows.attention).items()
        for size, shade in zip(sizes, shades(colour, len(sizes)), strict=True)
        if (attention, size) in present
    }


def sizes_of(rows: DataFrame) -> list[str]:
    """The sizes, the smallest first."""
    return rows.sort_values(["params", "size"])["size"].unique().tolist()


def grid(
    rows: int, columns: int, height: float, *, top: float = 0.9, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A grid of panels across the page, each of a height in inches, below ``top`` inches for the
    legend."""
    options |= {"figsize": (PAGE, top + height * rows), "layout": "constrained"}
    figure, places = plt.subplots(rows, columns, squeeze=False, **options)
    sns.despine(figure)
    return figure, places


def panels(
    count: int, most: int, height: float, *, sharex: Any = True, sharey: Any = True, **options: Any
) -> tuple[Figure, list[Axes]]:
    """``count`` panels, at most ``most`` side by side; places that stay empty show no axes."""
    columns = min(most, count)
    options |= {"sharex": sharex, "sharey": sharey}
    figure, places = grid(-(-count // columns), columns, height, **options)
    for axes in places.flat[count:]:
        axes.set_axis_off()
    shown = list(places.flat[:count])
    for axes in shown[-columns:]:  # the lowest of its column
        axes.tick_params(labelbottom=True)
    return figure, shown


def columns_of(axes: Axes) -> int:
    """Number of columns of the grid that a panel is in."""
    place = axes.get_subplotspec()
    return place.get_gridspec().ncols if place else 1


def label_outer(panels: Sequence[Axes], x: str, y: str) -> None:
    """Label the lowest panel of each column and the first of each row."""
    columns = columns_of(panels[0])
    for axes in panels[-columns:]:
        axes.set_xlabel(x)
    for axes in panels[::columns]:
        axes.set_ylabel(y)


def label_row(axes: Axes, text: str) -> None:
    """Label a row of panels at the right of its last panel."""
    axes.annotate(text, (1.02, 0.5), xycoords="axes fraction", rotation=270, va="center")


def legend(
    figure: Figure, handles: Iterable[Any], columns: int = 5, title: str | None = None
) -> None:
    """One legend above all panels."""
    known = list(handles)
    columns = min(columns, len(known))
    figure.legend(handles=known, loc="outside upper center", ncols=columns, title=title)


def legend_of(
    figure: Figure, shades: dict[tuple[str, str], str], sources: Iterable[str] = ()
) -> None:
    """One legend above all panels for the shades of ``shades_of`` and for published runs."""
    _, sizes = (list(dict.fromkeys(names)) for names in zip(*shades, strict=True))
    handles = [
        Line2D([], [], color=colour, linestyle=dashes(name), label=f"{name} {size}")
        for (name, size), colour in shades.items()
    ]
    handles += published_handle(sources)
    columns = min(4, len(sizes))
    if len(handles) > MOST_LINES * columns:
        columns = 4 if max(len(str(handle.get_label())) for handle in handles) <= WIDEST else 3
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LINE * max(0, lines - MOST_LINES))
    legend(figure, handles, columns)


def published_handle(sources: Iterable[str]) -> list[Line2D]:
    """The legend entry of published runs, where a figure also shows measured ones."""
    return [Line2D([], [], color="0.4", label="published", **PUBLISHED)] * mixes_sources(sources)


def attention_handles(colours: dict[str, str], names: Iterable[str], marks: bool) -> list[Line2D]:
    """Legend entries of attentions: colour, dashes and, with ``marks``, the marker."""
    looks = {name: {"color": colours[name], "linestyle": dashes(name)} for name in names}
    return [
        Line2D([], [], **look, label=name, marker=marker(name) if marks else "", markersize=4.5)
        for name, look in looks.items()
    ]


def mixes_sources(sources: Iterable[str]) -> bool:
    """Whether a figure shows both measured and published numbers. Published numbers alone are
    drawn in the style of measured ones."""
    return set(sources) == {"measured", "published"}


def loss_label(rows: DataFrame) -> str:
    """The axis label of losses, by the split they were measured on."""
    splits = set(rows.split)
    return f"{LOSSES[splits.pop()] if len(splits) == 1 else 'Loss'} (nats per token)"


def dashes(attention: str) -> Any:
    """A stroke by the name of a variant, so that coinciding curves are visible."""
    return _pick(attention, DASHES, OTHER_DASHES)


def draw_range(axes: Axes, rows: DataFrame, x: str, y: str, colour: str, stroke: Any) -> None:
    """Means over seeds with the range of the seeds as a band."""
    found = rows.groupby(x)[y].agg(["mean", "min", "max"])
    if len(found):
        axes.plot(found.index, found["mean"], color=colour, linestyle=stroke, linewidth=1.3)
        axes.fill_between(found.index, found["min"], found["max"], color=colour, alpha=0.15, lw=0)


def draw_spikes(axes: Axes, curve: DataFrame, x: str, colour: Any) -> None:
    """Thin vertical strokes from a curve up to its spikes. A line through a thinned spike would be
    a triangle as wide as the distance of its neighbours."""
    high = curve[curve.spike.notna()]
    if len(high):
        axes.vlines(high[x], high.loss, high.spike, color=colour, linewidth=0.4, alpha=0.8)


def filled(text: str) -> str:
    """Text in lines that fit across the page in the font of notes."""
    # With the hinting of PNG, which widens letters by 7 % at 100 dpi; SVG has none.
    renderer = RendererAgg(1, 1, mpl.rcParams["figure.dpi"])
    font, lines = FontProperties(size="small"), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        pixels, _, _ = renderer.get_text_width_height_descent(longer, font, ismath=False)
        if pixels <= 0.985 * PAGE * renderer.dpi or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def note(figure: Figure, text: str) -> None:
    """Write a note below all panels.

    The note is a label because constrained_layout reserves no space for ``Figure.text``.
    """
    figure.supxlabel(text, x=0.005, ha="left", fontsize="small", color="0.35")


def nothing(message: str) -> Figure:
    """An empty figure with a message."""
    figure = Figure(figsize=(PAGE, 1.2))
    figure.text(0.5, 0.5, message, ha="center", va="center", color="0.4")
    return figure


def log_scale(
    axes: Axes,
    which: Literal["x", "y"],
    ticks: Locator | Iterable[float],
    text: Callable[[float], str] = "{:g}".format,
) -> None:
    """A logarithmic axis with ticks where the locator or the values say, and none between them."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(ticks if isinstance(ticks, Locator) else FixedLocator([*ticks]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def count_scale(axes: Axes) -> None:
    """A logarithmic x axis of parameter counts, with few ticks for a small panel."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    log_scale(axes, "x", LogLocator(subs=[1, 2, 5] if high < 10 * low else [1, 3]), short)


def context_scale(axes: Axes, contexts: Iterable[int], most: int = 5) -> None:
    """A logarithmic x axis with ticks at the contexts, or at each second if there are more than
    ``most``."""
    known = sorted(set(contexts))
    log_scale(axes, "x", known[:: 1 if len(known) <= most else 2], tokens)


def loss_scale(axes: Axes) -> None:
    """A logarithmic y axis of losses with plain numbers, which shows small differences at the end
    of training."""
    log_scale(axes, "y", LogLocator(subs=[1, 1.5, 2, 3, 4, 5, 6, 8]))
