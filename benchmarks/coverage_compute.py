"""Coverage of the compute for equal loss on synthetic studies: rows of ``coverage.py``.

Two attentions have studies of their own, as ``coverage_surfaces`` makes them, and one needs 1.25
times the FLOPs a token. The truth is where both true surfaces reach the loss that both fits reach.
"""

from functools import partial

import numpy as np
from coverage import WIDE, Row, each
from coverage_surfaces import BENDS, FAMILIES, MORE, SURFACE, WRONG, Family, Study, simulate
from numpy.typing import NDArray

from lmscaling.figures.loss_over_compute import multiple, path
from lmscaling.fits import loss_surface

COST = 1.25
ALL = FAMILIES | MORE | WRONG
PAIRS = [(name, name) for name in ("clean", "two seeds", "heteroscedastic", "four sizes", *BENDS)]
PAIRS += [("one blown", "clean"), *((name, "clean") for name in BENDS)]
"""Families of the attention and of the baseline."""


def rows(studies: int) -> list[Row]:
    return [multiples(*pair, studies) for pair in PAIRS]


def multiples(of: str, baseline: str, studies: int) -> Row:
    """The row of one pair of families."""
    own, other = simulate(ALL[of], studies, 1)[0], simulate(ALL[baseline], studies, 2)[0]
    pairs = zip(own, other, strict=True)
    found = np.array(each(partial(_found, ALL[of], ALL[baseline]), pairs))
    off, half = found[np.isfinite(found[:, 0])].T
    family = of if of == baseline else f"{of}, against {baseline}"
    return Row(
        law="compute for equal loss", family=family, quantity="ln of the multiple",
        fitter=WIDE if of == baseline or of in FAMILIES else "ours, if the form were right",
        bias=float(off.mean()), rmse=float(np.sqrt((off**2).mean())),
        coverage=float((np.abs(off) <= half).mean()), width=float(np.median(half)),
        refused=1 - len(off) / studies, studies=studies,
    )  # fmt: skip


def _found(of: Family, baseline: Family, studies: tuple[Study, Study]) -> tuple[float, float]:
    """Error of ln of the multiple, and half of its interval; NaN if a surface is refused."""
    paths, truths = [], []
    for study, family, cost in zip(studies, (of, baseline), (COST, 1.0), strict=True):
        points = study.points
        law = loss_surface.fit(**points)
        if "a" not in law.intervals:
            return np.nan, np.nan
        flops = 6 * cost * points["N"] * points["D"]
        paths.append(path(law, points["N"], points["D"], flops))
        truths.append(_truth(family, points["N"], cost, flops))
    level = max(one.loss.min() for one in paths)
    value, half = multiple(paths[0], paths[1], level)
    own, other = (np.interp(-level, -loss, np.log(compute)) for compute, loss in truths)
    return value - (own - other), half


def _truth(family: Family, N: NDArray, cost: float, flops: NDArray) -> tuple[NDArray, NDArray]:
    """The lowest true loss at each compute among sizes between the smallest and the largest."""
    n, compute = np.geomspace(N.min(), N.max(), 400), np.geomspace(flops.min(), flops.max(), 400)
    d = compute[:, None] / (6 * cost * n)
    terms = (SURFACE["A"] / n ** SURFACE["alpha"], SURFACE["B"] / d ** SURFACE["beta"])
    loss = SURFACE["E"] + sum(term ** (1 / family.g) for term in terms) ** family.g
    if family.bend:
        loss = loss + BENDS[family.bend](np.broadcast_to(n, d.shape), d)
    return compute, loss.min(axis=1)
