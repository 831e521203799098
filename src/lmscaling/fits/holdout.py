"""Forecast of the loss surface: the largest size or compute is left out and predicted.

The residuals of a fit through all points do not show how well it extrapolates. A forecast passes if
every place that was left out lies within its prediction interval, all of them together with 95 %
(Bonferroni), and its error is smaller than that of two simple baselines: a plane, ``ln L`` linear
in ``ln N`` and ``ln D``, and the nearest place that was kept. Baselines alone are no test of a law:
nearly every curve that falls beats them.

A form that is wrong in ``N`` or ``D`` alone follows the points and misses beyond them. What it
missed in a forecast is therefore a standard error of its predictions beyond the points, too, and
grows with the distance on a logarithmic scale. Without a forecast of the largest compute such a
prediction has no interval, and after a forecast that missed nothing of the surface has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as t_distribution

from lmscaling.fits import inference, loss_surface
from lmscaling.fits.inference import Estimate
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

STATUSES = {
    "passed": "all places within their prediction intervals, both baselines beaten",
    "missed": "some places outside their prediction intervals",
    "baseline": "within the intervals, but no better than a baseline",
    "no_surface": "the other points determine no surface with intervals",
}

By = Literal["size", "compute"]
FACTOR = 4
"""The largest compute that the fit knows is at most this fraction of the largest."""
SAME = 1.1
"""Ratio of tokens up to which points of several seeds are one place."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What was left out at one size and number of tokens."""

    N: float
    D: float
    seeds: int
    loss: float
    """Median over seeds, nats per token."""
    predicted: float
    interval: Interval
    """Of that median."""

    @property
    def error(self) -> float:
        """Measured minus predicted loss."""
        return self.loss - self.predicted


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Predictions for what was left out, from the rest."""

    formula: ClassVar[str] = "error = measured - predicted loss, nats"
    source: ClassVar[str] = (
        "Choshen et al. 2024, arXiv:2410.11840, for judging laws by what is held out"
    )
    status: str
    """A key of ``STATUSES``."""
    by: By
    beyond: float
    """Sizes, or FLOPs, from here on were left out."""
    ends: tuple[float, float]
    """The largest size, or FLOPs, that was kept, and of all."""
    surface: LossSurface = field(repr=False)
    """Fitted to the rest."""
    places: tuple[Place, ...] = ()
    baselines: tuple[float, float] | None = None
    """Root-mean-square errors of the plane and of the nearest place, nats."""

    @property
    def rms(self) -> float | None:
        """Root-mean-square error, nats; None without a prediction."""
        return float(np.sqrt(np.mean([p.error**2 for p in self.places]))) if self.places else None

    @property
    def skill(self) -> float | None:
        """1 minus the error over that of the better baseline."""
        if self.rms is None or self.baselines is None:
            return None
        return 1 - self.rms / max(min(self.baselines), 1e-12)


def fit(
    N: ArrayLike,
    D: ArrayLike,
    loss: ArrayLike,
    *,
    by: By = "size",
    trunk: Iterable | None = None,
    cell: Iterable | None = None,
    convention: str = "non_embedding",
) -> Holdout:
    """Predict the losses of the largest ``N``, or of compute ``6 N D`` above a quarter of the
    largest; other arguments as for ``loss_surface.fit``."""
    N, D, loss = (np.asarray(values, dtype=float) for values in (N, D, loss))
    run = codes(range(len(loss)) if trunk is None else trunk)
    cells = run if cell is None else codes(cell)
    known, beyond = split(N, D, by)
    spent = N if by == "size" else 6 * N * D
    ends = float(spent[known].max(initial=0.0)), float(spent.max())
    surface = loss_surface.fit(
        *(values[known] for values in (N, D, loss)),
        trunk=run[known],
        cell=cells[known],
        convention=convention,
    )
    blank = Holdout(status="no_surface", by=by, beyond=beyond, ends=ends, surface=surface)
    if surface.estimate is None or not surface.intervals:
        return blank
    members = [np.flatnonzero(~known)[part] for part in places(cells[~known], D[~known])]
    at_N, at_D, seen = (
        np.array([np.median(values[part]) for part in members]) for values in (N, D, loss)
    )
    seeds = np.array([len(part) for part in members])
    x, z = np.log(at_N) - surface.estimate.design.centre[0], np.log(at_D)
    z = z - surface.estimate.design.centre[1]
    said, error = predict(surface.estimate, x, z, seeds)
    # Student's t for all places together.
    reach = t_distribution.isf((1 - LEVEL) / 2 / len(seen), surface.estimate.degrees)
    half = float(reach) * error
    inside = bool((np.abs(seen - said) <= half).all())
    errors = baselines(N[known], D[known], loss[known], at_N, at_D, seen)
    rms = np.sqrt(np.mean((seen - said) ** 2))
    found = [
        Place(
            N=float(n), D=float(d), seeds=int(k), loss=float(y), predicted=float(f),
            interval=Interval(float(f - reach), float(f + reach)),
        )
        for n, d, k, y, f, reach in zip(at_N, at_D, seeds, seen, said, half, strict=True)
    ]  # fmt: skip
    beaten = bool(rms < min(errors))
    return Holdout(
        status="missed" if not inside else "passed" if beaten else "baseline",
        by=by,
        beyond=beyond,
        ends=ends,
        surface=surface,
        places=tuple(found),
        baselines=errors,
    )


def fit_group(points: Group, by: By) -> Holdout:
    """The forecast of one attention at one context."""
    N, D, loss = (points.column(name) for name in ("params", "tokens", "loss"))
    if points.schedule == "unknown":
        surface = loss_surface.fit_group(points)
        _, beyond = split(N, D, by)
        return Holdout(
            status="no_surface", by=by, beyond=beyond, ends=(beyond, beyond), surface=surface
        )
    return fit(N, D, loss, by=by, trunk=points.trunks, cell=points.cells)


def form_error(held: Iterable[Holdout], N: float, D: float) -> float | None:
    """Standard error of the form, nats, of a loss predicted at ``N`` and ``D`` beyond the points;
    None if the largest compute was not predicted."""
    found = {}
    for one in held:
        if one.rms is not None:
            kept, last = one.ends
            farther = np.log((N if one.by == "size" else 6 * N * D) / last) / np.log(last / kept)
            found[one.by] = one.rms * max(float(farther), 1.0)
    return max(found.values()) if "compute" in found else None


def split(N: NDArray, D: NDArray, by: By) -> tuple[NDArray[np.bool_], float]:
    """Which points are kept, and the size or compute from which on they are not."""
    if by == "size":
        return N.max() > N, float(N.max())
    compute = 6 * N * D
    beyond = float(compute.max() / FACTOR)
    return compute <= beyond * (1 + 1e-9), beyond


def predict(estimate: Estimate, x: NDArray, z: NDArray, seeds: NDArray) -> tuple[NDArray, NDArray]:
    """Predicted losses ``[n]`` and standard errors of a median of runs around them. Noise is as for
    normal losses, with the larger variance of a median."""
    said, error = estimate.predict(x, z)
    found, points = estimate.fit, int(estimate.design.size_G.max())
    one = inference.normal_variance(found.nu, points) * (found.noise.sigma2 + found.noise.tau2)
    ratio = np.where(seeds < 3, 1, np.pi / 2 * seeds / (seeds + 0.6))
    return said, np.sqrt(error**2 + one * ratio / seeds)


def baselines(
    N: NDArray, D: NDArray, loss: NDArray, at_N: NDArray, at_D: NDArray, seen: NDArray
) -> tuple[float, float]:
    """Root-mean-square errors of the plane and of the nearest place."""

    def columns(n: NDArray, d: NDArray) -> NDArray:
        return np.stack([np.ones(len(n)), np.log(n), np.log(d)], axis=1)

    plane = columns(at_N, at_D) @ np.linalg.lstsq(columns(N, D), np.log(loss), rcond=None)[0]
    apart = np.log(at_N[:, None] / N) ** 2 + np.log(at_D[:, None] / D) ** 2
    close = apart <= apart.min(axis=1, keepdims=True) + 1e-3
    near = close @ loss / close.sum(axis=1)
    of_plane, of_near = (float(np.sqrt(((seen - x) ** 2).mean())) for x in (np.exp(plane), near))
    return of_plane, of_near


def places(cell: NDArray, D: NDArray) -> list[NDArray]:
    """Points of several seeds of a cell with nearly equal tokens, together."""
    order = np.lexsort((D, cell))
    new = (np.diff(cell[order]) != 0) | (D[order][1:] > SAME * D[order][:-1])
    return np.split(order, np.flatnonzero(new) + 1)
