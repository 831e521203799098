"""Final losses of runs that have not finished, on the loss surface of their attention and context.

Nothing is predicted beyond the sizes and tokens that the surface was fitted to. A surface with
intervals (``loss_surface``) predicts a run with the noise of one run; of one from few runs there is
the value alone.
"""

import math

import numpy as np
from duckdb import DuckDBPyConnection
from scipy.stats import norm, t

from lmscaling.fits import holdout, loss_surface, points
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.uncertainty import Interval
from lmscaling.records.forecast import Predicted

QUERY = """
    SELECT
        run, name, status, attention, context, lr_scale,
        CASE WHEN schedule = 'constant' THEN schedule ELSE 'decayed' END AS schedule,
        coalesce(params, max(params) OVER of_size, 12 * n_layer * d_model ** 2)::DOUBLE AS params,
        CASE budget_unit
            WHEN 'updates' THEN budget_amount * update_tokens
            WHEN 'tokens' THEN budget_amount
            ELSE max(tokens) FILTER (status = 'done') OVER of_cell
        END AS tokens
    FROM status
    WINDOW of_size AS (PARTITION BY size),
        of_cell AS (PARTITION BY attention, size, context, lr_scale, budget)
    QUALIFY status IN ('pending', 'running', 'interrupted', 'held')
    ORDER BY attention DESC, params, context, seed, lr_scale
"""
"""Runs that have not finished. Parameters of a size of which no run has begun are those of the
matrices of its blocks; tokens of a budget in hours are those of a finished run of the cell."""

Row = dict


def predict(db: DuckDBPyConnection) -> list[tuple[Row, Predicted]]:
    """Each run of ``QUERY`` with its predicted loss, or the reason why there is none."""
    frame = db.sql(QUERY).df()
    if frame.empty:
        return []
    known = points.groups(points.read(db.sql(points.QUERY).fetchall()), "attention", "context")
    groups = {key[1:]: group for key, group in known.items() if key[0] == "measured"}
    surfaces: dict[tuple, LossSurface] = {}
    found = []
    for row in frame.to_dict("records"):
        key = row["schedule"], row["attention"], row["context"]
        if key not in groups:
            found.append((row, Predicted(reason=f"no run of {key[1]} at {key[2]:,} has finished")))
            continue
        if key not in surfaces:
            surfaces[key] = loss_surface.fit_group(groups[key], check=False)
        N, D = groups[key].column("params"), groups[key].column("tokens")
        found.append((row, _predict(surfaces[key], row, N, D)))
    return found


def _predict(surface: LossSurface, row: Row, N: np.ndarray, D: np.ndarray) -> Predicted:
    estimate = surface.estimate
    if estimate is None or surface.status == "refused":
        return Predicted(reason=f"no loss surface: {loss_surface.STATUSES[surface.status]}")
    if row["lr_scale"] != 1:
        return Predicted(reason="surfaces are those of learning rates at scale 1")
    if not math.isfinite(row["tokens"]):
        return Predicted(reason="the tokens of its hours are not known")
    for name, values in (("params", N), ("tokens", D)):
        if not 0.99 * values.min() <= row[name] <= 1.01 * values.max():
            return Predicted(reason=f"its {name} are beyond those of the surface")
    at = np.log([row["params"], row["tokens"]]) - estimate.design.centre
    one = np.ones(1)
    loss, error = holdout.predict(estimate, at[:1], at[1:], one)
    median = float(loss[0, 0])
    if not surface.intervals:
        return Predicted(median=median)
    return Predicted(median=median, sd=float(error[0, 0]) / median, degrees=float(estimate.degrees))


def interval(predicted: Predicted, level: float) -> Interval | None:
    """The central interval of a prediction; None without one."""
    if predicted.median is None or predicted.sd is None:
        return None
    tail = (1 - level) / 2
    steps = norm.isf(tail) if predicted.degrees is None else t.isf(tail, predicted.degrees)
    factor = math.exp(float(steps) * predicted.sd)
    return Interval(predicted.median / factor, predicted.median * factor)
