"""Coverage of the intervals of optimal learning rates and of the noise scale of the gradient, on
synthetic studies."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from coverage import Row
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import t

from lmscaling.fits import fieller, lr_optimum
from lmscaling.fits.fieller import Moments
from lmscaling.fits.uncertainty import LEVEL

SWEEPS = 6
"""Attentions of a study of rates, each with its own optimum."""
BEND = 0.035
"""Nats per squared e-fold of the rate, about that of GPT-2 124M."""
SMALL, BIG, DIMENSIONS = 16, 64, 30
"""Tokens of both batches, and parameters whose gradient is simulated."""


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
    found = [row for name in FAMILIES for row in rates(name, studies)]
    found += [scale(true, n, studies) for n in (8, 40) for true in (10.0, 100.0, 1000.0)]
    return found


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
            vertices.append((lr_optimum.fit(scales, table).scale, None, true))
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


def scale(true: float, samples: int, studies: int) -> Row:
    """The noise scale of the gradient, from updates that were measured at two batch sizes."""
    rng, quantile, made = np.random.default_rng(0), float(t.isf((1 - LEVEL) / 2, samples - 1)), []
    for moments in gradients(true, samples, studies, rng):
        interval = fieller.of_positive(moments, quantile)
        ratio = moments.numerator / moments.denominator
        made.append((ratio if ratio > 0 else None, interval, float(np.log(true))))
    family = f"{true:g} tokens, {samples} updates"
    return _row("noise scale", family, "ours", "ln scale", made)


def gradients(true: float, samples: int, studies: int, rng: Generator) -> Iterator[Moments]:
    """Moments of noise and signal of studies whose true gradient has norm 1."""
    mean = np.full(DIMENSIONS, DIMENSIONS**-0.5)
    sd = np.sqrt(true / DIMENSIONS / SMALL)
    parts = mean + rng.normal(0, sd, (studies, samples, BIG // SMALL, DIMENSIONS))
    big, small = _squares(parts.mean(axis=2)), _squares(parts[:, :, 0])
    signal = (BIG * big - SMALL * small) / (BIG - SMALL)
    noise = (small - big) / (1 / SMALL - 1 / BIG)
    for s, n in zip(signal, noise, strict=True):
        c = np.cov(n, s) / samples
        yield Moments(n.mean(), s.mean(), c[0, 0], c[1, 1], c[0, 1])


def _squares(vectors: NDArray) -> NDArray:
    return (vectors**2).sum(axis=-1)
