"""Coverage of losses and gaps of attentions that are sometimes unstable, on synthetic studies.

A study has one size. The true loss is that of a run that does not fail: 3 nats, of all attentions.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from coverage import Row
from coverage_gaps import interval_row
from numpy.random import Generator
from numpy.typing import NDArray

from lmscaling.fits import gaps
from lmscaling.fits.noise import Noise, Place
from lmscaling.fits.uncertainty import Interval

LAW = "losses and gaps of unstable attentions"
GROWING = np.array([0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08, 0.12])
SEEDS = (3, 5)
Draw = Callable[[Generator, int, int, int], NDArray]
"""Deviations ``[attention, context, seed]``, nats; the baseline first."""


class Family(NamedTuple):
    attentions: int
    contexts: int
    draw: Draw


def _unstable(share: float) -> Draw:
    """A share of the runs of the candidate ends higher, by 0.3 nats on average."""

    def draw(rng: Generator, *shape: int) -> NDArray:
        y = 0.008 * rng.standard_normal(shape)
        blown = rng.random(shape[1:]) < share
        y[1] += np.where(blown, rng.exponential(0.3, shape[1:]), 0)
        return y

    return draw


def _by_context(sd_c: NDArray) -> Draw:
    """The noise of the candidate depends on the context."""

    def draw(rng: Generator, *shape: int) -> NDArray:
        y = 0.003 * rng.standard_normal(shape)
        y[1] += sd_c[:, None] * rng.standard_normal(shape[1:])
        return y

    return draw


def _noisy_baseline(rng: Generator, *shape: int) -> NDArray:
    y = 0.004 * rng.standard_normal(shape)
    y[0] += 0.02 * rng.standard_normal(shape[1:])
    return y


def _shared(rng: Generator, *shape: int) -> NDArray:
    """A seed moves all contexts of the candidate alike."""
    y = 0.003 * rng.standard_normal(shape)
    y[1] += 0.02 * rng.standard_normal((1, shape[2]))
    return y


def _clean(rng: Generator, *shape: int) -> NDArray:
    return 0.015 * rng.standard_normal(shape)


FAMILIES = {
    "8 attentions alike": Family(8, 4, _clean),
    "baseline 5 times as noisy": Family(8, 4, _noisy_baseline),
    "seeds move all contexts": Family(2, 12, _shared),
    "5 % of runs 0.3 nats higher": Family(2, 8, _unstable(0.05)),
    "10 % of runs 0.3 nats higher": Family(2, 8, _unstable(0.1)),
    "20 % of runs 0.3 nats higher": Family(2, 8, _unstable(0.2)),
    "sd grows 40 times": Family(2, 8, _by_context(GROWING)),
    "sd 13 times at the longest": Family(2, 8, _by_context(np.array([0.006] * 7 + [0.08]))),
}


def rows(studies: int) -> list[Row]:
    """All rows, in the order of the table."""
    return [
        row for name in FAMILIES for seeds in SEEDS for row in tables(name, seeds, studies)
    ]  # fmt: skip


def tables(name: str, seeds: int, studies: int, seed: int = 0) -> list[Row]:
    """Losses, gaps to the baseline, the gap at the longest context, the mean gap, and errors of the
    table of gaps."""
    rng = np.random.default_rng(seed)
    attentions, contexts, draw = FAMILIES[name]
    ends: dict[str, list[tuple[float, Interval | None]]] = {
        "loss": [], "gap": [], "gap, longest context": [], "mean gap": []
    }  # fmt: skip
    wrong = []
    for _ in range(studies):
        y = draw(rng, attentions, contexts, seeds)
        cells = {
            (f"a{a}", 256 * 2**c): dict(enumerate(y[a, c].tolist()))
            for a in range(attentions) for c in range(contexts)
        }  # fmt: skip
        noise = Noise.measure(cells, {cell: Place(1e8, cell[1], cell[0]) for cell in cells})
        for cell, losses in cells.items():
            mean = float(np.mean(list(losses.values())))
            ends["loss"].append((mean, noise.at(cell).interval(mean)))
        found = gaps.compare(
            ("measured", "s", 1e8, context, attention == "a0", attention, s, 3 + loss, None)
            for (attention, context), losses in sorted(cells.items())
            for s, loss in losses.items()
        )
        found = [gap for gap in found if gap.reference == "a0"]
        for gap in found:
            one = gap.gap or 0.0, gap.interval
            ends["mean gap" if gap.size is None else "gap"].append(one)
            if gap.context == 256 * 2 ** (contexts - 1):
                ends["gap, longest context"].append(one)
        wrong.append(any(gap.status in ("lower", "higher") for gap in found))
    head = LAW, f"{name}, {seeds} seeds"
    errors = Row(*head, "ours, Holm", "no gap called different", 0.0, 0.0,
                 1 - float(np.mean(wrong)), None, 0.0, studies)  # fmt: skip
    return [*(interval_row(*head, what, known, studies) for what, known in ends.items()), errors]
