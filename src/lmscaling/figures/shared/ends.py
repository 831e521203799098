"""Final losses with the scatter of seeds, for the figures against context and against size."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP
from numpy.typing import NDArray
from pandas import DataFrame, Series

from lmscaling.figures.shared import style
from lmscaling.fits.ends import UNFINISHED, Cell, has_ended, is_equal
from lmscaling.fits.noise import Spread


def shifts(lines: int, x: Series) -> NDArray:
    """A factor on x for each line that puts their bars side by side on a logarithmic axis."""
    step = max(x.max() / x.min(), 2.0) ** 0.015
    return step ** (np.arange(lines) - (lines - 1) / 2)


def draw(
    axes: Axes,
    rows: DataFrame,
    x: str,
    colour: str,
    known: dict[Cell, Spread],
    mixed: bool,
    shift: float = 1.0,
) -> None:
    """One attention and size, or attention and context, of each source: runs, means over seeds
    with their intervals at ``shift`` times x, and runs that spent more or less than the budget."""
    for source, part in rows.groupby("source"):
        is_dotted = mixed and source == "published"
        mark = "s" if is_dotted else "o"
        equal = part.loc[is_equal(part)]
        # Two sizes may have equally many parameters; their losses are not averaged.
        cells: list[tuple[Any, DataFrame]] = list(equal.groupby(["size", "context"]))
        means = sorted((float(group[x].iloc[0]), group.loss.mean()) for _, group in cells)
        look: dict[str, Any] = {"linestyle": style.dashes(part.attention.iloc[0]), "linewidth": 1.2}
        axes.plot(
            *np.array(means).reshape(-1, 2).T,
            color=colour,
            **(style.PUBLISHED if is_dotted else look),
        )
        axes.scatter(equal[x], equal.loss, s=13, marker=mark, color=colour, linewidth=0, zorder=3)
        for _, group in cells:
            first = group.iloc[0]
            spread = known[first.source, first.attention, first["size"], first.context]
            interval = spread.interval(float(group.loss.mean()))
            is_assumed = spread.basis == "assumed"
            axes.plot(
                [first[x] * shift] * 2, np.array([interval.low, interval.high], dtype=float),
                color="0.45" if is_assumed else colour,
                linestyle=":" if is_assumed else "-", linewidth=1.0, marker="_", markersize=5,
                zorder=2.5,
            )  # fmt: skip
        other = part[part.loss.notna() & has_ended(part) & ~is_equal(part)]
        axes.scatter(
            other[x], other.loss,
            s=20, marker="D", facecolor="white", edgecolor=colour, linewidth=0.9, zorder=3,
        )  # fmt: skip


def label_unequal(axes: Axes, rows: DataFrame, x: str) -> None:
    """Write beside each run of a panel that did not spend its budget how much it spent."""
    other = rows[rows.loss.notna() & has_ended(rows) & ~is_equal(rows)]
    near = 0.05 * (rows.loss.max() - rows.loss.min())
    for at, group in other.groupby(x):
        columns = (group[name].tolist() for name in ("loss", "hours", "spent"))
        spent = sorted(zip(*columns, strict=True), reverse=True)
        for i, (loss, hours, share) in enumerate(spent):
            above = sum(other - loss < near for other, *_ in spent[:i])
            text = f"{hours:.3g} h" if hours >= 0.1 else f"{100 * share:.0f} %"
            axes.annotate(
                text, (at, loss), (0, -4 - 7 * above), textcoords="offset points",
                ha="center", va="top", fontsize="x-small", color="0.25", zorder=5,
            )  # fmt: skip


def mark_unusual(axes: Axes, rows: DataFrame, x: str, y: str, colours: dict[str, str]) -> None:
    """Draw hollow markers over unfinished runs, and an arrow at the upper edge for each failed run,
    whose loss would be above any other."""
    for attention, part in rows[rows.status.isin(UNFINISHED)].groupby("attention"):
        axes.scatter(
            part[x], part[y],
            marker="o", facecolor="white", edgecolor=colours[str(attention)], s=28, zorder=4,
        )  # fmt: skip
    for attention, part in rows[rows.status.isin(style.FAILED)].groupby("attention"):
        for at in part[x]:
            axes.plot(
                [at, at], [0.9, 1.0], color=colours[str(attention)], linewidth=1.2, zorder=4,
                marker=CARETUP, markersize=6, markevery=[1], clip_on=False,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip


def note(figure: Figure, known: dict[Cell, Spread]) -> None:
    """State below the panels what the bars are."""
    measured = [spread.sd for spread in known.values() if spread.basis != "assumed"]
    assumed = [spread.sd for spread in known.values() if spread.basis == "assumed"]
    sentences = []
    if measured:
        sentences.append(
            "Bars are 95 % intervals of the mean over seeds, which differ by "
            f"{_range(measured)} nats (standard deviation)."
        )
    if assumed:
        said = {s.said for s in known.values() if s.basis == "assumed"}
        origins = sorted(text.removeprefix("if seeds differ as in ") for text in said)
        sentences.append(
            f"Dotted grey bars are no 95 % intervals but ranges if seeds differ by "
            f"{_range(assumed)} nats, as in {'; '.join(origins)}."
        )
    if sentences:
        style.note(figure, style.filled(" ".join(sentences)))


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"
