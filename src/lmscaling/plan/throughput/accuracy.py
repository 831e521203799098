"""How well times are predicted that no fit has seen, on published numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmscaling.plan.throughput import facts
from lmscaling.plan.throughput.model import QUANTILES, SPREAD, Coefficients, Timing, pooled

PAIR = ("softmax_flash", "linear_chunked")
"""The forms of the post that a study trains."""
REVEALED, OF_GRID = 2, 6
"""Measured updates of a stack, and of the grid of the post."""
NEAR = 65536
"""Longest context that a calibration measures, tokens."""

Step = tuple[Mapping[str, str], Timing]
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


def table(step_time: Path) -> list[Accuracy]:
    """All checks.

    Args:
        step_time: The steps of the post, ``results/published/step_time.csv``.
    """
    post, stacks = facts.read_post(step_time), facts.read()
    pair = [step for step in post if step[0]["implementation"] in PAIR]
    none, two = _stacks({facts.POST: _times(post), **stacks})
    return [
        Accuracy.of("a size of the post, from the others", _sizes(post)),
        Accuracy.of("four times the longest context", _contexts(pair)),
        Accuracy.of("a stack, from the others", none),
        Accuracy.of(f"a stack with {REVEALED} updates measured", two),
        Accuracy.of(f"the grid of the post with {OF_GRID} steps measured", _grid(pair, stacks)),
    ]


def lines(step_time: Path) -> list[list[str]]:
    """The checks as a table with a header, as the documentation has it."""
    head = ["predicted", "times", "median", "90 %", "worst", "in 80 %", "in 95 %"]
    rows = [
        [a.what, str(a.n), *(f"{factor:.3f}" for factor in (a.median, a.p90, a.worst)),
         *(f"{a.within[level]:.2f}" for level in (0.8, 0.95))]
        for a in table(step_time)
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


def _stacks(stacks: Mapping[str, Sequence[Timing]]) -> tuple[list[Error], list[Error]]:
    """Each published stack from all others, and with its most telling updates measured."""
    none: list[Error] = []
    two: list[Error] = []
    for name, timings in stacks.items():
        if name == facts.POST:
            continue
        known = pooled(other for n, other in stacks.items() if n != name)
        none += _differ(known, timings)
        if len(timings) > REVEALED:
            x = [timing.x_K for timing in timings]
            picked = known.to_measure(x, x, REVEALED)
            chosen = known.measured([timings[i] for i in picked], SPREAD)
            two += _differ(chosen, [t for i, t in enumerate(timings) if i not in picked])
    return none, two


def _grid(pair: Sequence[Step], stacks: Mapping[str, Sequence[Timing]]) -> list[Error]:
    """The steps of the post from other stacks and a few of its own."""
    known = pooled(stacks.values())
    near = [timing for row, timing in pair if int(row["context"]) <= NEAR]
    x = [timing.x_K for timing in near]
    picked = [near[i] for i in known.to_measure(x, x, OF_GRID)]
    rest = [timing for _, timing in pair if all(timing is not one for one in picked)]
    return _differ(known.measured(picked, SPREAD), rest)


def _times(steps: Iterable[Step]) -> list[Timing]:
    return [timing for _, timing in steps]


def _errors(known: Coefficients, steps: Iterable[Step]) -> list[Error]:
    return _differ(known, _times(steps))


def _differ(known: Coefficients, timings: Iterable[Timing]) -> list[Error]:
    found = [(known.predict(timing.x_K), timing.seconds) for timing in timings]
    return [(float(np.log(p.seconds / seconds)), p.sd) for p, seconds in found]
