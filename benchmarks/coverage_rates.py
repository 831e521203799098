"""Coverage of the intervals of optimal learning rates, on synthetic studies."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from coverage import Row
from numpy.random import Generator

from lmscaling.fits import lr_optimum
from lmscaling.fits.lr_optimum import Sweep

SWEEPS = 6
"""Attentions of a study of rates, each with its own optimum."""
BEND = 0.035
"""Nats per squared e-fold of the rate, about that of GPT-2 124M."""


class Family(NamedTuple):
    """How rates were swept."""

    rates: int
    """Factors of two apart."""
    seeds: int
    sd: float
    """Of a run beyond what runs of a seed share, nats."""
    cubic: float = 0.0
    """Asymmetry of the loss, per e-fold of the rate."""
    heavy: bool = False
    blown: float = 0.0
    """Added to the loss of one run, nats."""


FAMILIES = {
    "five rates, three seeds": Family(5, 3, 0.004),
    "seven rates, two seeds": Family(7, 2, 0.004),
    "asymmetric": Family(7, 3, 0.002, cubic=0.15),
    "noisy": Family(7, 3, 0.01, cubic=0.15),
    "heavy": Family(7, 3, 0.004, heavy=True),
    "one run blown up": Family(7, 3, 0.004, blown=0.15),
}


def rows(studies: int) -> list[Row]:
    """All rows, in the order of the table."""
    return [row for name in FAMILIES for row in rates(name, studies)]


def sweep(family: Family, rng: Generator) -> tuple[list[tuple], dict[str, float]]:
    """Rows of ``lr_optimum.QUERY`` of one study, and ln of the best scale of each attention."""
    scales = 2.0 ** (np.arange(family.rates) - family.rates // 2)
    truth = {f"a{i}": float(at) for i, at in enumerate(rng.uniform(-0.3, 0.3, SWEEPS))}
    found = []
    for attention, best in truth.items():
        u = np.log(scales) - best
        shape = family.seeds, len(u)
        own = rng.standard_t(3, shape) / np.sqrt(3) if family.heavy else rng.standard_normal(shape)
        shared = 2 * rng.standard_normal((family.seeds, 1))
        loss = 3 + BEND * u**2 * (1 + family.cubic * u) + family.sd * (own + shared)
        loss[rng.integers(family.seeds), rng.integers(family.rates)] += family.blown
        found += [
            (attention, "s", 1024, 6e-4, 1e6, seed, scale, value)
            for seed, losses in enumerate(loss.tolist())
            for scale, value in zip(scales.tolist(), losses, strict=True)
        ]
    return found, truth


def rates(name: str, studies: int) -> Iterator[Row]:
    """The optima of a family, ours and the vertex of the parabola through three points."""
    rng, ours, vertices = np.random.default_rng(0), [], []
    for _ in range(-(-studies // SWEEPS)):
        found, truth = sweep(FAMILIES[name], rng)
        for group in lr_optimum.groups(found):
            best, true = group.optimum, truth[group.attention]
            ours.append((best.interval and best.scale, best.interval, true))
            losses = [row[-1] for row in found if row[0] == group.attention]
            scales = sorted({row[6] for row in found})
            table = np.reshape(losses, (-1, len(scales)))
            vertices.append((lr_optimum.fit(Sweep.from_losses(scales, table)).scale, None, true))
    yield _row("learning rate", name, "ours", "ln optimum", ours)
    yield _row("learning rate", name, "parabola of three", "ln optimum", vertices)


def _row(law: str, family: str, fitter: str, quantity: str, made: list[tuple]) -> Row:
    """A row from estimates, their intervals, and logarithms of the truth."""
    known = [(est, i, true) for est, i, true in made if est is not None]
    error = np.array([np.log(est) - true for est, _, true in known])
    ends = [(i, true) for _, i, true in known if i is not None]
    covered = float(np.mean([np.exp(true) in i for i, true in ends])) if ends else None
    closed = [i for i, _ in ends if i.low and i.high is not None]
    width = float(np.median([np.log(i.high / i.low) / 2 for i in closed])) if closed else None
    return Row(
        law, family, fitter, quantity, float(error.mean()), float(np.sqrt((error**2).mean())),
        covered, width, 1 - len(known) / len(made), len(made),
    )  # fmt: skip
