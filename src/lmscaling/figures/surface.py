"""Loss surface over size and data. L(N, D) = E + A / N^alpha + B / D^beta, fitted separately to
each attention (rows) and context (columns, at most four). Lines have equal fitted loss (nats per
token); they are dashed where the runs do not support exponents. Points are measured, coloured by
measured minus fitted loss, or by their loss if no panel has a surface; seeds are shifted sideways,
and points of a panel without a surface are hollow beside others. The
black line is the best size for each compute 6 N D within the range of the points. The note above a
panel has the exponent a of that size with its 95 % interval, or the reason why there is none, and
the verdict on forecasts of the largest size and the largest compute. Attentions of one size are
left out. N counts parameters without embeddings, D training tokens.
"""

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray
from pandas import DataFrame, Series, notna

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import loss_surface
from lmscaling.fits.rows import Row, interval_of
from lmscaling.formatting import short

SECTION = "laws"
QUERY = law_panels.SIZED

REASONS = loss_surface.STATUSES | {
    "not_unique": "fit not unique",
    "too_few": "too few points",
    "missed": "no intervals: a forecast missed",
    "few_runs": "too few seeds or sizes for exponents",
    "refused": "refused: no form describes the losses",
    "schedule": "schedule unknown: no surface",
}
"""Short explanations for a panel."""
APART = 1.05
"""Ratio by which the seeds of a size are shifted."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    every = law_panels.fullest(rows, "attention", "context")
    attentions, contexts = list(style.palette(rows.attention)), law_panels.widest_contexts(every)
    shown = every.loc[every.context.isin(contexts)]
    surfaces = law_panels.fitted(db, "surfaces", shown, "attention", "context").to_dict("records")
    laws = {(law["attention"], law["context"]): law for law in surfaces}
    drawn = dict(list(shown.groupby(["attention", "context"])))
    left = {key: _residuals(drawn[key], law) for key, law in laws.items()}
    figure, panels = style.grid(len(attentions), len(contexts), 2.6, sharex=True, sharey=True)
    residuals = np.abs(np.concatenate([*left.values(), []]))
    scale = _scale_residuals(residuals) if len(residuals) else _scale_losses(shown.loss)
    held_out = law_panels.fitted(db, "held_out", shown, "attention", "context")
    notes = {key: _describe(law, held_out) for key, law in laws.items()}
    first = [text.count("\n") for (a, _), text in notes.items() if a == attentions[0]]
    most = max(first, default=0)
    for i, attention in enumerate(attentions):
        for j, context in enumerate(contexts):
            key, axes = (attention, context), panels[i, j]
            if key not in drawn:
                axes.set_axis_off()
                continue
            _draw_points(axes, drawn[key], left[key], scale)
            if isinstance(laws[key]["drawn"], np.ndarray):
                _draw_surface(axes, drawn[key], laws[key])
            missing = 0 if i else most - notes[key].count("\n")  # titles of a row at one height
            width = 30 if len(contexts) > 2 else 50
            law_panels.panel_note(axes, "\n" * missing + notes[key], width)
    tops = [f"context {style.tokens(context)}" for context in contexts]
    sides = [f"{attention} attention" for attention in attentions]
    law_panels.label_grid(panels, tops, sides, "N (parameters)", "D (tokens)")
    bar = figure.colorbar(
        scale, ax=panels, location="bottom", shrink=0.5, aspect=40, ticks=MaxNLocator(4),
        extend="both" if len(residuals) else "neither", format="%g",
    )  # fmt: skip
    bar.set_label(f"Measured {'- fitted ' if len(residuals) else ''}loss (nats per token)")
    law_panels.footnote(figure, shown)
    return figure


def _loss(law: Row, N: ArrayLike, D: ArrayLike) -> NDArray:
    """The drawn curve, nats per token."""
    E, A, B, alpha, beta, g = law["drawn"]
    of_N, of_D = A * np.asarray(N, dtype=float) ** -alpha, B * np.asarray(D, dtype=float) ** -beta
    return E + (of_N ** (1 / g) + of_D ** (1 / g)) ** g


def _residuals(points: DataFrame, law: Row) -> NDArray:
    """Measured minus fitted losses; none without a curve."""
    if not isinstance(law["drawn"], np.ndarray):
        return np.array([])
    return points.loss.to_numpy() - _loss(law, points.params, points.tokens)


def _scale_residuals(residuals: NDArray) -> ScalarMappable:
    far = max(float(np.quantile(residuals, 0.95)), 1e-4)
    return ScalarMappable(TwoSlopeNorm(0, -far, far), "RdBu_r")


def _scale_losses(losses: Series) -> ScalarMappable:
    return ScalarMappable(Normalize(losses.min(), losses.max()), "viridis_r")


def _draw_points(axes: Axes, points: DataFrame, left: NDArray, scale: ScalarMappable) -> None:
    seeds = np.unique(points.seed)
    at = points.params * APART ** (np.searchsorted(seeds, points.seed) - (len(seeds) - 1) / 2)
    look = {"s": 16, "linewidth": 0.5, "edgecolor": "black", "zorder": 4}
    colour = left if len(left) else points.loss.to_numpy()
    hollow = isinstance(scale.norm, TwoSlopeNorm) and not len(left)
    axes.scatter(at, points.tokens, facecolor="none" if hollow else scale.to_rgba(colour), **look)
    style.count_scale(axes)
    axes.set_yscale("log")
    axes.margins(0.12)
    low, high = axes.get_ylim()
    style.log_scale(axes, "y", LogLocator(subs=[1] if high > 100 * low else [1, 3]), short)


def _draw_surface(axes: Axes, points: DataFrame, law: Row) -> None:
    """Lines of equal loss, and the best size for each compute that the points reach."""
    N, D = points.params.to_numpy(float), points.tokens.to_numpy(float)
    is_known = notna(law["a_opt_low"])
    n, d = (np.geomspace(v.min() / 1.5, v.max() * 1.5, 60) for v in (N, D))
    loss = _loss(law, *np.meshgrid(n, d))
    inside = _loss(law, N, D)
    levels = MaxNLocator(9).tick_values(inside.min(), inside.max())
    lines = axes.contour(
        n, d, loss, levels=levels, colors="0.6", linewidths=0.8,
        linestyles="-" if is_known else "--", zorder=2,
    )  # fmt: skip
    sizes = np.unique(N)
    between = np.sqrt(sizes[0] * sizes[1])  # where labels cover no point
    along = _loss(law, between, d)
    places = [
        (between, np.interp(-level, -along, d)) for level in levels if along[-1] < level < along[0]
    ]
    axes.clabel(
        lines, fontsize=6, inline_spacing=1, colors="0.25", manual=places,
        fmt=lambda value: f"{value:g}",
    )  # fmt: skip
    if is_known:
        compute = np.geomspace((N * D).min(), (N * D).max(), 60)
        sizes = np.geomspace(N.min() / 2, N.max() * 2, 3000)
        best = sizes[_loss(law, sizes, compute[:, None] / sizes).argmin(axis=1)]
        seen = (best > N.min()) & (best < N.max())
        axes.plot(best[seen], (compute / best)[seen], color="black", linewidth=1.3, zorder=3)


def _describe(law: Row, held_out: DataFrame) -> str:
    """The exponent or the reason why there is none, and the verdicts on forecasts."""
    interval = interval_of(law, "a_opt")
    if interval is None:
        return REASONS[law["status"]]
    lines = [f"a = {law['a_opt']:.2f} ({law_panels.format_interval(interval)})"]
    if notna(law["g"]):
        lines[0] += f", g = {law['g']:.2f}"
    own = (held_out.attention == law["attention"]) & (held_out.context == law["context"])
    for by, status in held_out.loc[own, ["by", "status"]].itertuples(index=False):
        lines.append(f"forecast by {by}: {status.replace('_', ' ')}")
    return "\n".join(lines)
