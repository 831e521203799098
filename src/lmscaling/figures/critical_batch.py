"""Critical batch over training. Lines are the simple noise scale of the gradient (McCandlish et al.
2018, arXiv:1812.06162, appendix A.1), estimated at every tenth step from the norms of the
gradients of a micro-batch and of the whole step: the ratio of averages over steps within a
factor of 2 and over seeds, with its 95 % interval (Fieller). A triangle is the lower end of an
interval without an upper one. The dotted line is the batch of a step. Where the scale is far
above it, a larger batch would need fewer steps and barely more tokens; where it is far below,
a smaller batch would need fewer tokens and barely more steps. Runs whose steps are a single
micro-batch have no estimate; in text that is not shuffled, micro-batches are neighbouring documents
and the scale is too high.
"""

from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame
from scipy.stats import t

from lmscaling.figures.shared import style
from lmscaling.fits import fieller
from lmscaling.fits.uncertainty import LEVEL, Interval

SECTION = "learning"

QUERY = """
    SELECT
        context, attention, size, params, update_tokens, exp(avg(ln("update"))) AS updates,
        count(*) AS samples, avg(noise) AS noise, avg(signal) AS signal,
        var_samp(noise) AS noise_variance, var_samp(signal) AS signal_variance,
        covar_samp(noise, signal) AS covariance
    FROM gradient_noise
    WHERE run IN (SELECT run FROM final)
    GROUP BY context, attention, size, params, update_tokens, floor(log2("update"))
    HAVING count(*) >= 8
    ORDER BY ALL
"""

MOST_COLUMNS = 3
"""Panels side by side."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts, shades = sorted(rows.context.unique()), style.shades_of(rows)
    figure, panels = style.panels(len(contexts), MOST_COLUMNS, 2.2)
    for context, axes in zip(contexts, panels, strict=True):
        part = rows.loc[rows.context == context]
        for (attention, size), colour in shades.items():
            cell = part[(part.attention == attention) & (part["size"] == size)]
            _draw_cell(axes, cell, colour, style.dashes(attention))
        for tokens in part.update_tokens.unique():
            axes.axhline(tokens, color="0.4", linewidth=1.0, linestyle=":")
        axes.set_title(f"context {context:,}")
        axes.set(xscale="log", yscale="log")
    style.label_outer(panels, "Steps", "Noise scale (tokens)")
    style.legend_of(figure, shades)
    panels[0].legend(
        handles=[
            Line2D([], [], color="0.4", linestyle=":", label="batch"),
            Line2D([], [], color="0.4", linestyle="", marker="^", label="at least"),
        ],
        fontsize="small",
    )
    return figure


def _draw_cell(axes: Axes, rows: DataFrame, colour: str, dashes: object) -> None:
    made: list[Any] = list(rows.itertuples())
    found = [(row.updates, row.noise / row.signal, scale(row)) for row in made]
    known = [(at, ratio, i) for at, ratio, i in found if i.high is not None]
    if known:
        x, y, ends = zip(*known, strict=True)
        axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.2, marker=".", markersize=4)
        low, high = [max(i.low, min(y) / 100) for i in ends], [i.high for i in ends]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if len(x) == 1:  # a band has no width
            axes.vlines(x, low, high, color=colour, linewidth=1.0)
    at_least = [(at, i.low) for at, _, i in found if i.high is None and i.low]
    if at_least:
        axes.scatter(*zip(*at_least, strict=True), marker="^", color=colour, s=18)


def scale(row: Any) -> Interval:
    """Interval of the noise scale from the moments of a row of ``QUERY``, tokens."""
    moments = fieller.Moments(
        numerator=row.noise,
        denominator=row.signal,
        numerator_variance=row.noise_variance / row.samples,
        denominator_variance=row.signal_variance / row.samples,
        covariance=row.covariance / row.samples,
    )
    return fieller.of_positive(moments, float(t.isf((1 - LEVEL) / 2, row.samples - 1)))
