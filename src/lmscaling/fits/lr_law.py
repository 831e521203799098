"""The best learning rate over sizes: a power law through the optima of a study of rates.

Least squares of ln(rate) on ln(N); the interval of the exponent is that of Student's t with the
scatter of the optima around the line, so it needs three sizes. The optima of a size at several
contexts enter as their geometric mean.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import linregress, t

from lmscaling.fits.lr_optimum import Group
from lmscaling.fits.uncertainty import LEVEL, Interval

OBJECTIVE = "least squares of ln(rate) on ln(N)"
STARTS_SAID = "none: linear"


@dataclass(frozen=True)
class LrLaw:
    """The law of one attention."""

    formula: ClassVar[str] = "rate = c N^-p"
    coefficient: float
    exponent: float
    interval: Interval | None
    """Of the exponent; None with two sizes."""


def fit(n_s: ArrayLike, rate_s: ArrayLike) -> LrLaw:
    """The law through the optima of at least two sizes, ``[s]``."""
    x, y = np.log(np.asarray(n_s, dtype=float)), np.log(np.asarray(rate_s, dtype=float))
    line: Any = linregress(x, y)  # SciPy's type of a result has no fields
    interval = None
    if len(x) > 2:
        half = float(t.isf((1 - LEVEL) / 2, len(x) - 2)) * float(line.stderr)
        interval = Interval(-float(line.slope) - half, -float(line.slope) + half)
    return LrLaw(float(np.exp(line.intercept)), -float(line.slope), interval)


@dataclass(frozen=True)
class Tuned:
    """The optima of one attention by size."""

    rates: dict[str, float]
    """Best rate of each size whose optimum is known."""
    n: dict[str, int]
    """Parameters in the matrices of their blocks."""

    @property
    def law(self) -> LrLaw | None:
        """None with fewer than two sizes."""
        if len(set(self.n.values())) < 2:
            return None
        return fit([self.n[size] for size in self.rates], list(self.rates.values()))


def tuned(groups: Iterable[Group]) -> dict[str, Tuned]:
    """The optima that are known, by attention; every attention of the groups is a key."""
    logs: dict[str, dict[str, list[float]]] = defaultdict(dict)
    n: dict[str, int] = {}
    for group in groups:
        sizes = logs[group.attention]
        if group.rate is not None:
            n[group.size] = group.n
            sizes.setdefault(group.size, []).append(float(np.log(group.rate)))
    return {
        attention: Tuned(
            {size: float(np.exp(np.mean(of))) for size, of in sizes.items()},
            {size: n[size] for size in sizes},
        )
        for attention, sizes in logs.items()
    }
