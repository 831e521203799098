"""Coverage of the intervals of cells, gaps, multipliers and crossings on synthetic studies.

A study has 3 sizes x 12 contexts and two attentions whose runs share a part of their noise. Its
noise differs from cell to cell: by size and context, and by chance.
"""

import numpy as np
from coverage import OURS, Row
from numpy.random import Generator
from numpy.typing import NDArray

from lmscaling.fits import gaps, multiplier
from lmscaling.fits.multiplier import Multipliers
from lmscaling.fits.noise import Noise, Place
from lmscaling.fits.smooth_curves import Curve
from lmscaling.fits.uncertainty import Interval

SIZES, CONTEXTS = 10.0 ** np.arange(6, 9), 2 ** np.arange(8, 20)
CELLS = [(n, int(c)) for n in SIZES for c in CONTEXTS]
SD = 0.015
CORRELATION = 0.85
"""Of two attentions with the same seed, as measured."""
FAMILIES = ("clean", "heteroscedastic", "heavy", "shared")
DESIGNS = {"seeds 3 in 6 cells": (6, 3), "seeds 2": (36, 2), "seeds 3": (36, 3)}
"""Cells with several seeds, and how many."""
UPDATES = np.geomspace(100, 40_000, 40).round()
FASTER = 1.5
"""True multiplier in updates."""
SLOPE = 0.03
"""Of the gap of crossing curves, nats per e-fold of updates."""
CROSSING = 6000.0


def rows(studies: int) -> list[Row]:
    """All rows, in the order of the table."""
    found = []
    for family in FAMILIES:
        for design in DESIGNS:
            found += tables(family, design, studies)
    for sd in (0.01, 0.03):
        for seeds in (1, 3):
            found += curves(sd, seeds, studies)
    return found


def _noise(family: str, cells: int, seeds: int, rng: Generator) -> NDArray:
    """``[attention, cell, seed]``: deviations of losses, nats."""
    draw = rng.standard_normal
    if family == "heavy":
        draw = lambda shape: rng.standard_t(3, shape) / np.sqrt(3)  # noqa: E731
    own, both = draw((2, cells, seeds)), draw((cells, seeds))
    if family == "shared":  # by all cells of a seed, half of the variance of a gap
        own = (own + draw((2, 1, seeds))) / np.sqrt(2)
    size, context = np.meshgrid(np.arange(3) - 1, np.arange(12) / 5.5 - 1, indexing="ij")
    trend = 0.35 * (context - size).ravel() + 0.3 * rng.standard_normal(cells)
    sd = SD * np.exp(trend if family == "heteroscedastic" else 0 * trend)
    return sd[:, None] * (np.sqrt(CORRELATION) * both + np.sqrt(1 - CORRELATION) * own)


def tables(family: str, design: str, studies: int, seed: int = 0) -> list[Row]:
    """Final losses, gaps, and errors of the table of gaps."""
    rng = np.random.default_rng(seed)
    repeated, seeds = DESIGNS[design]
    places = {cell: Place(*cell, "linear") for cell in CELLS}
    ends: dict[str, list[tuple[float, Interval | None]]] = {}
    wrong, refused = [], 0
    for _ in range(studies):
        y = 3 + _noise(family, len(CELLS), seeds, rng)
        several = _repeated(repeated, rng)
        count = np.where(np.isin(np.arange(len(CELLS)), several), seeds, 1)
        samples = {cell: dict(enumerate(y[0, i, : count[i]])) for i, cell in enumerate(CELLS)}
        noise = Noise.measure(samples, places)
        for cell, sample in samples.items():
            name = f"loss, {len(sample)} seed{'s' * (len(sample) > 1)}"
            mean = float(np.mean(list(sample.values())))
            spread = noise.at(cell)
            refused += spread.assumed is not None
            ends.setdefault(name, []).append((mean - 3, spread.interval(mean - 3)))
        found = gaps.compare(
            ("measured", f"{n:g}", n, c, name == "softmax", name, s, float(y[a, i, s]), None)
            for i, (n, c) in enumerate(CELLS)
            for a, name in enumerate(("softmax", "linear"))
            for s in range(count[i])
        )
        for gap in found:
            what = (
                "mean gap" if gap.size is None else f"gap, {gap.seeds} seed{'s' * (gap.seeds > 1)}"
            )
            ends.setdefault(what, []).append((gap.gap or 0.0, gap.interval))
        wrong.append(any(gap.status in ("lower", "higher") for gap in found))
    head = "cells and gaps", f"{family}, {design}"
    quantities = [interval_row(*head, name, known, studies) for name, known in sorted(ends.items())]
    errors = Row(*head, "ours, Holm", "no gap called different", 0.0, 0.0,
                 1 - float(np.mean(wrong)), None, 0.0, studies)  # fmt: skip
    return [*quantities, errors]


def _repeated(count: int, rng: Generator) -> NDArray:
    """Cells with several seeds: the corners, and others by chance."""
    corners = np.array([0, 11, 24, 35])
    others = rng.permutation(np.setdiff1d(np.arange(len(CELLS)), corners))
    return np.concatenate([corners, others])[:count]


def interval_row(
    law: str, family: str, quantity: str, ends: list[tuple[float, Interval | None]], studies: int
) -> Row:
    """From errors and intervals of the error, which should contain 0."""
    error = np.array([value for value, _ in ends])
    known = [one for _, one in ends if one is not None and one.assumed is None]
    covered = float(np.mean([0 in one for one in known])) if known else None
    width = float(np.median([one.width / 2 for one in known])) if known else None
    rmse, refused = float(np.sqrt((error**2).mean())), 1 - len(known) / len(ends)
    return Row(
        law, family, OURS, quantity, float(error.mean()), rmse, covered, width, refused, studies
    )


def curves(sd: float, seeds: int, studies: int, seed: int = 0) -> list[Row]:
    """Multipliers and crossings with one or three paired seeds; one seed takes the scatter of two
    other pairs with three. A fifth of the noise is of single points."""
    rng = np.random.default_rng(seed)
    steeper = 2.5 + 10 * UPDATES**-0.3 + SLOPE * np.log(UPDATES / CROSSING)
    truths = {"multiplier": 2.5 + 10 * (FASTER * UPDATES) ** -0.3, "crossing": steeper}
    found: dict[str, list[tuple[float, Interval | None]]] = {name: [] for name in truths}
    for _ in range(studies):
        for name, truth in truths.items():
            result = _study(truth, sd, seeds, rng)
            found[name].append(_multiplier(result) if name == "multiplier" else _crossing(result))
    family = f"sd {sd:g}, {seeds} seed{'s' * (seeds > 1)}"
    return [
        interval_row(name, family, f"ln {name}, gap of pairs", ends, studies)
        for name, ends in found.items()
    ]


def _study(truth: NDArray, sd: float, seeds: int, rng: Generator) -> Multipliers:
    """Of the last of several pairs, which lies between the others."""
    counts = [3, 3, seeds]
    places = {i: Place(1e6, 256 * n, "linear") for i, n in enumerate((1, 4, 2))}
    pairs = {}
    for i, k in enumerate(counts):
        run, point = rng.standard_normal((3, k, 1)), rng.standard_normal((3, k, len(UPDATES)))
        noise = np.sqrt(0.8) * run + np.sqrt(0.2) * point
        share = np.sqrt(CORRELATION), np.sqrt(1 - CORRELATION)
        loss = [sd * (share[0] * noise[2] + share[1] * noise[a]) for a in (0, 1)]
        reference = 2.5 + 10 * UPDATES**-0.3 + loss[0]
        pairs[i] = (
            Curve(UPDATES, UPDATES, UPDATES, reference),
            Curve(UPDATES, UPDATES, UPDATES, truth + loss[1]),
        )
    return multiplier.fit_all(pairs, places)[len(counts) - 1]


def _multiplier(result: Multipliers) -> tuple[float, Interval]:
    """Half way through the other run, in ln."""
    level = result.levels[-5]
    ends = level.intervals["updates"]
    low, high = (
        None if end is None else float(np.log(end / FASTER)) for end in (ends.low, ends.high)
    )
    return float(np.log(level.updates / FASTER)), Interval(low, high, ends.assumed)


def _crossing(result: Multipliers) -> tuple[float, Interval | None]:
    """The last crossing, in ln; none where only one side exceeds the noise."""
    points = result.crossings["updates"].points
    if not points:
        return 0.0, None
    low, high = (
        None if end is None else float(np.log(end / CROSSING))
        for end in (points[-1].interval.low, points[-1].interval.high)
    )
    return float(np.log(points[-1].at / CROSSING)), Interval(low, high)
