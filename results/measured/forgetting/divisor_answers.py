"""Answers to S1 to S4 of questions.md from divisor.jsonl.

    python results/measured/forgetting/divisor_answers.py

Runs that go on from one model are not independent. So shares of runs that blow up stand beside
their numbers by model, and differences of losses have intervals over the means of the models.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest, fisher_exact

from lmscaling.fits import seeds

LINES = Path(__file__).with_name("divisor.jsonl")
SUSPECT = "rounded, sum"
Row = dict[str, Any]


def form(row: Row) -> str:
    return f"{row['feature']}, {row['norm']}"


def usual(row: Row) -> bool:
    """Whether a branch has the usual warm-up and windows."""
    return bool(row["warmup"] == 20 and not row["windows"])


def counted(rows: Sequence[Row]) -> str:
    """How many blew up, with an exact interval, and by model."""
    blown = sum(row["is_blown"] for row in rows)
    ends = binomtest(blown, len(rows)).proportion_ci(method="exact")
    trunks = sorted({row["trunk"] for row in rows})
    by = [sum(r["is_blown"] for r in rows if r["trunk"] == trunk) for trunk in trunks]
    share = f"{ends.low:.1%} to {ends.high:.1%}"
    return f"{blown} of {len(rows)} ({share}), by model {', '.join(map(str, by))}"


def more(many: Sequence[Row], few: Sequence[Row]) -> float:
    """The p-value that runs of the first kind blow up no more often (Fisher, one-sided)."""
    table = [
        [sum(r["is_blown"] for r in rows), sum(not r["is_blown"] for r in rows)]
        for rows in (many, few)
    ]
    _, p = fisher_exact(table, alternative="greater")
    assert isinstance(p, float)
    return p


def spikes(rows: Sequence[Row]) -> Iterator[str]:
    """S1."""
    by: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if usual(row) and (row["context"], row["times"]) == (4096, 12.0):
            by[form(row)].append(row)
    for name, own in by.items():
        yield f"S1, {name}: {counted(own)}"
    exact = [name for name in by if not name.startswith("rounded")]
    p = max(more(by[SUSPECT], by[name]) for name in exact)
    yield f"S1: more of {SUSPECT} than of any exact form, p {p:.2g}"
    for name in exact:
        blown = sum(row["is_blown"] for row in by[name])
        test = binomtest(blown, len(by[name]), alternative="less")
        most = test.proportion_ci(0.95, method="exact").high
        yield f"S1, {name}: at most {most:.1%}, {'holds' if most <= 0.05 else 'not shown'}"


def paired(
    rows: Sequence[Row], one: Callable[[Row], bool], other: Callable[[Row], bool], column: str
) -> dict[tuple[int, int], tuple[float, float]]:
    """Two values by model and text."""
    found: dict[tuple[int, int], list[float]] = defaultdict(lambda: [math.nan, math.nan])
    for row in rows:
        for i, is_it in enumerate((one, other)):
            if is_it(row) and row[column] is not None:
                found[row["trunk"], row["text"]][i] = row[column]
    return {key: (a, b) for key, (a, b) in found.items() if a == a and b == b}


def divisors(rows: Sequence[Row]) -> Iterator[str]:
    """S2, by sign tests: how many of the same texts have a smaller divisor."""
    for name in ("softplus, sum", "elu+1, sum", SUSPECT):
        own = [row for row in rows if usual(row) and form(row) == name]
        places = [("context", 256, 4096, "times", t) for t in (4.0, 12.0)]
        places += [("times", 4.0, 12.0, "context", c) for c in (256, 4096)]
        for axis, less, greater, fixed, value in places:
            part = [row for row in own if row[fixed] == value]
            pairs = paired(
                part,
                lambda r, axis=axis, less=less: r[axis] == less,
                lambda r, axis=axis, greater=greater: r[axis] == greater,
                "smallest_divisor",
            )
            fell = sum(b < a for a, b in pairs.values())
            p = binomtest(fell, len(pairs), alternative="greater").pvalue
            words = f"{axis} {less:g} to {greater:g} at {fixed} {value:g}"
            yield f"S2, {name}, {words}: smaller in {fell} of {len(pairs)}, p {p:.2g}"


def added(rows: Sequence[Row]) -> Iterator[str]:
    """S3, on the texts that have both."""
    place = [r for r in rows if usual(r) and (r["context"], r["times"]) == (4096, 12.0)]
    with_it = [row for row in place if form(row) == "rounded, 1e-6, sum"]
    texts = {(row["trunk"], row["text"]) for row in with_it}
    without = [r for r in place if form(r) == SUSPECT and (r["trunk"], r["text"]) in texts]
    yield f"S3, with 1e-6: {counted(with_it)}; without: {counted(without)}"
    yield f"S3: more with it, p {more(with_it, without):.2g}"
    slow = [row for row in rows if form(row) == SUSPECT and row["warmup"] == 100]
    yield f"S3, {SUSPECT}, warm-up 100: {counted(slow)}"


def damage(rows: Sequence[Row]) -> Iterator[str]:
    """S4: the rise of the loss at four times the rate, between contexts."""
    own = [r for r in rows if r["times"] == 4.0 and form(r) == "softplus, sum"]
    for windows in (0, 16):
        pairs = paired(
            own,
            lambda r: r["context"] == 256,
            lambda r, windows=windows: r["context"] == 4096 and r["windows"] == windows,
            "rise",
        )
        means = [
            [b - a for (trunk, _), (a, b) in pairs.items() if trunk == one]
            for one in sorted({trunk for trunk, _ in pairs})
        ]
        centre, ends = seeds.mean([sum(part) / len(part) for part in means])
        said = f"{ends.low:+.3f} to {ends.high:+.3f}" if ends else "no interval"
        words = f"with {windows} windows a step" if windows else "with 4,096 tokens a step"
        yield f"S4, 4,096 minus 256, {words}: {centre:+.3f} ({said}), {len(pairs)} pairs"


def said() -> Iterator[str]:
    """A line for each number."""
    rows = [json.loads(line) for line in LINES.read_text().splitlines()]
    for part in (spikes, divisors, added, damage):
        yield from part(rows)


def main() -> None:
    print(*said(), sep="\n")


if __name__ == "__main__":
    main()
