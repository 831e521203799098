"""Fit the model that predicts times of updates to published ones, and check it on others.

    python benchmarks/fit_throughput.py                      # the table
    python benchmarks/fit_throughput.py coefficients.json    # fit and write, then the table
    python benchmarks/fit_throughput.py --unseen runs.csv    # the table of runs of another stack

The published times are 28 training runs of eight stacks, and the steps of the post (Buckman and
Gelada 2024). ``throughput.csv`` has what the sources print (``published`` in ``unit``) and what
follows from it. Micro-batches that are not published are taken as 16,384 tokens or one sequence,
and updates as 65,536 tokens a device. The blocks of the post were recomputed, as its longest
contexts fit into 80 GB only so. The table says how well times are predicted that no fit has seen.

Runs that no fit may use are in no file here, as their repository names no licence: 195 of NX-AI,
softmax at 2,048 and 8,192 tokens (NX-AI/xlstm_scaling_laws@604bb30:data). ``runs.csv`` has their
columns ``context``, ``layers``, ``width``, ``head_dim``, ``batch`` (sequences of an update),
``gpus`` and ``step_seconds`` (median of an update), one row for a run.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.config import devices
from lmscaling.files import write_json
from lmscaling.formatting import aligned
from lmscaling.plan.calibrations import FEW, NEAR, Place, spread
from lmscaling.plan.throughput import timed_steps
from lmscaling.plan.throughput.model import (
    NAMES,
    QUANTILES,
    SPREAD,
    Coefficients,
    Timing,
    log_seconds,
    prior,
    vector,
)
from lmscaling.plan.throughput.terms import TERMS, Work

FACTS = Path(__file__).with_name("throughput.csv")
PUBLISHED = Path(__file__).parents[1] / "results" / "published"
STEP_TIME, RUNS_OF_POST = PUBLISHED / "step_time.csv", PUBLISHED / "runs.csv"
DIGITS = 5
SWEEPS = 12

POST_SOURCE = "Buckman and Gelada 2024: results/published/step_time.csv"
POST_DEVICE = "NVIDIA H100"
SHAPES = {124: (12, 12, 768), 355: (24, 16, 1024), 774: (36, 20, 1280), 1558: (48, 25, 1600)}
"""Layers, heads and width of GPT-2 by millions of parameters."""
PAIR = ("softmax_flash", "linear_chunked")
"""The forms of the post that a study trains."""
REVEALED = 2
"""Measured updates of a stack."""
KNOWN, DRAWS = 3, 20
"""Known runs of a stack that was not seen, and how often they are drawn at random."""

Row = Mapping[str, str]
Step = tuple[Row, Timing]
Error = tuple[float, float]
"""Logarithm of predicted over measured seconds, and its standard deviation."""


@dataclass(frozen=True)
class Accuracy:
    """Factors by which predictions differ from measurements."""

    what: str
    n: int
    median: float
    p90: float
    worst: float
    within: dict[float, float]
    """Share of times in their interval by its level."""

    @classmethod
    def of(cls, what: str, errors: Iterable[Error]) -> "Accuracy":
        away_i, sd_i = np.abs(np.array(list(errors))).T
        factor_i = np.exp(away_i)
        within = {level: float((away_i < z * sd_i).mean()) for level, z in QUANTILES.items()}
        p90, worst = float(np.quantile(factor_i, 0.9)), float(factor_i.max())
        return cls(what, len(away_i), float(np.median(factor_i)), p90, worst, within)


@cache
def table() -> list[Accuracy]:
    """All checks."""
    post, stacks = read_post(), read()
    pair = [step for step in post if step[0]["implementation"] in PAIR]
    none, two = _stacks(post, stacks)
    return [
        Accuracy.of("a size of the post, from the others", _sizes(post)),
        Accuracy.of("four times the longest context", _contexts(pair)),
        Accuracy.of("a stack, from the others", none),
        Accuracy.of(f"a stack with {REVEALED} updates measured", two),
        Accuracy.of(f"the grid of the post with {2 * FEW} steps measured", _grid(pair, stacks)),
        Accuracy.of(f"48 runs of the post, {KNOWN} at random known", _runs_of_post(post, stacks)),
    ]


def pooled(stacks: Iterable[Sequence[Timing]], sd: float = SPREAD) -> Coefficients:
    """What other stacks say of one that nobody has measured: their mean, and how they differ."""
    centre, wide, between = prior()
    stacks, mean, k_KK = list(stacks), centre.copy(), np.diag(between**2)
    precision = np.diag(wide**-2)
    for _ in range(SWEEPS):
        precision, h_K = np.diag(wide**-2), centre / wide**2
        for timings in stacks:
            x_iK, y_i = np.array([t.x_K for t in timings]), np.log([t.seconds for t in timings])
            theta = Coefficients(mean, k_KK).measured(timings, sd).mean_K
            f_i, j_iK = log_seconds(theta, x_iK)
            # The coefficients of the stack are integrated out.
            v_ii = np.linalg.inv(j_iK @ k_KK @ j_iK.T + sd**2 * np.eye(len(y_i)))
            precision = precision + j_iK.T @ v_ii @ j_iK
            h_K = h_K + j_iK.T @ v_ii @ (y_i - f_i + j_iK @ theta)
        mean = mean + 0.7 * (np.linalg.solve(precision, h_K) - mean)
    return Coefficients(mean, np.linalg.inv(precision) + k_KK)


def unseen(path: Path) -> list[Accuracy]:
    """The checks on runs that no fit has seen."""
    return [Accuracy.of(f"195 runs, {what}", errors) for what, errors in _unseen(path)]


def lines(checks: Iterable[Accuracy]) -> list[list[str]]:
    """Checks as a table with a header, as the documentation has it."""
    head = ["predicted", "times", "median", "90 %", "worst", "in 80 %", "in 95 %"]
    rows = [
        [a.what, str(a.n), *(f"{factor:.3f}" for factor in (a.median, a.p90, a.worst)),
         *(f"{a.within[level]:.2f}" for level in (0.8, 0.95))]
        for a in checks
    ]  # fmt: skip
    return [head, *rows]


def _sizes(post: Sequence[Step]) -> Iterable[Error]:
    """Products and launches are those of all forms, so all are fitted."""
    for size in {row["params_millions"] for row, _ in post}:
        known = Coefficients.counted().measured(
            _times(step for step in post if step[0]["params_millions"] != size)
        )
        yield from _errors(
            known,
            (s for s in post if s[0]["params_millions"] == size and s[0]["implementation"] in PAIR),
        )


def _contexts(pair: Sequence[Step]) -> Iterable[Error]:
    """From up to a quarter of the longest context of each size and form to it."""
    longest: dict[tuple[str, str], int] = {}
    for row, _ in pair:
        series = row["params_millions"], row["implementation"]
        longest[series] = max(longest.get(series, 0), int(row["context"]))
    far = [
        4 * int(row["context"]) > longest[row["params_millions"], row["implementation"]]
        for row, _ in pair
    ]
    near = [step for step, is_far in zip(pair, far, strict=True) if not is_far]
    known = Coefficients.counted().measured(_times(near))
    return _errors(known, (step for step, is_far in zip(pair, far, strict=True) if is_far))


def _stacks(
    post: Sequence[Step], stacks: Mapping[str, Sequence[Step]]
) -> tuple[list[Error], list[Error]]:
    """Each published stack from all others, and with two of its updates measured."""
    none: list[Error] = []
    two: list[Error] = []
    for name, steps in stacks.items():
        others = [other for n, other in stacks.items() if n != name]
        known = pooled(_times(other) for other in (post, *others))
        none += _errors(known, steps)
        if len(steps) > REVEALED:
            two += _revealed(known, steps, _spread([read_work(row) for row, _ in steps], REVEALED))
    return none, two


def _unseen(path: Path) -> Iterable[tuple[str, list[Error]]]:
    """Runs that no fit has seen, with none and with a few of them known."""
    known, steps = pooled(map(_times, (read_post(), *read().values()))), _read_runs(path)
    works = [_of_run(row) for row, _ in steps]
    yield "none known", _errors(known, steps, known.trained)
    yield f"{KNOWN} known, far apart", _known_runs(known, steps, _spread(works, KNOWN))
    yield f"{KNOWN} known, at random", _drawn(known, steps)
    small = sorted(range(len(works)), key=lambda i: works[i].layers * works[i].width ** 2)
    yield f"{KNOWN} known, the smallest", _known_runs(known, steps, small[:KNOWN])


def _runs_of_post(post: Sequence[Step], stacks: Mapping[str, Sequence[Step]]) -> list[Error]:
    """The runs of the post on eight devices, from the times of others and of its own steps."""
    with RUNS_OF_POST.open(newline="") as file:
        rows = list(csv.DictReader(file))
    method: dict[str, str] = dict(zip(("softmax", "linear"), PAIR, strict=True))
    steps = []
    for row in rows:
        one = _work({**row, "implementation": method[row["attention"]]})
        work = replace(one, tokens=2**16, micro_tokens=max(one.context, 2**14), gpus=8)
        seconds = 3600 * float(row["hours"]) / float(row["last_update"])
        steps.append((row, Timing(vector(work, devices.DEVICES[POST_DEVICE]), seconds)))
    return _drawn(pooled(map(_times, (post, *stacks.values()))), steps)


def _drawn(known: Coefficients, steps: Sequence[Step]) -> list[Error]:
    """All runs but a few that are known, which are drawn several times."""
    rng = np.random.default_rng(0)
    draws = [rng.choice(len(steps), KNOWN, replace=False) for _ in range(DRAWS)]
    return [error for picked in draws for error in _known_runs(known, steps, picked.tolist())]


def _known_runs(known: Coefficients, steps: Sequence[Step], picked: Sequence[int]) -> list[Error]:
    """All runs but some, which are known."""
    fitted = known.trained_on(_times(steps[i] for i in picked))
    rest = (step for i, step in enumerate(steps) if i not in picked)
    return _errors(fitted, rest, fitted.trained)


def _grid(pair: Sequence[Step], stacks: Mapping[str, Sequence[Step]]) -> list[Error]:
    """The steps of the post from other stacks and a few of its own, as a study measures them."""
    picked: list[int] = []
    for form in PAIR:
        near = [
            i
            for i, (row, _) in enumerate(pair)
            if row["implementation"] == form and int(row["context"]) <= NEAR
        ]
        picked += [near[i] for i in _spread([_work(pair[i][0]) for i in near], FEW)]
    return _revealed(pooled(map(_times, stacks.values())), pair, picked)


def _spread(works: Iterable[Work], n: int) -> list[int]:
    """Indices of a few updates, chosen as calibrations are."""
    return spread([Place(w.layers, w.heads, w.width, w.context) for w in works], n)


def _revealed(known: Coefficients, steps: Sequence[Step], picked: Sequence[int]) -> list[Error]:
    """All steps but some, which are measured."""
    measured = known.measured(_times(steps[i] for i in picked), SPREAD)
    return _errors(measured, (step for i, step in enumerate(steps) if i not in picked))


def _times(steps: Iterable[Step]) -> list[Timing]:
    return [timing for _, timing in steps]


def _errors(known: Coefficients, steps: Iterable[Step], spread: float = SPREAD) -> list[Error]:
    found = [(known.predict(timing.x_K, spread), timing.seconds) for _, timing in steps]
    return [(float(np.log(p.seconds / seconds)), p.sd) for p, seconds in found]


def read(path: Path = FACTS) -> dict[str, list[Step]]:
    """Published updates with their rows, by stack."""
    stacks: dict[str, list[Step]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            x_K = vector(read_work(row), devices.DEVICES[row["device"]])
            timing = Timing(x_K, float(row["seconds"]))
            stacks.setdefault(row["stack"], []).append((row, timing))
    return stacks


def _read_runs(path: Path) -> list[Step]:
    """Training runs on H100s with their rows; micro-batches are taken as those of the stacks."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    device = devices.DEVICES[POST_DEVICE]
    return [(r, Timing(vector(_of_run(r), device), float(r["step_seconds"]))) for r in rows]


def _of_run(row: Row) -> Work:
    layers, width, context, gpus = (int(row[n]) for n in ("layers", "width", "context", "gpus"))
    return Work(
        kinds={"flash": layers}, heads=width // int(row["head_dim"]), width=width,
        context=context, gpus=gpus, micro_tokens=max(2**14, context),
        tokens=int(float(row["batch"])) * context // gpus, recompute=1.0,
    )  # fmt: skip


def read_work(row: Row) -> Work:
    """The work of a row of a table whose columns are the fields, with ``kind`` and ``layers`` in
    place of ``kinds``; empty ones have their default."""
    read = {"recompute": float, "attended": float}
    known = {field.name: read.get(field.name, int) for field in fields(Work)}
    values: dict[str, Any] = {
        name: known[name](text) for name, text in row.items() if name in known and text
    }
    return Work(kinds={row["kind"]: int(row["layers"])}, **values)


def read_post() -> list[Step]:
    """The steps of the post with their rows."""
    with STEP_TIME.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["milliseconds"]]
    device = devices.DEVICES[POST_DEVICE]
    return [(r, Timing(vector(_work(r), device), float(r["milliseconds"]) / 1e3)) for r in rows]


def _work(row: Row) -> Work:
    layers, heads, width = SHAPES[int(row["params_millions"])]
    method = row["implementation"].replace("_", " ", 1)
    return timed_steps.step(method, layers, heads, width, int(row["context"]), recompute=1.0)


def fit(out: Path) -> None:
    """Fit the coefficients to all published updates and write them."""
    post = read_post()
    known = pooled(map(_times, (post, *read().values())))
    write_json(out, _content(known, {POST_SOURCE: len(post), **_sources()}))


def _sources() -> dict[str, int]:
    with FACTS.open(newline="") as file:
        named = [row["source"] for row in csv.DictReader(file)]
    return {source: named.count(source) for source in dict.fromkeys(named)}


def _content(known: Coefficients, sources: dict[str, int]) -> dict[str, Any]:
    rounded = [
        [float(f"{value:.{DIGITS}g}") for value in row[: i + 1]]
        for i, row in enumerate(known.cov_KK)
    ]
    return {
        "sources": sources,
        "names": [*NAMES, "stack"],
        "units": [term.unit for term in TERMS.values()],
        "coefficients": [float(f"{value:.3g}") for value in np.exp(known.mean_K)],
        "mean": [float(f"{value:.{DIGITS}g}") for value in known.mean_K],
        "covariance": rounded,
    }


def main() -> None:
    match sys.argv[1:]:
        case ["--unseen", runs]:
            checks = unseen(Path(runs))
        case [out]:
            fit(Path(out))
            checks = table()
        case _:
            checks = table()
    print("\n".join(aligned(lines(checks), left={0})))


if __name__ == "__main__":
    main()
