"""Replays of ``lmscaling design``: what a third of a grid tells when it is well chosen.

    python benchmarks/design.py               # print the table
    python benchmarks/design.py --studies 40  # with more simulated studies

The design knows the prior only. It is then trained in simulation, on the surface of Besiroglu et
al. 2024 (arXiv:2404.10102) or on the published losses and curves, and the estimators of the report
give its interval; so are the whole grid of three seeds, random runs and the largest cells first at
the price of the design. Published runs have one seed each, so their seeds are simulated: 0.015 nats
between runs, 0.004 between points of a run, 0.85 correlation over attentions.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmscaling.design import check, draws, search
from lmscaling.design.asked import PASSED, Asked, Candidate, Option
from lmscaling.design.check import Drawn, World
from lmscaling.design.proposal import propose
from lmscaling.errors import UserError

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published"
SHARE = 0.3
"""Of the price of the grid."""
SEEDS = 3
"""Of the grid."""
STUDIES = 20
RANDOM = 50
SURFACE = {"E": 1.82, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
SD, POINT_SD = 0.010, 0.004
PUBLISHED_SD = 0.015
GAIN = float(np.log(1.5))
SLOPE = 0.03
DECAYED = [
    Option(budget, shares)
    for budget in (1.0, 0.5, 0.25)
    for shares in (PASSED, (1 / 16, 1 / 4, 1.0))
]
SHORTER = [Option(budget) for budget in (1.0, 0.5, 0.25)]
WHOLE = [Option()]


@dataclass(frozen=True)
class Replay:
    """One grid and one question."""

    name: str
    asked: Asked
    candidates: list[Candidate]
    options: list[Option]
    world: World


class Row(NamedTuple):
    """Median half-widths over studies; infinite where the report gives no interval."""

    name: str
    question: str
    grid: float
    design: float
    ratio: float
    subset: float
    """Ratio of the best subset of the grid's own runs."""
    random: float
    """Ratio of random runs of the grid."""
    random_alike: float
    """Ratio of random runs with the budget, the branches and the most seeds of the design."""
    largest: float
    coverage: float


def epoch(asked: Asked, candidates: Sequence[Candidate]) -> Drawn:
    """The surface of Besiroglu et al. as a world."""
    centre = 18.0, 22.0
    p = SURFACE
    logs = (
        np.log(p["A"]) - p["alpha"] * centre[0], np.log(p["B"]) - p["beta"] * centre[1]
    )  # fmt: skip
    row = np.array([[p["E"], *logs, p["alpha"], p["beta"], 0.0]])
    one = np.ones(1)
    known = draws.Draws(row, centre, SD * one, POINT_SD * one, SLOPE * one, -1.0 * one, GAIN * one)
    return Drawn(known, asked)


@dataclass(frozen=True)
class Published:
    """Published losses as what is true of the mean over seeds."""

    sd: float = PUBLISHED_SD
    point_sd: float = POINT_SD
    curves: dict[Any, NDArray] = field(default_factory=lambda: curves())

    def loss(self, attention: str, candidate: Candidate, share: ArrayLike) -> NDArray:
        log_x, loss = self.curves[attention, candidate.size, candidate.context]
        end = min(
            self.curves[name, candidate.size, candidate.context][0][-1]
            for name in ("softmax", "linear")
        )
        return np.interp(np.log(np.asarray(share, dtype=float)) + end, log_x, loss)

    def truth(self, asked: Asked, candidates: Sequence[Candidate]) -> float:
        return np.nan


@cache
def curves() -> dict[Any, NDArray]:
    """``[2, n]``: ln updates and losses, by attention, size and context."""
    found: dict[Any, list] = {}
    with (PUBLISHED / "curves.csv").open() as file:
        for row in csv.DictReader(file):
            if row["train_loss"]:
                key = row["attention"], f"{row['params_millions']}M", int(row["context"])
                found.setdefault(key, []).append((float(row["update"]), float(row["train_loss"])))
    return {
        key: np.array([np.log([x for x, _ in rows]), [y for _, y in rows]])
        for key, rows in found.items()
    }


def synthetic(pair: bool, budget: str, sizes: int = 6) -> list[Candidate]:
    """A grid from 3M to 300M parameters at three contexts, or one for laws of one context.

    ``tokens``: all runs have 3 billion tokens; ``hours``: all have the same compute.
    """
    known = np.geomspace(12.5e6, 800e6, sizes) if sizes > 6 else np.geomspace(3e6, 300e6, sizes)
    found = []
    for context in (256, 1024, 4096) if pair else (1024,):
        for i, n in enumerate(known):
            tokens = 3e9 if budget == "tokens" else 1.5e18 / (6 * n)
            names = ("softmax", "linear") if pair else ("softmax",)
            price = len(names) * 6 * n * tokens / 1e15
            found.append(Candidate(attentions=names, size=f"s{i}", context=context, params=n,
                                   tokens=tokens, cost=price))  # fmt: skip
    return found


def published(pair: bool = True) -> list[Candidate]:
    """The published runs of both attentions, with their hours on 8 GPUs."""
    params = {"124M": 85.1e6, "355M": 302.3e6, "774M": 708.2e6}
    hours = {}
    with (PUBLISHED / "runs.csv").open() as file:
        for row in csv.DictReader(file):
            key = row["attention"], f"{row['params_millions']}M", int(row["context"])
            hours[key] = 8 * float(row["hours"])
    return [
        Candidate(
            attentions=("softmax", "linear"),
            size=size,
            context=context,
            params=params[size],
            tokens=float(np.exp(curves()["linear", size, context][0][-1])) * 2**19,
            cost=hours["softmax", size, context] + hours["linear", size, context],
        )
        for attention, size, context in curves()
        if attention == "linear" and ("softmax", size, context) in curves()
    ]


def replays() -> list[Replay]:
    """A question of each kind on synthetic grids, and of those that the published runs can
    answer."""
    pairs, tokens, hours = (
        synthetic(True, "tokens"),
        *(synthetic(False, b) for b in ("tokens", "hours")),
    )
    many = synthetic(False, "hours", 9)
    pair: dict[str, Any] = {"attention": "linear", "reference": "softmax"}
    asked = [
        ("equal tokens", Asked(kind="gap", **pair, size="s3", context=1024), pairs, WHOLE),
        ("equal tokens", Asked(kind="gap", **pair, context=1024), pairs, WHOLE),
        ("equal tokens", Asked(kind="multiplier", **pair, size="s3", context=1024, loss=3.7),
         pairs, SHORTER),
        ("equal tokens", Asked(kind="crossing", **pair, size="s3", context=1024), pairs, SHORTER),
        ("equal tokens", Asked(kind="beta", attention="softmax", context=1024), tokens, DECAYED),
        ("equal tokens", Asked(kind="a", attention="softmax", context=1024), tokens, DECAYED),
        ("equal hours", Asked(kind="beta", attention="softmax", context=1024), hours, DECAYED),
        ("equal hours", Asked(kind="a", attention="softmax", context=1024), hours, DECAYED),
        ("equal tokens", Asked(kind="gamma", attention="softmax", size="s3", context=1024),
         tokens[3:4], DECAYED),
        ("equal hours", Asked(kind="size", attention="softmax", context=1024), many, WHOLE),
    ]  # fmt: skip
    found = [Replay(n, a, c, o, epoch(a, c)) for n, a, c, o in asked]
    ours = published()
    far = [
        (Asked(kind="gap", **pair, size="355M", context=8192), WHOLE),
        (Asked(kind="multiplier", **pair, size="355M", context=8192, loss=3.3), SHORTER),
    ]
    found += [Replay("published", a, ours, o, Published()) for a, o in far]
    one = [replace(c, attentions=("softmax",), cost=c.cost / 2) for c in ours
           if (c.size, c.context) == ("355M", 2048)]  # fmt: skip
    gamma = Asked(kind="gamma", attention="softmax", size="355M", context=2048)
    return [*found, Replay("published", gamma, one, SHORTER, Published())]


def replay(one: Replay, studies: int = STUDIES, alike: bool = True) -> Row:
    """A design, and what it is compared with, in the same studies; without ``alike``, not with
    random runs as short as those of the design."""
    asked, cells = one.asked, one.candidates
    start, whole = np.zeros(len(cells), dtype=int), np.full(len(cells), SEEDS)
    price = np.array([c.cost for c in cells])
    budget = SHARE * SEEDS * price.sum() * one.options[0].price

    def outcome(counts: NDArray, option: Option, study: int) -> check.Outcome:
        return check.simulate(asked, cells, counts, option, one.world, study)

    grid = check.summary(outcome(whole, one.options[0], i) for i in range(studies))
    try:
        chosen = propose(asked, cells, SEEDS, budget, one.options)
    except UserError:
        return Row(one.name, str(asked), grid.half_width, *(np.inf,) * 6, coverage=np.nan)
    design = check.summary(outcome(chosen.counts, chosen.option, i) for i in range(studies))

    def ratio(designs: Sequence[NDArray], option: Option) -> float:
        found = [outcome(c, option, i % studies).half for i, c in enumerate(designs)]
        return float(np.median(found)) / grid.half_width

    def of_order(option: Option, most: NDArray, rng: np.random.Generator | None) -> NDArray:
        pool = search.Problem(chosen.problem.answer, price * option.price, start, most)
        return search.in_order(pool, np.array([chosen.spent]), rng)[0]

    own, rng = one.options[0], np.random.default_rng(7)
    try:
        subset = propose(asked, cells, SEEDS, budget, [own], most=SEEDS)
        of_subset = ratio([subset.counts] * studies, own)
    except UserError:
        of_subset = np.inf
    most = np.full(len(cells), max(SEEDS, int(chosen.counts.max())))
    return Row(
        one.name,
        str(asked),
        grid.half_width,
        design.half_width,
        design.half_width / grid.half_width,
        of_subset,
        ratio([of_order(own, whole, rng) for _ in range(RANDOM)], own),
        ratio(
            [of_order(chosen.option, most, rng) for _ in range(RANDOM if alike else 1)],
            chosen.option,
        ),
        ratio([of_order(own, whole, None)] * studies, own),
        design.coverage,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    head = (
        "| grid | question | whole grid | design | subset of the grid | random | random, as long "
        "as the design | largest first | coverage |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )

    def times(ratio: float) -> str:
        return f"{ratio:.2f}" if np.isfinite(ratio) else "none"

    lines = [
        f"| {r.name} | `{r.question}` | {r.grid:.3g} | {times(r.ratio)} | {times(r.subset)} | "
        f"{times(r.random)} | {times(r.random_alike)} | {times(r.largest)} | "
        f"{'' if np.isnan(r.coverage) else format(r.coverage, '.0%').replace('%', ' %')} |"
        for r in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="Replays of lmscaling design.")
    parser.add_argument("--studies", type=int, default=STUDIES)
    args = parser.parse_args()
    rows = []
    for one in replays():
        rows.append(replay(one, args.studies))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
