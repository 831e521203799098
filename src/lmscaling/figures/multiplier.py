"""How much more the baseline must spend to reach the same loss. The compute multiplier of an
attention against the baseline of the study, m(L) = spent by the baseline / spent by the attention
when the loss reaches L, in steps, in counted FLOPs where they are known, and in hours of training;
above 1 the attention is better than the baseline. Rows are pairs and sizes. Left: the multiplier at
the lowest compared loss against the context. Right: the multiplier against the loss, which falls to
the right over at most the last 1.5 nats and five doublings of steps, at three contexts. The
multiplier in hours is the one in steps times the ratio of the times of a step.
Bars and bands invert a test of the gap of paired seeds; the note below the panels says what they
assume. They are cut off where an end is open, because the baseline does not reach the loss. Curves
are training losses for published runs, validation losses at a constant learning rate for measured
runs.
"""

from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import multiplier
from lmscaling.fits.smooth_curves import AXES

SECTION = "laws"
QUERY = multiplier.QUERY_OF.format(view="drawn_curves")

LOOKS: dict[str, tuple[str, Any]] = {
    "updates": ("#3B3B3B", "-"), "flops": ("#8C4BB8", "--"), "hours": ("#1B8A4B", "-."),
}  # fmt: skip
"""Colours and strokes of the axes, none of which is that of an attention."""
NAMES = {"updates": "in steps", "flops": "in FLOPs", "hours": "in hours"}
MOST_CURVES = 3
"""Contexts whose curves are drawn; the panel on the left has all of them."""
SHOWN = 1.5
"""Nats above the lowest loss; higher losses belong to the warm-up."""
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
NARROW = (0.3, 0.4, 0.7, 1.5, 3, 4)
"""Additional ticks where all multipliers lie within a factor of ten."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    source, baselines = min(rows.source), set(rows.loc[rows.is_baseline].attention)
    pairs, levels = (
        found.loc[(found.source == source) & found.in_order]
        for found in (db.table(name).df() for name in ("multipliers", "multiplier_levels"))
    )
    if pairs.reference.isin(baselines).any():
        pairs, levels = (of.loc[of.reference.isin(baselines)] for of in (pairs, levels))
    known_axes = [axis for axis in AXES if axis != "flops" or pairs.flops.notna().any()]
    contexts = sorted(set(pairs.context))
    count = pairs.loc[pairs.loss.notna()].context.value_counts()
    widest = sorted(count.index[count == count.max()]) or contexts
    drawn = style.spread(widest, MOST_CURVES)
    lines = list(dict.fromkeys(zip(pairs["size"], pairs.reference, pairs.attention, strict=True)))
    figure, panels = style.grid(len(lines), 1 + len(drawn), 1.9, sharey=True)
    for (size, reference, attention), row in zip(lines, panels, strict=True):
        in_row, along = (
            of.loc[(of["size"] == size) & (of.reference == reference) & (of.attention == attention)]
            for of in (pairs, levels)
        )
        _draw_contexts(row[0], in_row, known_axes, contexts)
        row[0].set_ylabel(f"Multiplier (ratio)\nabove 1: {attention} is better")
        for context, axes in zip(drawn, row[1:], strict=True):
            _draw_losses(axes, along.loc[along.context == context], known_axes)
        style.label_row(row[-1], f"{attention} / {reference}, {size}")
    for axes in (axes for axes in panels.flat if axes.axison):
        axes.axhline(1, color="0.35", linewidth=1.0, zorder=1)
        axes.set_yscale("log")
    low, high = panels[0, 0].get_ylim()
    for axes in panels.flat:
        style.log_scale(axes, "y", sorted(TICKS + NARROW) if high < 10 * low else TICKS)
    panels[-1, 0].set_xlabel("Context (tokens)")
    for context, top, bottom in zip(drawn, panels[0, 1:], panels[-1, 1:], strict=True):
        law_panels.title_above_note(top, f"context {style.tokens(context)}")
        bottom.set_xlabel("Loss (nats per token)")
    handles = [
        Line2D([], [], color=LOOKS[a][0], linestyle=LOOKS[a][1], label=NAMES[a]) for a in known_axes
    ]
    style.legend(figure, handles, 7)
    style.note(figure, style.filled(_noise(pairs)))
    return figure


def _draw_contexts(
    axes: Axes, pairs: DataFrame, known_axes: list[str], contexts: list[int]
) -> None:
    """The multiplier at the lowest compared loss, with bars; the axes side by side."""
    for i, axis in enumerate(known_axes):
        colour, stroke = LOOKS[axis]
        known = pairs.loc[pairs[axis].notna()]
        places = known.context * 1.12 ** (i - (len(known_axes) - 1) / 2)
        axes.plot(places, known[axis], color=colour, linestyle=stroke, linewidth=0.8, marker="o",
                  markersize=3)  # fmt: skip
        axes.vlines(places, *_ends(known, axis), color=colour, linewidth=1.6, alpha=0.7)
    style.context_scale(axes, contexts)
    axes.set_xlim(contexts[0] / 1.4, contexts[-1] * 1.4)
    statuses = dict(zip(map(style.tokens, pairs.context), pairs.status, strict=True))
    reasons = law_panels.describe_statuses(statuses, multiplier.STATUSES, {"compared"})
    law_panels.panel_note(axes, reasons, 34)


def _draw_losses(axes: Axes, levels: DataFrame, known_axes: list[str]) -> None:
    """Multipliers of one context against the loss, with bands."""
    if levels.empty:
        axes.set_axis_off()
        return
    for axis in (axis for axis in known_axes if not levels[axis].hasnans):
        colour, stroke = LOOKS[axis]
        ends = _ends(levels, axis)
        axes.fill_between(levels.loss, *ends, color=colour, alpha=0.25, linewidth=0)
        axes.plot(levels.loss, levels[axis], color=colour, linestyle=stroke, linewidth=1.2)
    lowest = levels.loss.iloc[-1]
    span = min(SHOWN, max(levels.loss.iloc[0] - lowest, 0.01))
    axes.set_xlim(lowest + 1.05 * span, lowest - 0.05 * span)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def _ends(rows: DataFrame, axis: str) -> tuple[NDArray, NDArray]:
    """Ends of the intervals; an open one at twice or half the multiplier."""
    low, high, value = rows[f"{axis}_low"], rows[f"{axis}_high"], rows[axis]
    return np.where(np.isfinite(low), low, value / 2), np.where(np.isfinite(high), high, value * 2)


def _noise(pairs: DataFrame) -> str:
    """What bars and bands are."""
    known = pairs.loc[pairs.loss.notna()]
    assumed = sorted({f"{sd:.2g}" for sd in known.assumed_sd.dropna()})
    measured = known.assumed_sd.isna().to_numpy().any()
    kinds = ["95 % intervals from paired seeds"] if measured else []
    if assumed:
        number = " or ".join(assumed)
        kinds.append(
            f"{'elsewhere ' if measured else ''}the range if the gaps of seeds differ by {number} "
            "nats, which is no confidence interval: no seeds near enough"
        )
    return f"Bars and bands: {'; '.join(kinds)}." if kinds else ""
