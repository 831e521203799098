"""Loss over time or compute of several attentions, ``L(x) = E + k x^-gamma``.

``E`` is the entropy of the text and should be the same for all attentions; with one ``E`` the
laws are told apart far better. Whether one suffices is tested by the likelihood ratio: the two
models are nested and the noise is stated, so twice the difference of log-likelihoods, here that of
chi-squared, follows the chi-squared distribution with one degree less than there are attentions
(Wilks 1938). AICc would estimate the noise from the few residuals instead. ``E`` is shared unless
that is rejected at 5 %; both answers are given.

Source of the form: Kaplan et al. 2020, arXiv:2001.08361, with the irreducible loss of Henighan et
al. 2020, arXiv:2010.14701.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from lmscaling.fits import powers, uncertainty
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import STATED, Interval, Noise, Runs

STATUSES = {
    "fitted": "a single minimum, within the stated noise",
    "misfit": "points are farther off than their noise; intervals are widened to match",
    "bound": "E or k is zero, or gamma where the search ends",
    "stopped_early": "the search ran out of steps",
    "too_few": "fewer than four points, or three different x, in some curve",
}

START = np.geomspace(0.04, 2, 9)
"""Exponents at which searches begin, the same for all curves."""
REJECT = 0.05


@dataclass(frozen=True)
class Points:
    """Endpoints of one attention."""

    x: ArrayLike
    """Hours, FLOPs or updates; positive."""
    loss: ArrayLike
    """Nats per token."""
    trunk: Iterable | None = None
    """Labels of the points that share a run."""
    cell: Iterable | None = None
    """Labels of the runs that differ in seed only, one a point."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """The law of one attention; without numbers if its points are too few."""

    formula: ClassVar[str] = "L(x) = E + k x^-gamma"
    source: ClassVar[str] = "Henighan et al. 2020, arXiv:2010.14701"
    status: str
    """A key of ``STATUSES``."""
    E: float | None = None
    """Nats per token."""
    k: float | None = None
    gamma: float | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Of ``E``, ``k`` and ``gamma``."""
    drawn: dict[str, NDArray] = field(default_factory=dict, repr=False, compare=False)
    """Parameters of the replicates, for bands around curves."""

    def loss(self, x: ArrayLike) -> NDArray:
        """What the law says elsewhere, nats per token."""
        if self.E is None or self.k is None or self.gamma is None:
            raise ValueError(f"a law of status {self.status!r} has no values")
        return self.E + self.k * np.asarray(x, dtype=float) ** -self.gamma

    def band(self, x: ArrayLike) -> list[Interval]:
        """Intervals of the law elsewhere."""
        if not self.drawn:
            raise ValueError(f"a law of status {self.status!r} has no values")
        E, k, gamma = (self.drawn[name] for name in ("E", "k", "gamma"))
        return [uncertainty.interval(E + k * at**-gamma) for at in np.ravel(x)]


@dataclass(frozen=True, kw_only=True)
class PowerLaws:
    """Laws by attention, with one ``E`` and with one each, and what decides between them."""

    test: ClassVar[str] = "likelihood ratio, chi-squared with attentions - 1 degrees of freedom"
    shared: dict[str, PowerLaw]
    """All with the same ``E``."""
    free: dict[str, PowerLaw]
    """Each with its own."""
    ratio: float | None = None
    """Twice the difference of log-likelihoods, under the widened noise if the free laws misfit."""
    p_value: float | None = None
    """How often chance alone makes the ratio so large if ``E`` is one; None with one attention."""

    @property
    def one_E(self) -> bool:
        """Whether one ``E`` suffices."""
        return self.p_value is None or self.p_value >= REJECT

    @property
    def laws(self) -> dict[str, PowerLaw]:
        """Those to be used."""
        return self.shared if self.one_E else self.free


def fit(
    curves: Mapping[str, Points], noise: Noise = STATED, count: int = uncertainty.REPLICATES
) -> PowerLaws:
    """The laws of each attention's points. Cost: 0.1 seconds for two of 20 points."""
    enough = {
        name: points
        for name, points in curves.items()
        if len(np.unique(points.x)) > 2 and np.size(points.loss) > 3
    }
    blank = dict.fromkeys(curves, PowerLaw(status="too_few"))
    if not enough:
        return PowerLaws(shared=blank, free=blank)
    noise = _Joint.of(enough, noise).seen(noise)

    def alone(noise: Noise) -> dict[str, _Joint]:
        return {name: _Joint.of({name: points}, noise) for name, points in enough.items()}

    def chi2_free(noise: Noise) -> float:
        return sum(one.chi2 for one in alone(noise).values())

    degrees = sum(one.degrees for one in alone(noise).values())
    misfit = uncertainty.misfit(chi2_free(noise), noise, degrees)
    noise = uncertainty.widen(chi2_free, noise, degrees) if misfit else noise
    free = blank.copy()
    for one in alone(noise).values():
        free |= one.laws(noise, count, misfit)
    if len(enough) == 1:
        return PowerLaws(shared=free, free=free)
    joint = _Joint.of(enough, noise)
    shared = blank | joint.laws(noise, count, misfit)
    ratio = max(joint.chi2 - chi2_free(noise), 0.0)
    p_value = float(chi2.sf(ratio, len(enough) - 1))
    return PowerLaws(shared=shared, free=free, ratio=ratio, p_value=p_value)


def of(points: Group, count: int = uncertainty.REPLICATES) -> PowerLaws:
    """Loss over hours of every attention, of one size at one context; over updates where budgets
    count those."""
    curves = {
        attention: Points(group.column("spent"), group.column("loss"), group.trunks, group.cells)
        for attention, group in points.split("attention").items()
    }
    return fit(curves, count=count)


@dataclass(frozen=True)
class _Joint:
    """Curves with one ``E`` and their best fit."""

    names: tuple[str, ...]
    loss_n: NDArray
    runs: Runs
    model: powers.Powers
    found: powers.Fitted

    @classmethod
    def of(cls, curves: Mapping[str, Points], noise: Noise) -> "_Joint":
        loss, x, member, trunk, cell = [], [], [], [], []
        for j, (name, points) in enumerate(curves.items()):
            size = np.size(points.loss)
            own = [(name, i) for i in range(size)]
            loss.append(np.asarray(points.loss, dtype=float))
            x.append(np.tile(np.asarray(points.x, dtype=float), (len(curves), 1)))
            member.append(np.arange(len(curves))[:, None] == np.full(size, j))
            trunks = own if points.trunk is None else [(name, label) for label in points.trunk]
            trunk += trunks
            cell += trunks if points.cell is None else [(name, label) for label in points.cell]
        loss_n = np.concatenate(loss)
        runs = Runs.of(len(loss_n), trunk, cell)
        model = powers.Powers.of(np.hstack(x), runs.whitener(noise), np.hstack(member))
        start = np.repeat(START[:, None], len(curves), axis=1)
        found = powers.fit(model, np.tile(loss_n, (len(start), 1)), start)
        return cls(tuple(curves), loss_n, runs, model, found.best())

    @property
    def chi2(self) -> float:
        return float(self.found.chi2_R[0])

    @property
    def degrees(self) -> int:
        return len(self.loss_n) - 1 - 2 * len(self.names)

    @property
    def fitted_n(self) -> NDArray:
        return self.model.values(self.found.g_RJ, self.found.c_RP)[0]

    def seen(self, stated: Noise) -> Noise:
        """The noise that seeds show, if there are enough."""
        return self.runs.noise(self.loss_n - self.fitted_n, stated)

    def laws(self, noise: Noise, count: int, misfit: bool) -> dict[str, PowerLaw]:
        misfit = misfit or uncertainty.misfit(self.chi2, noise, self.degrees)
        residual = self.loss_n - self.fitted_n
        drawn = uncertainty.replicates(self.fitted_n, residual, self.runs, noise, count)
        again = powers.fit(self.model, drawn, np.repeat(self.found.g_RJ, count, axis=0))
        k, k_R = (np.exp(self.model.log_coefficients(f.g_RJ, f.c_RP)) for f in (self.found, again))
        status = "misfit" if misfit else "fitted"
        if self.found.at_bound_R[0]:
            status = "bound"
        if not self.found.converged_R[0]:
            status = "stopped_early"
        drawn_E = uncertainty.interval(again.c_RP[:, 0])
        return {
            name: PowerLaw(
                status=status,
                E=float(self.found.c_RP[0, 0]),
                k=float(k[0, j]),
                gamma=float(self.found.g_RJ[0, j]),
                intervals={
                    "E": drawn_E,
                    "k": uncertainty.interval(k_R[:, j]),
                    "gamma": uncertainty.interval(again.g_RJ[:, j]),
                },
                drawn={"E": again.c_RP[:, 0], "k": k_R[:, j], "gamma": again.g_RJ[:, j]},
            )
            for j, name in enumerate(self.names)
        }
