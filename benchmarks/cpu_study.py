"""Answers to the questions of results/measured/cpu-python/questions.md, by the rules given there.

    python benchmarks/cpu_study.py                 # print them
    python benchmarks/cpu_study.py results/cpu     # those of a study that still runs
    python benchmarks/cpu_study.py --write         # write them into docs/cpu_study.md

Every number is from a query of the store. What has too few runs is left out.
"""

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import rankdata

from lmscaling import Study
from lmscaling.fits import seeds, slopes
from lmscaling.fits.noise import holm
from lmscaling.fits.uncertainty import Interval

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "measured" / "cpu-python"
PAGE = ROOT / "docs" / "cpu_study.md"
MARKS = ("<!-- answers: begin -->", "<!-- answers: end -->")

BASELINE, SMALL, LARGE, CONTEXT, LONG = "softmax", "100k", "800k", 2048, 8192
GROWTH = 0.002
"""Nats per doubling of the context, question 1."""
IMPROVEMENT = 0.01
"""Nats by which a longer window must lower the loss, question 2."""
CLOSED = 0.02
"""Nats, question 3."""
CONSTANT = 320
"""Updates before the rate falls."""

FINAL = """
    SELECT attention, size, context, seed, loss FROM final
    WHERE source = 'measured' AND status = 'done' ORDER BY ALL
"""
CURVES = f"""
    SELECT attention, size, context, seed, v.update, val_loss AS loss
    FROM validation v JOIN chosen USING (run)
    WHERE v.status = 'done' AND v.update <= {CONSTANT} ORDER BY ALL
"""
PACE = """
    WITH stretches AS (
        SELECT run, (train_seconds - lag(train_seconds) OVER own) / 10 AS seconds
        FROM updates WHERE surviving AND "update" % 10 = 0
        WINDOW own AS (PARTITION BY run ORDER BY "update")
    )
    SELECT attention, size, context, quantile_cont(seconds, 0.1) AS seconds
    FROM stretches JOIN status USING (run) JOIN chosen USING (run)
    WHERE status = 'done' AND seconds IS NOT NULL
    GROUP BY ALL ORDER BY ALL
"""
"""CPU seconds of an update."""
WINDOWS = f"""
    SELECT attention, seed, eval_context AS "window", sum(loss * tokens) / sum(tokens) AS loss
    FROM by_position
    WHERE axis = 'document' AND size = '{SMALL}' AND context = {LONG} AND "start" >= 2048
    GROUP BY ALL ORDER BY ALL
"""
PROGRESS = """
    SELECT count(*) FILTER (status = 'done') AS finished, count(*) AS runs
    FROM (SELECT run, status FROM status UNION SELECT run, status FROM tasks)
    WHERE status <> 'skipped'
"""
RECALL = """
    SELECT attention, avg(score) AS recall
    FROM task_scores WHERE task = 'recall' GROUP BY attention ORDER BY attention
"""

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
    rows = [["size", "at equal", *(f"{c:,}" for c in contexts), "nats per doubling", "verdict"]]
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
        rows.append([size, axis, *means, shown(found, 4), f"{verdict}, {len(found)} seeds"])
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
        rows.append([name, shown(gap), shown(less[name]), f"{p[name]:.3f}", verdict])
    return table(*rows)


def winners(losses: Losses, pace: Sequence[Row]) -> str:
    """Question 4."""
    seconds = {(row["attention"], row["size"], row["context"]): row["seconds"] for row in pace}
    rows = [["size", "context", "CPU s", "lowest", "loss", "tied with", "softmax minus lowest"]]
    for size, context in sizes_and_contexts(losses):
        names = [n for n, *place in losses if tuple(place) == (size, context)]
        if size not in (SMALL, LARGE) or len(names) < 2:
            continue
        means = {n: float(np.mean([*losses[n, size, context].values()])) for n in names}
        best = min(means, key=lambda name: means[name])
        others = [name for name in names if name != best]
        p = corrected([[*gaps(losses, n, size, context, best).values()] for n in others])
        tied = [name for name, value in zip(others, p, strict=True) if not value < 0.05]
        least = min(CONSTANT * seconds[n, size, context] for n in names)
        behind = [*gaps(losses, BASELINE, size, context, best).values()]
        rows.append([
            size, f"{context:,}", f"{least:.0f}", best, f"{means[best]:.3f}",
            ", ".join(tied) or "none", "" if best == BASELINE else shown(behind),
        ])  # fmt: skip
    return table(*rows)


def pooled(losses: Losses, chosen: Callable[[Cell], bool]) -> tuple[float, int]:
    """Variance between seeds over some cells, and its degrees of freedom."""
    own = [[*values.values()] for cell, values in losses.items() if chosen(cell)]
    freedom = sum(len(values) - 1 for values in own)
    squares = sum(float(np.var(values)) * len(values) for values in own)
    return squares / freedom if freedom else math.nan, freedom


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
        (first, n), (second, m) = (pooled(losses, part) for part in parts)
        if not n or not m:
            continue
        ratio = first / second
        low, high = (ratio / float(f_distribution.ppf(q, n, m)) for q in (0.975, 0.025))
        verdict = "no difference shown" if low <= 1 <= high else "depends"
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


def query(study: Study, text: str) -> list[Row]:
    return [{str(k): v for k, v in row.items()} for row in study.query(text).to_dict("records")]


def answers(study: Study) -> Iterator[tuple[str, str]]:
    """Question and answer."""
    losses, curves, pace = by_cell(query(study, FINAL)), query(study, CURVES), query(study, PACE)
    every = list(dict.fromkeys(row["attention"] for row in pace))
    pair = at_equal_seconds(curves, pace, [BASELINE, "linear"])
    yield (
        "1. The gap of linear attention over context",
        growth({"updates": losses, "CPU seconds": pair}),
    )
    yield "2. Loss by window, and the window that is used", windows(query(study, WINDOWS))
    yield f"3. What closes the gap at context {CONTEXT:,}", closing(losses)
    yield (
        "4. The lowest loss at equal CPU seconds",
        winners(at_equal_seconds(curves, pace, every), pace),
    )
    yield "5. Noise between seeds", noise(losses)
    yield "6. Recall and the gap", predicts(losses, query(study, RECALL))


def page(study: Study) -> str:
    """What the page says: the answers, and before all runs have finished how many have.

    Intervals over the seeds that happen to be there first would be read as results.
    """
    (progress,) = query(study, PROGRESS)
    if progress["finished"] < progress["runs"]:
        return (
            f"The study is not complete: {progress['finished']} of {progress['runs']} runs have "
            "finished. The questions are answered when all have."
        )
    return "\n\n".join(f"### {question}\n\n{answer}" for question, answer in answers(study))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    args = parser.parse_args()
    study = Study(args.folder, fresh=True)
    if args.write:
        before, rest = PAGE.read_text().split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{page(study)}\n\n{MARKS[1]}{after}")
    else:
        print("\n\n".join(f"### {question}\n\n{answer}" for question, answer in answers(study)))


if __name__ == "__main__":
    main()
