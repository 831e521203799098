"""Loss surface over size and data. L(N, D) = E + A / N^alpha + B / D^beta, fitted separately to
each attention (rows) and context (columns, at most four). Lines have equal fitted loss (nats per
token); they are dashed where the runs do not support exponents. Points are measured, coloured by
measured minus fitted loss, or by their loss if no panel has a surface; seeds are shifted sideways,
and points of a panel without a surface are hollow beside others. The
black line is the best size for each compute 6 N D within the range of the points. The note above a
panel has the exponent a of that size with its 95 % interval, or the reason why there is none, and
the verdict on forecasts of the largest size and the largest compute. Attentions of one size are
left out where others have several. N counts parameters without embeddings, D training tokens.
"""

from collections.abc import Iterable
from typing import get_args

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from pandas import DataFrame

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import holdout, loss_surface, points
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.formatting import short

SECTION = "laws"
QUERY = points.QUERY_OF.format(view="drawn_points")

REASONS = loss_surface.STATUSES | {
    "not_unique": "fit not unique",
    "too_few": "too few points",
    "few_runs": "too few seeds or sizes for exponents",
    "refused": "refused: no form describes the losses",
    "schedule": "schedule unknown: no surface",
}
"""Short explanations for a panel."""
APART = 1.05
"""Ratio by which the seeds of a size are shifted."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = law_panels.points(rows)
    groups = points.fullest(points.groups(known, "attention", "context"))
    attentions = law_panels.attentions(rows)
    contexts = law_panels.widest_contexts(known)
    drawn = {
        (a, c): group for (_, a, c), group in groups.items() if a in attentions and c in contexts
    }
    laws = {key: loss_surface.fit_group(group) for key, group in drawn.items()}
    figure, panels = law_panels.panel_grid(
        len(attentions), len(contexts), 2.6, sharex=True, sharey=True
    )
    residuals = np.concatenate([np.abs(law.residuals) for law in laws.values()] or [[]])
    scale = _scale_residuals(residuals) if len(residuals) else _scale_losses(drawn.values())
    notes = {key: _describe(drawn[key], law) for key, law in laws.items()}
    most = max(
        (text.count("\n") for (a, _), text in notes.items() if a == attentions[0]), default=0
    )
    for i, attention in enumerate(attentions):
        for j, context in enumerate(contexts):
            axes = panels[i, j]
            if (attention, context) not in drawn:
                law_panels.placeholder(axes, "no losses yet")
                continue
            group, law = drawn[attention, context], laws[attention, context]
            _draw_points(axes, group, law, scale)
            if law.estimate is not None:
                _draw_surface(axes, group, law)
            note = notes[attention, context]
            missing = 0 if i else most - note.count("\n")  # titles of a row at one height
            law_panels.panel_note(axes, "\n" * missing + note, 30 if len(contexts) > 2 else 50)
            if not i:
                law_panels.title_above_note(axes, f"context {style.tokens(context)}")
        law_panels.label_row(panels[i, -1], f"{attention} attention")
    for axes in panels[-1]:
        axes.set_xlabel("N (parameters)")
    for axes in panels[:, 0]:
        axes.set_ylabel("D (tokens)")
    bar = figure.colorbar(
        scale, ax=panels, location="bottom", shrink=0.5, aspect=40, ticks=MaxNLocator(4),
        extend="both" if len(residuals) else "neither", format="%g",
    )  # fmt: skip
    bar.set_label(f"Measured {'- fitted ' if len(residuals) else ''}loss (nats per token)")
    law_panels.footnote(figure, drawn.values())
    return figure


def _scale_residuals(residuals: NDArray) -> ScalarMappable:
    far = max(float(np.quantile(residuals, 0.95)), 1e-4)
    return ScalarMappable(TwoSlopeNorm(0, -far, far), "RdBu_r")


def _scale_losses(groups: Iterable[Group]) -> ScalarMappable:
    losses = np.concatenate([group.column("loss") for group in groups])
    return ScalarMappable(Normalize(losses.min(), losses.max()), "viridis_r")


def _draw_points(axes: Axes, group: Group, law: LossSurface, scale: ScalarMappable) -> None:
    N, D, seed = (group.column(name) for name in ("params", "tokens", "seed"))
    seeds = np.unique(seed)
    at = N * APART ** (np.searchsorted(seeds, seed) - (len(seeds) - 1) / 2)
    look = {"s": 16, "linewidth": 0.5, "edgecolor": "black", "zorder": 4}
    colour = np.array(law.residuals) if law.residuals else group.column("loss")
    hollow = isinstance(scale.norm, TwoSlopeNorm) and not law.residuals
    axes.scatter(at, D, facecolor="none" if hollow else scale.to_rgba(colour), **look)
    style.count_scale(axes)
    axes.set_yscale("log")
    axes.margins(0.12)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=[1] if high > 100 * low else [1, 3]))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_surface(axes: Axes, group: Group, law: LossSurface) -> None:
    """Lines of equal loss, and the best size for each compute that the points reach."""
    N, D = group.column("params"), group.column("tokens")
    n, d = (np.geomspace(v.min() / 1.5, v.max() * 1.5, 60) for v in (N, D))
    loss = law.loss(*np.meshgrid(n, d))
    inside = law.loss(N, D)
    levels = MaxNLocator(9).tick_values(inside.min(), inside.max())
    lines = axes.contour(
        n, d, loss, levels=levels, colors="0.6", linewidths=0.8,
        linestyles="-" if law.intervals else "--", zorder=2,
    )  # fmt: skip
    sizes = np.unique(N)
    between = np.sqrt(sizes[0] * sizes[1])  # where labels cover no point
    along = law.loss(between, d)
    places = [
        (between, np.interp(-level, -along, d)) for level in levels if along[-1] < level < along[0]
    ]
    axes.clabel(
        lines, fontsize=6, inline_spacing=1, colors="0.25", manual=places,
        fmt=lambda value: f"{value:g}",
    )  # fmt: skip
    if law.intervals:
        compute = np.geomspace((N * D).min(), (N * D).max(), 60)
        sizes = np.geomspace(N.min() / 2, N.max() * 2, 3000)
        best = sizes[law.loss(sizes, compute[:, None] / sizes).argmin(axis=1)]
        seen = (best > N.min()) & (best < N.max())
        axes.plot(best[seen], (compute / best)[seen], color="black", linewidth=1.3, zorder=3)


def _describe(group: Group, law: LossSurface) -> str:
    """The exponent or the reason why there is none, and the verdicts on forecasts."""
    if not law.intervals:
        return REASONS[law.status]
    lines = [f"a = {law.values['a']:.2f} ({law_panels.format_interval(law.intervals['a'])})"]
    if law.status == "interaction":
        lines[0] += f", g = {law.values['g']:.2f}"
    for by in get_args(holdout.By):
        status = holdout.fit_group(group, by).status.replace("_", " ")
        lines.append(f"forecast by {by}: {status}")
    return "\n".join(lines)
