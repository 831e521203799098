"""The common style of all figures: theme, colours, markers, grids of panels, legends and scales."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeVar

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator
from pandas import DataFrame

from lmscaling.formatting import short

T = TypeVar("T")

PAGE = 7.4
"""Width of a figure across the page, inches."""

LONGEST = 16
"""Letters of a name that has room above a panel, or beside one of two in a row."""

COLOURS = {
    "softmax": "#0173B2",
    "linear": "#D17A00",
    "gated_delta": "#029E73",
    "gated": "#C25BAE",
    "mamba2": "#D0312D",
    "retention": "#8C5A3C",
    "elu": "#7F8C00",
    "taylor2": "#2A92CE",
    "favor": "#7F7F7F",
    "cosformer": "#7B3294",
    "local": "#1A3A8F",
}
"""Colours of the variants of this package: a contrast of 3 with white, and on a dark page, which
inverts figures. They are distinct for colour-blind readers if few are shown."""
OTHERS = [to_hex(rgb) for rgb in sns.husl_palette(17, h=0.42, s=0.85, l=0.5)]
"""Colours of other variants, of equal contrast."""
CHOSEN: dict[str, str] = {}
"""Colours of the attentions of the study that is drawn."""
MARKERS = "o^sDvP<>phHd8X*"
"""Markers in the order in which they are given; the first two are those of softmax and linear."""
KNOWN_MARKERS = {"softmax": "o", "linear": "^"}
DASHES: dict[str, Any] = {"softmax": "-", "linear": "--"}
OTHER_DASHES: tuple[Any, ...] = (
    "-.", (0, (6, 1)), (0, (3, 1, 1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (2, 1)),
)  # fmt: skip

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


def choose(attentions: Iterable[str]) -> None:
    """Choose the colours of a study, in all of its figures and on its page."""
    CHOSEN.clear()
    CHOSEN.update(palette(attentions))


def palette(attentions: Iterable[str]) -> dict[str, str]:
    """The colour of each attention; variants of this package come first, in colours that depend on
    their name alone. Each other one takes that of ``OTHERS`` which is farthest from those taken."""
    names = set(attentions)
    found = {name: colour for name, colour in (COLOURS | CHOSEN).items() if name in names}
    for name in sorted(names - found.keys()):
        taken = [np.array(to_rgb(colour)) for colour in (CHOSEN | found).values()]
        found[name] = max(
            OTHERS,
            key=lambda one: min((float(np.linalg.norm(to_rgb(one) - c)) for c in taken), default=0),
        )
    return found


def marker(name: str) -> str:
    """The marker of an attention or a method, which depends on the name alone."""
    return _pick(name, KNOWN_MARKERS, MARKERS[2:])


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
    """``n`` shades of a colour, from full (the smallest size) to dark (the largest)."""
    dark = sns.dark_palette(colour, 8)[3]
    return [to_hex(rgb) for rgb in sns.blend_palette([colour, to_hex(dark)], n)]


def depths(n: int) -> list[str]:
    """``n`` shades for contexts or budgets, the dark ones last."""
    shades = sns.color_palette("crest", as_cmap=True)
    return [to_hex(shades(place)) for place in np.linspace(0.35, 1, n)]


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


def folded(name: str) -> str:
    """The name of an attention above a narrow panel; a long one in lines that begin at its dots."""
    return name.replace(".", "\n.") if len(name) > LONGEST else name


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
    figure: Figure,
    looks: dict[tuple[str, str], str],
    sources: Iterable[str] = (),
    others: Sequence[Any] = (),
) -> None:
    """One legend above all panels for the shades of ``shades_of`` and for published runs."""
    names, sizes = (list(dict.fromkeys(of)) for of in zip(*looks, strict=True))
    greys = zip(sizes, shades("#808080", len(sizes)), strict=True)
    of_sizes = [Line2D([], [], color=grey, linewidth=3, label=size) for size, grey in greys]
    handles = attention_handles(palette(names), names, False) + of_sizes * (len(sizes) > 1)
    legend(figure, [*handles, *published_handle(sources), *others])


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


def label_ends(axes: Axes, ends: Iterable[tuple[float, float, str, str]]) -> None:
    """Names at the right of lines that end at ``(x, y, name, colour)``, as far apart as letters
    need, each with a stroke to its line; the axes must have all their data."""
    low, high = axes.get_ylim()
    least = 9.5 * axes.figure.dpi / 72 / axes.get_window_extent().height
    places: list[float] = []
    order = sorted(ends, key=lambda end: end[1])
    for _, y, *_ in order:
        places.append(max((y - low) / (high - low), places[-1] + least if places else 0.0))
    over = max(0.0, *places[-1:], 1.0) - 1.0
    for at, (x, y, name, colour) in zip(places, order, strict=True):
        axes.annotate(
            name, (x, y), (1.04, at - over), textcoords="axes fraction", color=colour, va="center",
            fontsize="small", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 3},
        )  # fmt: skip
    axes.set_ylim(low, high)


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
    return textwrap.fill(text, 116)


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
    """A logarithmic x axis of parameter counts, with few ticks for a small panel. Models of about
    one size are near its middle."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 2 * low:  # too few round numbers for the locator
        low, high = axes.set_xlim(low / 2.5, high * 2.5)
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
