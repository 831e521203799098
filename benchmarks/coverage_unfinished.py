"""Coverage of predicted losses of unfinished runs, on synthetic studies that are partly finished.

A study has two attentions, 4 sizes and 6 contexts, and a second seed in 12 of the 48 cells. Runs of
the same size, context and seed share a part of their noise. The truth is a sum of power laws of
parameters, tokens and context with random exponents, which the predictor does not have: after equal
updates, or after equal hours, where tokens fall with size and context. Runs finish in any order, or
small and short ones first.

The last rows leave out published final losses, whose noise nobody knows.
"""

import csv
from collections.abc import Sequence

import numpy as np
from coverage import OURS, ROOT, WIDE, Row
from numpy.random import Generator
from numpy.typing import NDArray

from lmscaling.fits import unfinished
from lmscaling.fits.unfinished import Run
from lmscaling.records.forecast import Predicted

SIZES, CONTEXTS = 10.0 ** np.linspace(6.5, 8.9, 4), 2.0 ** np.arange(9, 17, 1.4)
PLACES = [(n, c) for n in SIZES for c in CONTEXTS]
ATTENTIONS = ("softmax", "linear")
REPEATED = 12
SD, CORRELATION, BLOWN = 0.012, 0.85, 0.15
FAMILIES = ("clean", "heavy", "heteroscedastic", "one run blown up")
FINISHED = {"a third": 1 / 3, "half": 1 / 2, "two thirds": 2 / 3}
TRUTHS = ("updates", "hours")
ORDERS = ("any order", "small first")
KINDS = ("run of a finished cell", "cell between finished ones")
LEVELS = (0.95, 0.8)
"""The second is no 95 % interval: its rows have a fitter of their own, and no bound."""
FINAL_LOSSES = ROOT / "results" / "published" / "final_loss.csv"

Ends = dict[str, list[tuple[float, Predicted]]]
"""Values and predictions of single runs, by kind."""


def rows(studies: int) -> list[Row]:
    """All rows, in the order of the table."""
    heads = [(truth, family, order) for truth in TRUTHS for order in ORDERS for family in FAMILIES]
    found = [row for head in heads for row in losses(*head, studies)]
    found += [row for share in FINISHED for row in published(share, studies)]
    return [*found, *(row for family in FAMILIES[:3] for row in times(family, studies))]


def losses(truth: str, family: str, order: str, studies: int, seed: int = 0) -> list[Row]:
    """Rows of one family: each study is a third, half or two thirds finished."""
    rng = np.random.default_rng(seed)
    ends: Ends = {kind: [] for kind in KINDS}
    shares = list(FINISHED.values())
    for i in range(studies):
        runs = _study(_surface(truth, rng), family, rng)
        done, left = _split(runs, order, shares[i % len(shares)], rng)
        _add(ends, done, left)
    family = f"equal {truth}, {order}, {family}"
    return _rows("unfinished runs", family, OURS, ends, studies)


def published(share: str, studies: int, seed: int = 0) -> list[Row]:
    """The published final losses, a share of which have finished, in any order."""
    rng = np.random.default_rng(seed)
    with FINAL_LOSSES.open() as file:
        runs = [
            Run(row["attention"], size := row["params_millions"], 1e6 * float(size),
                float(row["context"]), 0, float(row["final_train_loss"]))
            for row in csv.DictReader(file)
        ]  # fmt: skip
    ends: Ends = {KINDS[1]: []}
    for _ in range(studies):
        _add(ends, *_split(runs, "any order", FINISHED[share], rng))
    family = f"published runs, {share} finished"
    return _rows("unfinished runs", family, OURS, ends, studies)


def times(family: str, studies: int, seed: int = 0) -> list[Row]:
    """Seconds of an update on a CPU: terms of size and of size and context, and what a machine
    needs for each layer; repeats scatter by 4 %. Errors and widths are of logarithms."""
    rng = np.random.default_rng(seed)
    ends: Ends = {kind: [] for kind in KINDS}
    shares = list(FINISHED.values())
    for i in range(studies):
        n, c = np.array(PLACES).T
        per_token = rng.uniform(0.3, 3) * 1e-9 * n + 10 ** rng.uniform(-1, 0.5)
        quadratic = 10 ** rng.uniform(-6, -4.5) * n**0.5 * c / 100
        both = np.array([per_token + quadratic, per_token * rng.uniform(1.0, 1.5)])
        runs = _study(both, family, rng, sd=0.04, in_logs=True)
        done, left = _split(runs, "any order", shares[i % len(shares)], rng)
        _add(ends, done, left)
    return _rows("seconds of an update", f"CPU, {family}", WIDE, ends, studies, in_logs=True)


def _surface(truth: str, rng: Generator) -> NDArray:
    """``[attention, place]``: expected losses, nats."""
    n, c = np.array(PLACES).T
    alpha, beta, kappa = rng.uniform([0.25, 0.25, 0.2], [0.4, 0.4, 0.6])
    slowed = np.array([[10 ** rng.uniform(4.7, 6)], [10 ** rng.uniform(3.5, 4.5)]])
    tokens = np.full((2, len(n)), 1e9) if truth == "updates" else 2e18 / (n * (1 + c / slowed))
    slope = rng.uniform(-0.01, 0.03) * np.log(c / 512) + rng.uniform(0, 0.08)
    gap = slope * (1 + rng.uniform(-0.2, 0.2) * np.log(n / 3e7))
    loss = rng.uniform(1.5, 2) + rng.uniform(0.4, 1) * (n / 1e7) ** -alpha
    loss = loss + rng.uniform(0.1, 0.4) * (c / 512) ** -kappa
    return loss + rng.uniform(0.2, 0.6) * (tokens / 1e9) ** -beta + np.array([[0], [1]]) * gap


def _study(
    expected: NDArray, family: str, rng: Generator, sd: float = SD, in_logs: bool = False
) -> list[Run]:
    """Runs of all cells, with their values."""
    draw = rng.standard_normal
    if family == "heavy":
        draw = lambda shape: rng.standard_t(3, shape) / np.sqrt(3)  # noqa: E731
    n = len(PLACES)
    noise = np.sqrt(CORRELATION) * draw((1, n, 2)) + np.sqrt(1 - CORRELATION) * draw((2, n, 2))
    if family == "heteroscedastic":
        size, context = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 6), indexing="ij")
        noise *= np.exp(0.35 * (context - size).ravel() + 0.3 * rng.standard_normal(n))[:, None]
    noise *= sd
    if family == FAMILIES[3]:
        noise[rng.integers(2), rng.integers(n), 0] += BLOWN
    values = expected[..., None] * np.exp(noise) if in_logs else expected[..., None] + noise
    cells = [(a, i, 0) for a in range(2) for i in range(n)]
    cells += [(j // n, j % n, 1) for j in rng.permutation(2 * n)[:REPEATED]]
    return [
        Run(ATTENTIONS[a], f"{PLACES[i][0]:g}", *PLACES[i], seed, float(values[a, i, seed]))
        for a, i, seed in cells
    ]


def _split(
    runs: Sequence[Run], order: str, share: float, rng: Generator
) -> tuple[list[Run], list[Run]]:
    """Runs that have finished, and the others."""
    when = rng.standard_normal(len(runs))
    if order == "small first":
        when = 0.3 * when + [np.log(run.params) + 0.3 * np.log(run.context) for run in runs]
    ordered = [runs[i] for i in np.argsort(when)]
    k = round(share * len(runs))
    return ordered[:k], ordered[k:]


def _add(ends: Ends, done: list[Run], left: list[Run]) -> None:
    cells = {run[:4] for run in done}
    wanted = [run._replace(value=np.nan) for run in left]
    for run, found in zip(left, unfinished.predict(done, wanted), strict=True):
        ends[KINDS[run[:4] not in cells]].append((run.value, found))


def _rows(
    law: str, family: str, fitter: str, ends: Ends, studies: int, in_logs: bool = False
) -> list[Row]:
    """Errors, widths and refusals of all runs of each kind, at two levels."""
    fitters = (fitter, f"{OURS}, {100 * LEVELS[1]:.0f} %")
    return [
        _row(law, family, name, kind, level, ends[kind], studies, in_logs)
        for name, level in zip(fitters, LEVELS, strict=True)
        for kind in ends
    ]


def _row(
    law: str, family: str, fitter: str, kind: str, level: float,
    ends: list[tuple[float, Predicted]], studies: int, in_logs: bool,
) -> Row:  # fmt: skip
    known = [
        (value, found.median, at)
        for value, found in ends
        if found.median and (at := unfinished.interval(found, level))
    ]
    unit = np.log if in_logs else np.asarray
    value, median, low, high = (
        unit([v for v, *_ in known]), unit([m for _, m, _ in known]),
        unit([at.low for *_, at in known]), unit([at.high for *_, at in known]),
    )  # fmt: skip
    covered = float(np.mean((low <= value) & (value <= high)))
    rmse = float(np.sqrt(np.mean((median - value) ** 2)))
    return Row(law, family, fitter, kind, float(np.mean(median - value)), rmse, covered,
               float(np.median(high - low) / 2), 1 - len(known) / len(ends), studies)  # fmt: skip
