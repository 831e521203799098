"""Answers to S1 to S4 of questions.md from divisor.jsonl.

    python results/measured/forgetting/divisor_answers.py

Runs that go on from one model are not independent. So shares of runs that blow up stand beside
their numbers by model, and differences of losses have intervals over the means of the models.

These numbers were chosen before the runs. Their verdicts, which were not, follow the rule of
forgetting_answers.py, and p-values take runs as independent.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binom, binomtest, fisher_exact

from lmscaling.fits import seeds

LINES = Path(__file__).with_name("divisor.jsonl")
SUSPECT = "rounded, sum"
LEVEL = 0.05
UNITS = {"context": "tokens", "times": "times the rate"}
Row = dict[str, Any]


def form(row: Row) -> str:
    return f"{row['feature']}, {row['norm']}"


def usual(row: Row) -> bool:
    """Whether a branch has the usual warm-up and windows."""
    return bool(row["warmup"] == 20 and not row["windows"])


def verdict(p: Sequence[float], contrary: Sequence[float]) -> str:
    """From the p-values of all conditions, and those of their contraries."""
    is_refuted = min(contrary) * len(contrary) < LEVEL
    return "holds" if max(p) < LEVEL else "refuted" if is_refuted else "not decided"


def shares(k: int, n: int, bound: float) -> tuple[float, float]:
    """The p-values that k of n are a share of not less, and of not more, than the bound."""
    return float(binom.cdf(k, n, bound)), float(binom.sf(k - 1, n, bound))


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
    p = [more(by[SUSPECT], by[name]) for name in exact]
    contrary = [more(by[name], by[SUSPECT]) for name in exact]
    yield f"S1, more of {SUSPECT} than of any exact form: p {max(p):.2g}"
    for name in exact:
        blown = sum(row["is_blown"] for row in by[name])
        less, greater = shares(blown, len(by[name]), LEVEL)
        p.append(less)
        contrary.append(greater)
        test = binomtest(blown, len(by[name]), alternative="less")
        most = test.proportion_ci(0.95, method="exact").high
        shown = "holds" if most <= LEVEL else "not shown"
        yield f"S1, share of {name}: at most {most:.1%}, {shown}"
    yield f"S1: {verdict(p, contrary)}"


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
    found: list[tuple[float, float]] = []
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
            contrary, p = shares(fell, len(pairs), 0.5)
            found.append((p, contrary))
            words = f"{less:,g} to {greater:,g} {UNITS[axis]} at {value:,g} {UNITS[fixed]}"
            yield f"S2, {name}, {words}: smaller in {fell} of {len(pairs)}, p {p:.2g}"
    yield f"S2: {verdict(*zip(*found, strict=True))}"


def added(rows: Sequence[Row]) -> Iterator[str]:
    """S3, on the texts that have both."""
    place = [r for r in rows if usual(r) and (r["context"], r["times"]) == (4096, 12.0)]
    with_it = [row for row in place if form(row) == "rounded, 1e-6, sum"]
    texts = {(row["trunk"], row["text"]) for row in with_it}
    without = [r for r in place if form(r) == SUSPECT and (r["trunk"], r["text"]) in texts]
    yield f"S3, with 1e-6: {counted(with_it)}; without: {counted(without)}"
    p, contrary = more(with_it, without), more(without, with_it)
    yield f"S3, more with it: p {p:.2g}; fewer, p {contrary:.2g}"
    slow = [row for row in rows if form(row) == SUSPECT and row["warmup"] == 100]
    yield f"S3, {SUSPECT}, warm-up 100: {counted(slow)}"
    yield f"S3: {verdict([p], [contrary])}"


def damage(rows: Sequence[Row]) -> Iterator[str]:
    """S4: the rise of the loss at four times the rate, between contexts."""
    own = [r for r in rows if r["times"] == 4.0 and form(r) == "softplus, sum"]
    lows, highs = [], []
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
        low, high = (ends.low or 0.0, ends.high or 0.0) if ends else (-math.inf, math.inf)
        lows.append(low)
        highs.append(high)
        words = f"with {windows} windows a step" if windows else "with 4,096 tokens a step"
        said = f"{centre:+.3f} ({low:+.3f} to {high:+.3f})"
        yield f"S4, 4,096 minus 256, {words}: {said}, {len(pairs)} pairs"
    is_refuted = highs[0] < 0 or lows[1] > 0
    yield f"S4: {'refuted' if is_refuted else 'holds' if lows[0] > 0 else 'not decided'}"


def said() -> Iterator[str]:
    """A line for each number."""
    rows = [json.loads(line) for line in LINES.read_text().splitlines()]
    for part in (spikes, divisors, added, damage):
        yield from part(rows)


def main() -> None:
    print(*said(), sep="\n")


if __name__ == "__main__":
    main()
