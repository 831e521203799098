"""Scaling law of the loss over compute. Points are measured losses; a line is the fitted L(N, D) at
the trained size that is best for its compute, with a 95 % interval as a band, and its label is the
compute that the attention needs for the lowest loss that all reach, as a multiple of the
baseline's. Compute is counted in FLOPs of training, attention and head included; between sizes
FLOPs per token are interpolated. A dashed line without a band is a law whose parameters the runs do
not determine; an attention whose law is refused has points only. The interval of a multiple takes
the errors of both laws as independent, so that of paired seeds would be narrower. One context is
drawn, the one with the most laws.
"""

from typing import NamedTuple

import numpy as np
from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame, notna
from scipy.stats import t as t_distribution

from lmscaling.figures.shared import law_panels, style
from lmscaling.fits import loss_surface, points
from lmscaling.fits.uncertainty import LEVEL

SECTION = "answer"

QUERY = f"""
    WITH laws AS (
        SELECT source, schedule, context, count(a_opt_low) AS known, count(drawn) AS drawn
        FROM surfaces GROUP BY ALL HAVING drawn > 0
    ),
    best AS (
        FROM laws ORDER BY known DESC, drawn DESC, schedule = 'decayed' DESC, context DESC LIMIT 1
    )
    SELECT p.*, (SELECT any_value(baseline) FROM known WHERE source = p.source) AS baseline
    FROM ({points.QUERY}) p JOIN best USING (source, schedule, context)
    WHERE p.flops IS NOT NULL
    ORDER BY p.attention DESC, p.params, p.seed, p.share
"""


class Path(NamedTuple):
    """The law of an attention along its best sizes."""

    flops: NDArray
    loss: NDArray
    error: NDArray
    """Standard errors, nats."""
    quantile: float
    """Student's t of a 95 % interval; NaN where the runs do not determine the law."""

    def reach(self, loss: float) -> tuple[float, float]:
        """ln of the compute that reaches a loss, and its standard error."""
        x = np.log(self.flops)
        at, error = (np.interp(-loss, -self.loss, of) for of in (x, self.error))
        slope = np.interp(-loss, -self.loss, np.gradient(self.loss, x))
        return float(at), float(abs(error / slope))


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    known = points.read(rows[list(points.Point._fields)].itertuples(index=False, name=None))
    groups = points.groups(known, "attention", "context")
    surfaces = law_panels.fitted(db, "surfaces", rows, "attention", "context")
    paths = {
        law["attention"]: _path_of(
            groups[law["source"], law["schedule"], law["attention"], law["context"]],
            notna(law["a_opt_low"]),
        )
        for law in surfaces.loc[surfaces.drawn.notna()].to_dict("records")
    }
    figure, ((axes,),) = style.grid(1, 1, 3.1, top=0)
    ends, base = [], rows.baseline.iloc[0]
    level = max(each.loss.min() for each in paths.values())
    for name, colour in style.palette(rows.attention).items():
        own = rows.loc[rows.attention == name]
        axes.scatter(own.flops, own.loss, s=9, color=colour, marker=style.marker(name), alpha=0.55)
        if name not in paths:
            last = own.loc[own.loss.idxmin()]
            ends.append((last.flops, last.loss, f"{name}: no law", colour))
            continue
        own_path = paths[name]
        _draw_path(axes, own_path, colour)
        label = (
            name
            if name == base or base not in paths
            else f"{name}: {_said(*multiple(own_path, paths[base], level))}"
        )
        ends.append((own_path.flops[-1], own_path.loss[-1], label, colour))
    axes.set_xscale("log")
    axes.set_xlabel("Compute (FLOPs)")
    axes.set_ylabel(style.loss_label(rows))
    title = f"context {style.tokens(rows.context.iloc[0])}"
    axes.set_title(f"{title}; compute for equal loss as a multiple of that of {base}", loc="left")
    style.label_ends(axes, ends)
    return figure


def _path_of(group: points.Group, is_known: bool) -> Path:
    N, D, flops = (group.column(name) for name in ("params", "tokens", "flops"))
    return path(loss_surface.fit_group(group), N, D, flops, is_known)


def path(
    law: loss_surface.LossSurface, N: NDArray, D: NDArray, flops: NDArray, is_known: bool = True
) -> Path:
    """The least loss that the law has at each compute among the trained sizes."""
    sizes = np.unique(N)
    cost = [float(np.median((flops / D)[n == N])) for n in sizes]
    n = np.geomspace(sizes[0], sizes[-1], 200)
    per_token = np.exp(np.interp(np.log(n), np.log(sizes), np.log(cost)))
    compute = np.geomspace(flops.min(), flops.max(), 80)
    d = compute[:, None] / per_token
    loss = law.loss(np.broadcast_to(n, d.shape), d)
    best = loss.argmin(axis=1)
    assert law.estimate is not None
    quantile = t_distribution.ppf((1 + LEVEL) / 2, law.estimate.degrees) if is_known else np.nan
    at = np.arange(len(compute)), best
    return Path(compute, loss[at], law.errors(n[best], d[at]), float(quantile))


def _draw_path(axes: Axes, drawn: Path, colour: str) -> None:
    stroke = "-" if drawn.quantile == drawn.quantile else "--"
    axes.plot(drawn.flops, drawn.loss, color=colour, linestyle=stroke, linewidth=1.5)
    reach = drawn.quantile * drawn.error
    axes.fill_between(
        drawn.flops, drawn.loss - reach, drawn.loss + reach, color=colour, alpha=0.2, linewidth=0
    )


def multiple(own: Path, base: Path, loss: float) -> tuple[float, float]:
    """ln of the compute for a loss over that of the baseline, and half of its 95 % interval, NaN
    where a law is not determined."""
    (at, error), (other, other_error) = own.reach(loss), base.reach(loss)
    return at - other, float(np.hypot(own.quantile * error, base.quantile * other_error))


def _said(value: float, half: float) -> str:
    """``0.76× (0.70 to 0.83)``."""
    low, middle, high = (f"{np.exp(value + step):.2f}" for step in (-half, 0, half))
    return f"{middle}\N{MULTIPLICATION SIGN}" + ("" if np.isnan(half) else f" ({low} to {high})")
