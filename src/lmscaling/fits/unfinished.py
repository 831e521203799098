"""Final losses of runs that have not finished, predicted from those that have.

The logarithm of a loss is a line in ln N and ln T with an intercept for each attention, a smooth
deviation that all attentions share, another of each attention alone, and the noise of the run. Runs
of the same size, context and seed read the same text and share a part of their noise. Deviations
are Gaussian processes (Matern, nu = 5/2). How large and smooth they are, and how much is shared, is
not known: ``GRID`` has the possible values, and predictions are averaged with the restricted
likelihood of each as its weight. The line has a flat prior and the scale that of Jeffreys, so that
a prediction has a t distribution (Rasmussen and Williams 2006, sections 2.7 and 5.4.1), here with
at most ``MOST_DEGREES`` degrees of freedom, because cells differ in their noise.

Nothing is predicted beyond the sizes and contexts of the finished runs of an attention: nothing
bounds there how far a smooth surface leaves its line, and 95 % intervals held 38 to 84 % of
simulated losses of larger models where two sizes had finished (docs/statistics.md).
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.stats import norm, t

from lmscaling.fits.noise import FEWEST_DEGREES, MOST_DEGREES
from lmscaling.records.forecast import Predicted

SIGNALS = (0.0, 0.3, 3.0, 30.0, 300.0)
"""Variance of the deviations, in variances of a run."""
LENGTHS = tuple(product((2.0, 6.0), repeat=2))
"""Lengths over which they change, in e-folds of size and of context."""
OWN = (0.05, 0.5, 0.9)
"""Share of their variance that is of one attention alone."""
PAIRED = (0.0, 0.7)
"""Share of the variance of a run that runs of the same size, context and seed have in common."""
GRID = tuple(
    (signal, lengths, own, paired)
    for signal, lengths, own, paired in product(SIGNALS, LENGTHS, OWN, PAIRED)
    if signal or (lengths, own) == (LENGTHS[0], OWN[0])
)
MOST_RUNS = 200
"""Finished runs that are used at once. Of more, each attention is predicted from its own and from
the first of the others: the cost grows with the cube."""


QUERY = """
    SELECT
        run, s.name, s.attention, s.size, (n_layer * d_model ** 2)::DOUBLE AS units, s.context,
        s.seed, s.lr_scale, s.budget, s.update_tokens, s.status, v.val_loss,
        coalesce(s.params, max(s.params) OVER of_size, 12 * units)::DOUBLE AS params
    FROM status s LEFT JOIN (SELECT run, val_loss FROM last_validation) v USING (run)
    WHERE s.status IN ('done', 'pending', 'running', 'interrupted', 'held')
    WINDOW of_size AS (PARTITION BY s.size)
    ORDER BY s.attention DESC, units, s.context, s.seed, s.lr_scale
"""
"""Runs that are done, and those that are not. Parameters of a size that no run has are those of the
matrices of its blocks."""


class Run(NamedTuple):
    """A run, finished or not."""

    attention: str
    size: str
    params: float
    """Any measure of the size that is proportional to its parameters."""
    context: float
    """Tokens."""
    seed: int
    value: float = np.nan
    """Final loss in nats; NaN if the run has not finished."""
    group: Hashable = ()
    """What else runs may differ in, such as their budget; only equal ones are compared."""


class Interval(NamedTuple):
    """Ends of an interval, in the unit of the quantity."""

    low: float
    high: float


def interval(predicted: Predicted, level: float) -> Interval | None:
    """The central interval of a prediction; None without a prediction."""
    if predicted.median is None or predicted.sd is None:
        return None
    tail = (1 - level) / 2
    steps = norm.isf(tail) if predicted.degrees is None else t.isf(tail, predicted.degrees)
    factor = float(np.exp(steps * predicted.sd))
    return Interval(predicted.median / factor, predicted.median * factor)


def predict(finished: Sequence[Run], wanted: Sequence[Run]) -> list[Predicted]:
    """The prediction of each wanted run, or the reason why there is none."""
    finished = [run for run in finished if np.isfinite(run.value) and run.value > 0]
    found: dict[int, Predicted] = {}
    for group, attention in dict.fromkeys((run.group, run.attention) for run in wanted):
        places = [
            i for i, run in enumerate(wanted) if (run.group, run.attention) == (group, attention)
        ]
        used = [run for run in finished if run.group == group]
        if len(used) > MOST_RUNS:
            used = sorted(used, key=lambda run, own=attention: run.attention != own)[:MOST_RUNS]
        known = {i: Predicted(reason=why) for i in places if (why := _why_not(wanted[i], used))}
        left = [i for i in places if i not in known]
        found |= known | dict(zip(left, _predict(used, [wanted[i] for i in left]), strict=True))
    return [found[i] for i in range(len(wanted))]


def read(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], Predicted]]:
    """The unfinished runs among the rows of ``QUERY``, with their predicted losses."""
    runs = [
        Run(row["attention"], row["size"], row["units"], row["context"], row["seed"],
            np.nan if row["val_loss"] is None else row["val_loss"],
            (row["lr_scale"], row["budget"], row["update_tokens"]))
        for row in rows
    ]  # fmt: skip
    is_done = [row["status"] == "done" for row in rows]
    done = [run for run, done in zip(runs, is_done, strict=True) if done]
    left = [i for i, done in enumerate(is_done) if not done]
    return [(rows[i], found) for i, found in zip(left, predict(done, [runs[i] for i in left]),
                                                 strict=True)]  # fmt: skip


def _why_not(run: Run, finished: Sequence[Run]) -> str:
    """Why a run cannot be predicted from those that have finished; empty if it can."""
    own = [other for other in finished if other.attention == run.attention]
    if not own:
        return f"no run of {run.attention} has finished"
    for name, unit in (("size", "params"), ("context", "context")):
        values = [getattr(other, unit) for other in own]
        if not min(values) <= getattr(run, unit) <= max(values):
            return f"its {name} is beyond those of the finished runs of {run.attention}"
    columns = _columns(finished, finished)
    if len(finished) - np.linalg.matrix_rank(columns) < FEWEST_DEGREES:
        return f"only {len(finished)} runs have finished"
    return ""


def _columns(runs: Sequence[Run], finished: Sequence[Run]) -> NDArray:
    """``[n, K]``: ln N, ln T, and an indicator of each attention."""
    centre = _logs(finished).mean(axis=0)
    names = list(dict.fromkeys(run.attention for run in finished))
    own = [[float(run.attention == name) for name in names] for run in runs]
    return np.column_stack([_logs(runs) - centre, own])


def _logs(runs: Sequence[Run]) -> NDArray:
    return np.log([(run.params, run.context) for run in runs])


def _predict(finished: Sequence[Run], wanted: Sequence[Run]) -> list[Predicted]:
    if not wanted:
        return []
    n = len(finished)
    y_n = np.log([run.value for run in finished])
    columns = _columns(finished, finished)
    # Sizes or contexts that do not vary have no slope, and need none.
    _, scales, axes = np.linalg.svd(columns, full_matrices=False)
    basis = axes[scales > 1e-9 * scales[0]].T
    x_nK, x_mK = columns @ basis, _columns(wanted, finished) @ basis
    degrees = n - x_nK.shape[1]
    parts = []
    for k_nn, k_nm, k_m in _kernels(finished, wanted):
        found = _posterior(k_nn, k_nm, k_m, x_nK, x_mK, y_n)
        if found:
            parts.append(found)
    log_weight = np.array([part[0] for part in parts])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    means, variances = (np.array([part[i] for part in parts]) for i in (1, 2))
    mean = weight @ means
    scale = np.sqrt(weight @ (variances + (means - mean) ** 2))
    return [
        Predicted(median=float(np.exp(m)), sd=float(s), degrees=min(float(degrees), MOST_DEGREES))
        for m, s in zip(mean, scale, strict=True)
    ]


def _kernels(
    finished: Sequence[Run], wanted: Sequence[Run]
) -> Iterator[tuple[NDArray, NDArray, float]]:
    """For each point of ``GRID`` the covariance of finished runs, of finished with wanted ones, and
    the variance of a wanted one, in variances of a run."""
    n, runs = len(finished), [*finished, *wanted]
    logs = _logs(runs)
    apart = np.abs(logs[:n, None] - logs[None])  # [n, n + m, 2]
    same = np.array([[a.attention == b.attention for b in runs] for a in finished], dtype=float)
    text = [(run.size, run.context, run.seed) for run in runs]
    read = np.array([[a == b for b in text] for a in text[:n]], dtype=float)
    own_noise = np.eye(n, len(runs))
    smooth = {
        lengths: _matern(apart[..., 0] / lengths[0]) * _matern(apart[..., 1] / lengths[1])
        for lengths in LENGTHS
    }
    for signal, lengths, own, paired in GRID:
        deviation = signal * smooth[lengths] * (1 - own + own * same)
        covariance = deviation + paired * read + (1 - paired) * own_noise
        yield covariance[:, :n], covariance[:, n:], signal + 1


def _matern(distance: NDArray) -> NDArray:
    r = np.sqrt(5) * distance
    return (1 + r + r**2 / 3) * np.exp(-r)


def _posterior(
    k_nn: NDArray, k_nm: NDArray, k_m: float, x_nK: NDArray, x_mK: NDArray, y_n: NDArray
) -> tuple[float, NDArray, NDArray] | None:
    """Logarithm of the restricted likelihood, means and squared scales of wanted runs; None if the
    losses do not differ at all."""
    try:
        root = cholesky(k_nn, lower=True)
    except LinAlgError:
        return None
    p = x_nK.shape[1]
    white = solve_triangular(root, np.column_stack([x_nK, y_n, k_nm]), lower=True)
    x, y, k = white[:, :p], white[:, p], white[:, p + 1 :]
    root_x = cholesky(x.T @ x, lower=True)
    slope = np.linalg.solve(x.T @ x, x.T @ y)
    left = y - x @ slope
    degrees = len(y) - p
    square = max(float(left @ left), np.finfo(float).eps)
    beyond = solve_triangular(root_x, (x_mK - k.T @ x).T, lower=True)
    variance = k_m - (k**2).sum(axis=0) + (beyond**2).sum(axis=0)
    determinants = np.log(np.diag(root)).sum() + np.log(np.diag(root_x)).sum()
    likelihood = -determinants - degrees / 2 * np.log(square)
    return float(likelihood), x_mK @ slope + k.T @ left, square / degrees * variance
