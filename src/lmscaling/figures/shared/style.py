"""The common style of all figures: theme, page width, colours, markers, dashes and legends."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import matplotlib as mpl
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.markers import CARETUP
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from pandas import DataFrame

from lmscaling.fits.ends import UNFINISHED
from lmscaling.formatting import short

Sources = Iterable[str]
Dash = str | tuple[int, tuple[float, ...]]
"""A stroke as Matplotlib takes it."""

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
MARKERS = {"softmax": "o", "linear": "^"}
DASHES: dict[str, Dash] = {"softmax": "-", "linear": "--"}
OTHER_DASHES: tuple[Dash, ...] = (
    "-.",
    (0, (6, 1)),
    (0, (3, 1, 1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
)


@dataclass(frozen=True)
class Method:
    """Colour and marker of one implementation of an attention."""

    colour: str
    marker: str


METHODS = {
    "softmax": Method(COLOURS["softmax"], "o"),
    "softmax flash": Method(COLOURS["softmax"], "o"),
    "softmax flash4": Method("#00A99D", "X"),
    "softmax cudnn": Method("#2B1A5E", "D"),
    "softmax no_flash": Method("#7CC6F2", "s"),
    "linear": Method(COLOURS["linear"], "^"),
    "linear chunked": Method(COLOURS["linear"], "^"),
    "linear chunked_materialized": Method("#D8AE6A", "v"),
    "linear attention": Method("#949494", "P"),
    "linear attention_parallel": Method("#1B7F3B", "<"),
    "linear attention_parallel_no_flash": Method("#CC78BC", ">"),
    "linear state": Method("#A3000B", "p"),
    "linear state_parallel": Method("#C9BC1F", "h"),
}
"""Methods of the speed study in the order of legends. Softmax flash and linear chunked have the
colour of their attention; the other colours remain distinct for colour-blind readers."""
OTHER_MARKERS = "X*8dHDsvPp<>h"

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


def palette(attentions: list[str]) -> dict[str, str]:
    """The colour of each variant; it depends on the name alone and is the same in every figure.

    The variants of this package come first.
    """
    return COLOURS | {name: _colour(name) for name in sorted(set(attentions))}


def methods(names: list[str]) -> dict[str, Method]:
    """Colour and marker of each named method, in the order of legends."""
    known = {name: look for name, look in METHODS.items() if name in set(names)}
    return known | {name: METHODS.get(name) or _method(name) for name in sorted(set(names))}


def marker(name: str) -> str:
    """The marker of an attention or a method, which depends on the name alone."""
    return _pick(name, MARKERS, OTHER_MARKERS)


def _colour(name: str) -> str:
    """The colour of an attention by its name; ``local.window128`` has a shade of that of local."""
    base, *options = name.split(".")
    if (
        base in COLOURS
        and options
        and not any(re.sub(r"_x\d+$", "", o) in COLOURS for o in options)
    ):
        return SHADES[base][int(sha256(name.encode()).hexdigest(), 16) % len(SHADES[base])]
    return _pick(name, COLOURS, OTHERS)


def _method(name: str) -> Method:
    """The colour of the attention, and a marker by the name of the method."""
    return Method(_colour(name.partition(" ")[0]), marker(name))


def _pick(name: str, known: dict[str, T], others: Sequence[T]) -> T:
    """What belongs to a name, in any company; two other names may get the same."""
    return (
        known[name]
        if name in known
        else others[int(sha256(name.encode()).hexdigest(), 16) % len(others)]
    )


def tokens(value: float, position: int | None = None) -> str:
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
    colours, sizes = palette(rows.attention.tolist()), sizes_of(rows)
    present = set(zip(rows.attention, rows["size"], strict=True))
    return {
        (attention, size): shade
        for attention in colours
        for size, shade in zip(sizes, shades(colours[attention], len(sizes)), strict=True)
        if (attention, size) in present
    }


def sizes_of(rows: DataFrame) -> list[str]:
    """The sizes, the smallest first."""
    return rows.sort_values(["params", "size"])["size"].unique().tolist()


def legend_of(figure: Figure, shades: dict[tuple[str, str], str], sources: Sources = ()) -> None:
    """One legend above all panels for the shades of ``shades_of`` and for published runs."""
    _, sizes = (list(dict.fromkeys(names)) for names in zip(*shades, strict=True))
    handles = [
        Line2D([], [], color=colour, linestyle=dashes(name), label=f"{name} {size}")
        for (name, size), colour in shades.items()
    ]
    if mixes_sources(sources):
        handles.append(Line2D([], [], color="0.4", label="published", **PUBLISHED))
    columns = min(4, len(sizes))
    if len(handles) > MOST_LINES * columns:
        columns = 4 if max(len(str(handle.get_label())) for handle in handles) <= WIDEST else 3
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LINE * max(0, lines - MOST_LINES))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def panels(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """``count`` panels of a height in inches across the page, with the same axes; places that stay
    empty show none."""
    n_rows = -(-count // columns)
    figure, places = plt.subplots(
        n_rows, columns, figsize=(PAGE, 0.9 + height * n_rows),
        sharex=True, sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    for axes in places.flat[count:]:
        axes.set_axis_off()
    for axes in list(places.flat)[max(0, count - columns) : count]:  # the lowest of its column
        axes.tick_params(labelbottom=True)
    sns.despine(figure)
    return figure, list(places.flat[:count])


def label_outer(panels: list[Axes], x: str, y: str, columns: int) -> None:
    """Label the lowest panel of each column and the first of each row."""
    for axes in panels[max(0, len(panels) - columns) :]:
        axes.set_xlabel(x)
    for axes in panels[::columns]:
        axes.set_ylabel(y)


def mixes_sources(sources: Sources) -> bool:
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


def mark_unusual(axes: Axes, rows: DataFrame, x: str, y: str, colours: dict[str, str]) -> None:
    """Draw hollow markers over unfinished runs, and an arrow at the upper edge for each failed run,
    whose loss would be above any other."""
    for attention, part in rows[rows.status.isin(UNFINISHED)].groupby("attention"):
        axes.scatter(
            part[x], part[y],
            marker="o", facecolor="white", edgecolor=colours[str(attention)], s=28, zorder=4,
        )  # fmt: skip
    for attention, part in rows[rows.status.isin(FAILED)].groupby("attention"):
        for at in part[x]:
            axes.plot(
                [at, at], [0.9, 1.0], color=colours[str(attention)], linewidth=1.2, zorder=4,
                marker=CARETUP, markersize=6, markevery=[1], clip_on=False,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip


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


def count_scale(axes: Axes) -> None:
    """A logarithmic x axis of parameter counts, with few ticks for a small panel."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high < 10 * low else [1, 3]))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.xaxis.set_minor_locator(NullLocator())


def loss_scale(axes: Axes) -> None:
    """A logarithmic y axis of losses with plain numbers, which shows small differences at the end
    of training."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=[1, 1.5, 2, 3, 4, 5, 6, 8]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
