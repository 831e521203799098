"""The search for a design: greedy by what an hour brings, then exchange, with one set of truths.

A move adds a few seeds of a candidate, because one seed alone tells nothing of the noise, or
a seed of every candidate, because an optimum needs its neighbours.
Greedy by gain for the price can spend everything on small cells, so a second one goes by the gain
alone, and the better result counts (Leskovec et al. 2007, doi:10.1145/1281192.1281239). Exchange
then replaces what the design can spare until nothing gains.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmscaling.design.questions import Answer

TOGETHER = (1, 2, 3, 6)
"""Seeds that a move can add."""
GAINS = 1e-4
"""Least change of the mean ln half-width that counts."""
NEARLY = 0.9
"""Of the best move: the one with the most seeds that is as good is made, which saves steps."""
SWEEPS = 100
SPARED = 12
"""Removals that an exchange tries."""


@dataclass(frozen=True)
class Problem:
    """What a design may contain, and what it costs."""

    answer: Answer
    cost_C: NDArray
    start_C: NDArray[np.intp]
    """Finished seeds."""
    most_C: NDArray[np.intp]
    """Most seeds."""

    def price(self, counts: NDArray) -> NDArray:
        """Of what is not finished; ``[...]`` of ``[..., C]``."""
        return (counts - self.start_C) @ self.cost_C

    def score(self, counts_nC: NDArray) -> NDArray:
        """Mean over truths of the logarithm of the guide."""
        if not len(counts_nC):
            return np.zeros(0)
        return np.log(self.answer.guide(counts_nC)).mean(axis=1)

    def half_width(self, counts: NDArray) -> NDArray:
        """Median over truths, of one design or of several; infinite without an interval."""
        return np.median(self.answer.half_widths(np.atleast_2d(counts)), axis=1)


def greedy(
    problem: Problem, budget: float, power: float = 1.0, most_C: NDArray | None = None
) -> list[NDArray]:
    """Designs from the finished seeds on, each a move beyond the one before.

    Args:
        problem: Candidates and prices.
        budget: Most that may be spent.
        power: 1 for the gain for the price, 0 for the gain.
        most_C: Most seeds, by default those of the problem.
    """
    most = problem.most_C if most_C is None else most_C
    designs = [problem.start_C]
    while True:
        now = designs[-1]
        tried = _moves(now, most, problem, budget)
        if not len(tried):
            return designs
        gain = problem.score(now[None])[0] - problem.score(tried)
        if gain.max() < GAINS:
            return designs
        paid = np.maximum(problem.price(tried) - problem.price(now), 1e-12)
        rate = gain / paid**power
        good = tried[rate >= NEARLY * rate.max()]
        designs.append(good[int(good.sum(axis=1).argmax())])


def _moves(now: NDArray, most: NDArray, problem: Problem, budget: float) -> NDArray:
    """``[n, C]``: all that add seeds of one candidate, or a seed of all, within the budget."""
    one = np.eye(len(now), dtype=now.dtype)
    row = np.array([(now > 0), now >= 0], dtype=now.dtype)
    tried = now + np.concatenate([*(k * one for k in TOGETHER), row])
    tried = tried[(tried != now).any(axis=1)]
    allowed = (tried <= most).all(axis=1) & (problem.price(tried) <= budget * (1 + 1e-9))
    return tried[allowed]


def exchange(problem: Problem, counts: NDArray, budget: float) -> NDArray:
    """Replace seeds of one candidate by those of another, or add, while it gains."""
    now, score = counts, problem.score(counts[None])[0]
    for _ in range(SWEEPS):
        before = score
        for fewer in _spared(problem, now, score):
            tried = _moves(fewer, problem.most_C, problem, budget)
            scores = problem.score(tried)
            if len(scores) and scores.min() < score - GAINS:
                now, score = tried[scores.argmin()], scores.min()
                break
        if score == before:
            return now
    return now


def _spared(problem: Problem, now: NDArray, score: float) -> NDArray:
    """``[n, C]``: the design, and those without what it would miss least for the price."""
    one = np.eye(len(now), dtype=now.dtype)
    fewer = now - np.concatenate([k * one for k in TOGETHER])
    fewer = fewer[(fewer >= problem.start_C).all(axis=1)]
    saved = problem.price(now) - problem.price(fewer)
    order = np.argsort((problem.score(fewer) - score) / saved, kind="stable")
    return np.concatenate([now[None], fewer[order[:SPARED]]])


def steps(problem: Problem, counts: NDArray) -> list[NDArray]:
    """The way to a design, the most useful runs first."""
    designs = greedy(problem, np.inf, 1.0, counts)
    return designs if (designs[-1] == counts).all() else [*designs, counts]


def in_order(problem: Problem, budgets: NDArray, rng: np.random.Generator | None = None) -> NDArray:
    """``[budgets, C]``: designs that take runs in an order, leaving out what does not fit: largest
    cells first with all their seeds, or at random."""
    unit = np.repeat(np.arange(len(problem.cost_C)), problem.most_C - problem.start_C)
    largest = unit[np.argsort(-problem.cost_C[unit], kind="stable")]
    order = largest if rng is None else rng.permutation(unit)
    designs = np.repeat(problem.start_C[None], len(budgets), axis=0)
    left = np.array(budgets, dtype=float) * (1 + 1e-9)
    for c in order:
        fits = problem.cost_C[c] <= left
        designs[fits, c] += 1
        left[fits] -= problem.cost_C[c]
    return designs
