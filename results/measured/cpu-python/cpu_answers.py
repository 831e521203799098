"""The rules of questions.md, applied to numbers.

Where a question is not decided, an answer names the seeds that would find a difference as large as
the measured one in four of five studies, if its scatter is the measured one.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame
from scipy.stats import f as f_distribution
from scipy.stats import rankdata

from lmscaling.fits import forecast_scores, seeds, slopes
from lmscaling.fits.noise import MOST_SEEDS, holm, seeds_needed
from lmscaling.fits.uncertainty import LEVEL, Interval

BASELINE, SMALL, LARGE, CONTEXT, LONG = "softmax", "100k", "800k", 2048, 8192
HELD_OUT_CONTEXT = 512
GROWTH = 0.002
"""Nats per doubling of the context, question 1."""
IMPROVEMENT = 0.01
"""Nats by which a longer window must lower the loss, question 2."""
CLOSED = 0.02
"""Nats, question 3."""
CONSTANT = 320
"""Updates before the rate falls."""

Row = dict[str, Any]
Cell = tuple[str, str, int]
"""Attention, size, context."""
Losses = dict[Cell, dict[int, float]]
"""Losses by seed."""


def by_cell(rows: Sequence[Row]) -> Losses:
    losses: Losses = defaultdict(dict)
    for row in rows:
        losses[row["attention"], row["size"], row["context"]][row["seed"]] = row["loss"]
    return dict(losses)


def at_equal_seconds(curves: Sequence[Row], pace: Sequence[Row], names: Sequence[str]) -> Losses:
    """Losses at the least seconds in which an attention spends the updates at a constant rate."""
    seconds = {(row["attention"], row["size"], row["context"]): row["seconds"] for row in pace}
    runs: dict[Cell, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in curves:
        cell = row["attention"], row["size"], row["context"]
        runs[cell][row["seed"]].append((math.log(row["update"]), row["loss"]))
    found: Losses = {}
    for size, context in dict.fromkeys(cell[1:] for cell in runs):
        cells = [(name, size, context) for name in names if (name, size, context) in runs]
        least = min((CONSTANT * seconds[cell] for cell in cells), default=0.0)
        for cell in cells:
            update = math.log(least / seconds[cell])
            own = {seed: np.array(points).T for seed, points in runs[cell].items()}
            if all(update >= x[0] for x, _ in own.values()):
                found[cell] = {seed: float(np.interp(update, x, y)) for seed, (x, y) in own.items()}
    return found


def sizes_and_contexts(losses: Losses) -> list[tuple[str, int]]:
    order = {SMALL: 0, "300k": 1, LARGE: 2, "2700k": 3}
    return sorted({cell[1:] for cell in losses}, key=lambda place: (order[place[0]], place[1]))


def gaps(
    losses: Losses, name: str, size: str, context: int, to: str = BASELINE
) -> dict[int, float]:
    """Differences to another attention by seed, for the seeds that both have."""
    one, other = (losses.get((each, size, context), {}) for each in (name, to))
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def shown(values: Sequence[float], digits: int = 3) -> str:
    """The mean with its interval."""
    centre, interval = seeds.mean(values)
    if interval is None:
        return f"{centre:+.{digits}f}, one seed"
    return f"{centre:+.{digits}f} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"


def needed(values: Sequence[float], threshold: float = 0.0, tests: int = 1) -> str:
    """Seeds that would tell such a mean from a threshold, corrected for a number of tests."""
    if len(values) < 2:
        return "?"
    gap, sd = float(np.mean(values)) - threshold, float(np.std(values, ddof=1))
    n = seeds_needed(gap, sd, 1 - (1 - LEVEL) / tests, pooled=0)
    return f"over {MOST_SEEDS:,}" if n is None else str(n)


def needed_for_ratio(ratio: float, cells: tuple[int, int]) -> str:
    """The same for a ratio of two variances, each pooled over a number of cells."""
    for n in range(2, MOST_SEEDS + 1):
        one, other = (number * (n - 1) for number in cells)
        low, high = (float(f_distribution.ppf(q, one, other)) / ratio for q in (0.025, 0.975))
        if f_distribution.sf(high, one, other) + f_distribution.cdf(low, one, other) >= 0.8:
            return str(n)
    return f"over {MOST_SEEDS:,}"


def table(*rows: Sequence[str]) -> str:
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others))


def corrected(samples: Sequence[Sequence[float]]) -> list[float]:
    """Two-sided p-values of means of differences, by Holm's method; NaN for one seed."""
    return list(holm([p if (p := seeds.p_value(s)) is not None else math.nan for s in samples]))


def bounds(interval: Interval | None) -> tuple[float, float]:
    if interval is None:
        return -math.inf, math.inf
    return (
        -math.inf if interval.low is None else interval.low,
        math.inf if interval.high is None else interval.high,
    )


def growth(equal: dict[str, Losses]) -> str:
    """Question 1."""
    contexts = sorted({cell[2] for losses in equal.values() for cell in losses})
    rows = [
        ["size", "at equal", *(f"{c:,}" for c in contexts), "nats per doubling", "seeds", "verdict"]
    ]
    for size, (axis, losses) in itertools.product((SMALL, LARGE), equal.items()):
        wide = {context: gaps(losses, "linear", size, context) for context in contexts}
        common = sorted(set.intersection(*(set(own) for own in wide.values())))
        if not common:
            continue
        found = [
            slopes.line(np.log2(contexts), [wide[c][seed] for c in contexts])[0] for seed in common
        ]
        low, high = bounds(seeds.mean(found)[1])
        verdict = "grows" if low > GROWTH else "does not grow" if high < GROWTH else "undecided"
        means = [f"{np.mean([*wide[c].values()]):+.3f}" for c in contexts]
        if verdict == "undecided":
            verdict += f"; {needed(found, GROWTH)} needed"
        rows.append([size, axis, *means, shown(found, 4), str(len(found)), verdict])
    return table(*rows)


def windows(rows: Sequence[Row]) -> str:
    """Question 2."""
    losses: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        losses[row["attention"]][row["seed"]][row["window"]] = row["loss"]
    lengths = sorted({row["window"] for row in rows})
    lines = [["attention", *(f"{n:,}" for n in lengths), "window used, by seed"]]
    for name, of_name in losses.items():
        ends = []
        for own in of_name.values():
            left = {n: own[n] - min(own[m] for m in lengths if m >= n) for n in lengths}
            ends.append(next(n for n in lengths if left[n] <= IMPROVEMENT))
        means = [f"{np.mean([own[n] for own in of_name.values()]):.3f}" for n in lengths]
        lines.append([name, *means, ", ".join(f"{end:,}" for end in ends)])
    return table(*lines)


def closing(losses: Losses) -> str:
    """Question 3."""
    names = [n for n, size, c in losses if (size, c) == (SMALL, CONTEXT) and n != BASELINE]
    others = [name for name in names if name != "linear"]
    less = {n: [*gaps(losses, n, SMALL, CONTEXT, "linear").values()] for n in others}
    p = dict(zip(others, corrected([*less.values()]), strict=True))
    rows = [["attention", "gap to softmax, nats", "minus linear, nats", "p", "verdict"]]
    for name in names:
        gap = [*gaps(losses, name, SMALL, CONTEXT).values()]
        if not gap:
            continue
        if name == "linear":
            rows.append([name, shown(gap), "", "", ""])
            continue
        narrows = np.mean(less[name]) < 0 and p[name] < 0.05
        closes = bounds(seeds.mean(gap)[1])[1] < CLOSED
        verdict = "closes" if closes else "narrows" if narrows else "neither shown"
        if verdict == "neither shown":
            verdict += f"; {needed(less[name], tests=len(others))} seeds needed"
        rows.append([name, shown(gap), shown(less[name]), f"{p[name]:.3f}", verdict])
    return table(*rows)


def winners(losses: Losses, pace: Sequence[Row]) -> str:
    """Question 4."""
    seconds = {(row["attention"], row["size"], row["context"]): row["seconds"] for row in pace}
    rows = [
        [
            "size",
            "context",
            "CPU s",
            "lowest",
            "loss",
            "tied with (seeds needed)",
            "softmax minus lowest",
        ]
    ]
    for size, context in sizes_and_contexts(losses):
        names = [n for n, *place in losses if tuple(place) == (size, context)]
        if size not in (SMALL, LARGE) or len(names) < 2:
            continue
        means = {n: float(np.mean([*losses[n, size, context].values()])) for n in names}
        best = min(means, key=lambda name: means[name])
        others = [name for name in names if name != best]
        p = corrected([[*gaps(losses, n, size, context, best).values()] for n in others])
        tied = [
            f"{n} ({needed([*gaps(losses, n, size, context, best).values()], tests=len(others))})"
            for n, value in zip(others, p, strict=True)
            if not value < 0.05
        ]
        least = min(CONSTANT * seconds[n, size, context] for n in names)
        behind = [*gaps(losses, BASELINE, size, context, best).values()]
        rows.append([
            size, f"{context:,}", f"{least:.0f}", best, f"{means[best]:.3f}",
            ", ".join(tied) or "none", "" if best == BASELINE else shown(behind),
        ])  # fmt: skip
    return table(*rows)


def pooled(losses: Losses, chosen: Callable[[Cell], bool]) -> tuple[float, int, int]:
    """Variance between seeds over some cells, its degrees of freedom, and the number of cells."""
    own = [[*values.values()] for cell, values in losses.items() if chosen(cell)]
    freedom = sum(len(values) - 1 for values in own)
    squares = sum(float(np.var(values)) * len(values) for values in own)
    return squares / freedom if freedom else math.nan, freedom, len(own)


def noise(losses: Losses) -> str:
    """Question 5."""
    contexts = sorted({c for _, size, c in losses if size == SMALL})
    large = {(name, c) for name, size, c in losses if size == LARGE}
    pairs = [
        (f"{contexts[-1]:,} and {contexts[0]:,}, {SMALL}",
         lambda cell: cell[1:] == (SMALL, contexts[-1]),
         lambda cell: cell[1:] == (SMALL, contexts[0])),
        (f"{LARGE} and {SMALL}",
         lambda cell: cell[1] == LARGE,
         lambda cell: cell[1] == SMALL and (cell[0], cell[2]) in large),
    ]  # fmt: skip
    rows = [["compared", "standard deviations, nats", "ratio of variances", "verdict"]]
    for name, *parts in pairs:
        (first, n, one), (second, m, other) = (pooled(losses, part) for part in parts)
        if not n or not m:
            continue
        ratio = first / second
        low, high = (ratio / float(f_distribution.ppf(q, n, m)) for q in (0.975, 0.025))
        verdict = "depends"
        if low <= 1 <= high:
            verdict = f"no difference shown; {needed_for_ratio(ratio, (one, other))} seeds needed"
        rows.append([name, f"{math.sqrt(first):.4f} and {math.sqrt(second):.4f}",
                     f"{ratio:.2f} ({low:.2f} to {high:.2f})", verdict])  # fmt: skip
    return table(*rows)


def predicts(losses: Losses, recall: Sequence[Row]) -> str:
    """Question 6."""
    rows, pairs = [["attention", "recall of 16 pairs", f"gap at {CONTEXT:,}, nats"]], []
    for row in recall:
        gap = [*gaps(losses, row["attention"], SMALL, CONTEXT).values()]
        if row["attention"] != BASELINE and gap:
            pairs.append((row["recall"], float(np.mean(gap))))
            rows.append([row["attention"], f"{row['recall']:.3f}", f"{pairs[-1][1]:+.3f}"])
    if len(pairs) < 5:
        return table(*rows)
    x, y = (rankdata(values) for values in np.array(pairs).T)
    rho = np.corrcoef(x, y)[0, 1]
    every = np.array([np.corrcoef(x, order)[0, 1] for order in itertools.permutations(y)])
    p = float(np.mean(every <= rho + 1e-12))
    verdict = "predicts" if p < 0.05 else "not shown"
    return f"{table(*rows)}\n\nSpearman's correlation {rho:.2f}, one-sided p {p:.3f}: {verdict}."


def interval_of(row: Row) -> tuple[float, float]:
    """The 95 % interval of a sealed prediction."""
    (low,), (high,) = forecast_scores.interval(DataFrame([row]), LEVEL)
    return low, high


def is_inside(row: Row) -> bool:
    """Whether the measured loss is in the sealed 95 % interval."""
    low, high = interval_of(row)
    return low <= row["measured"] <= high


def held_out(rows: Sequence[Row], sizes: Sequence[Row]) -> str:
    """The sealed forecast of 300k, and a ruler through 100k and 800k, which the seal had seen."""
    lines = [["attention", "seed", "sealed, 95 %", "measured", "inside"]]
    worth = [["attention", "measured minus sealed", "minus a ruler", "what the seal was worth"]]
    scored = [row for row in rows if row["state"] == "scored" and row["size"] == "300k"]
    for row in scored:
        low, high = interval_of(row)
        lines.append([
            row["attention"], str(row["seed"]), f"{row['median']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['measured']:.3f}", "yes" if is_inside(row) else "no",
        ])  # fmt: skip
    for name in dict.fromkeys(row["attention"] for row in scored):
        own = {row["size"]: row for row in sizes if row["attention"] == name}
        x, y = ([own[size][axis] for size in (SMALL, LARGE)] for axis in "xy")
        ruler = math.exp(np.interp(own["300k"]["x"], x, y))
        part = DataFrame([row for row in scored if row["attention"] == name]).assign(
            baseline="a ruler", baseline_median=ruler, near=math.exp(y[1]), far=math.exp(y[0])
        )
        away = (f"{(part['measured'] - guess).mean():+.3f}" for guess in (part["median"], ruler))
        worth.append([name, *away, forecast_scores.worth(part)])
    return f"{table(*lines)}\n\n{table(*worth)}" if scored else ""


def line(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """By attention the loss of 2700k on the line through three sizes, and the guess to beat."""
    found: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(row["attention"] for row in rows):
        own = {row["size"]: row for row in rows if row["attention"] == name}
        if len(own) < 4:
            continue
        x, y = ([own[size][axis] for size in (SMALL, "300k", LARGE)] for axis in "xy")
        slope, offset = np.polyfit(x, y, 1)
        guess = 2 * math.exp(y[2]) - math.exp(y[1])
        found[name] = math.exp(offset + slope * own["2700k"]["x"]), guess
    return found


def beyond(rows: Sequence[Row]) -> str:
    """What 2700k measured beside the line that was written down before."""
    measured = {row["attention"]: math.exp(row["y"]) for row in rows if row["size"] == "2700k"}
    lines = [["attention", "line", "guess", "measured", "error of the line, of the guess", ""]]
    for name, (predicted, guess) in line(rows).items():
        errors = predicted - measured[name], guess - measured[name]
        lines.append([
            name, f"{predicted:.3f}", f"{guess:.3f}", f"{measured[name]:.3f}",
            f"{errors[0]:+.3f}, {errors[1]:+.3f}",
            "good" if abs(errors[0]) < abs(errors[1]) else "not good",
        ])  # fmt: skip
    return table(*lines) if len(lines) > 1 else ""


def confirmed(texts: dict[str, Losses]) -> str:
    """Whether another text gives the same."""
    rows = [["text", "gap", "128, by seed", "2,048, by seed"]]
    signs, halves = set(), True
    for text, losses in texts.items():
        own = {
            (name, c): gaps(losses, name, SMALL, c)
            for name in ("linear", "gated_delta")
            for c in (128, CONTEXT)
        }
        for name in ("linear", "gated_delta"):
            values = ([*own[name, c].values()] for c in (128, CONTEXT))
            rows.append([text, name, *(", ".join(f"{v:+.3f}" for v in part) for part in values)])
        for seed, gap in own["linear", CONTEXT].items():
            signs.add(gap > own["linear", 128][seed])
            halves &= own["gated_delta", CONTEXT][seed] < gap / 2
    verdict = "confirmed" if len(signs) == 1 and halves else "not confirmed"
    return f"{table(*rows)}\n\nThe result on Python is {verdict}."
