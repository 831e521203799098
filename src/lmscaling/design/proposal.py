"""A proposal: the design for a question and a budget, beside random runs and the largest first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lmscaling.design import draws, questions, search
from lmscaling.design.asked import PAIRS, Asked, Candidate, Option
from lmscaling.design.draws import Draws, Known, Noise
from lmscaling.design.search import Problem
from lmscaling.errors import UserError
from lmscaling.fits import multiplier

TRUTHS = 64
MOST_SEEDS = 20
"""Of a candidate; more only if the study has more."""
RANDOM = 60
"""Random designs."""
RARELY = 0.1
"""Share of the truths that must come to the loss of a question."""
PLACES = 16
"""Spendings at which the ways to spend are compared."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A design with what it is compared with; half-widths are medians over the truths."""

    asked: Asked
    candidates: list[Candidate]
    option: Option
    counts: NDArray
    """Seeds of each candidate, with the finished ones."""
    draws: Draws
    problem: Problem
    spent: float
    half_width: float
    determined: float
    """Share of the truths for which the answer has an interval."""
    grid: tuple[float, float]
    """Price and half-width of the runs of the grid on which the answer depends."""
    steps: list[tuple[float, float, NDArray]]
    """Price and half-width after each step, and the seeds that it adds, ``[C]``."""
    spend_s: NDArray
    """Spendings of the three lines below."""
    chosen_s: NDArray
    random_Rs: NDArray
    largest_s: NDArray


def propose(
    asked: Asked,
    candidates: list[Candidate],
    seeds: int,
    budget: float,
    options: Sequence[Option] = (Option(),),
    *,
    known: Known | None = None,
    noise: Noise | None = None,
    most: int = MOST_SEEDS,
    seed: int = 0,
    truths: int = TRUTHS,
) -> Proposal:
    """The best design within a budget.

    Args:
        asked: The question.
        candidates: What may be trained, with prices of whole trunks.
        seeds: Seeds of each candidate in the whole grid.
        budget: Most that may be spent, in the unit of the prices.
        options: What all runs may share; the first is the study's own.
        known: Losses of finished runs of the attention and context of the question.
        noise: Scatter that the seeds of the study have shown.
        most: Most seeds of a candidate.
        seed: Of the random numbers.
        truths: How many are drawn.

    Raises:
        UserError: No design within the budget would give an interval, or no curve comes to the
            loss of the question.

    Cost: 15 CPU seconds for 100 candidates.
    """
    centre = (
        float(np.mean([np.log(one.params) for one in candidates])),
        float(np.mean([np.log(one.tokens) for one in candidates])) - 1.4,
    )
    drawn = draws.draw(
        truths, centre, seed, known, noise, asked.kind in PAIRS
    )  # the same for all designs
    if asked.loss is not None:
        drawn = _reaching(asked, candidates, drawn)
    problems = {one: _problem(asked, candidates, one, drawn, most) for one in options}
    ranked = [
        (*_rank(problem, search.greedy(problem, budget)[-1]), i)
        for i, problem in enumerate(problems.values())
    ]
    option, problem = list(problems.items())[min(ranked)[-1]]
    ways = [search.greedy(problem, budget, power)[-1] for power in (1.0, 0.0)]
    counts = min(ways, key=lambda one: _rank(problem, one))
    counts = search.exchange(problem, counts, budget)
    half = float(problem.half_width(counts)[0])
    if not np.isfinite(half):
        raise UserError(_too_little(problem, budget, asked))
    if (counts == problem.start_C).all():
        raise UserError(
            f"{budget:.4g} buys no run that would narrow {asked}; give at least "
            f"{problem.cost_C.min():.4g}, the price of the cheapest"
        )
    own = _problem(asked, candidates, options[0], drawn, most)
    return _described(asked, candidates, option, counts, drawn, problem, own, seeds)


def _described(
    asked: Asked,
    candidates: list[Candidate],
    option: Option,
    counts: NDArray,
    drawn: Draws,
    problem: Problem,
    own: Problem,
    seeds: int,
) -> Proposal:
    whole = np.maximum(own.start_C, seeds)
    price = float(own.price(whole))
    spent = float(problem.price(counts))
    # Others spend on the grid of the study, with three seeds where it has fewer.
    pool = replace(own, most_C=np.maximum(whole, 3))
    spend = np.geomspace(min(spent, price or spent) / 8, max(spent, price), PLACES)
    spend = np.unique(np.append(spend, spent))
    rng = np.random.default_rng(1)
    way = search.steps(problem, counts)
    beyond = search.greedy(problem, float(spend[-1]), 1.0)
    lines = [*way, *beyond]
    prices, halves = problem.price(np.array(lines)), problem.half_width(np.array(lines))
    chosen = [min(halves[prices <= s * (1 + 1e-9)], default=np.inf) for s in spend]
    random = [own.half_width(search.in_order(pool, spend, rng)) for _ in range(RANDOM)]
    return Proposal(
        asked=asked,
        candidates=candidates,
        option=option,
        counts=counts,
        draws=drawn,
        problem=problem,
        spent=spent,
        half_width=float(problem.half_width(counts)[0]),
        determined=float(np.isfinite(problem.answer.half_widths(counts[None])).mean()),
        grid=(price, float(own.half_width(whole)[0])),
        steps=[
            (float(problem.price(b)), float(problem.half_width(b)[0]), b - a)
            for a, b in pairwise(way)
        ],
        spend_s=spend,
        chosen_s=np.array(chosen),
        random_Rs=np.array(random),
        largest_s=own.half_width(search.in_order(pool, spend)),
    )


def _rank(problem: Problem, counts: NDArray) -> tuple[float, float]:
    """A design with an interval comes before one without."""
    return float(problem.half_width(counts)[0]), float(problem.score(counts[None])[0])


def _problem(
    asked: Asked, candidates: list[Candidate], option: Option, drawn: Draws, most: int
) -> Problem:
    start = np.array([len(one.seeds) for one in candidates])
    return Problem(
        questions.answer(asked, candidates, option, drawn),
        np.array([one.cost for one in candidates]) * option.price,
        start,
        np.maximum(start, most),
    )


def _reaching(asked: Asked, candidates: list[Candidate], drawn: Draws) -> Draws:
    """The truths in which both curves come to the loss of the question, as the user knows they do.

    Raises:
        UserError: They hardly ever do.
    """
    here = next(o for o in candidates if (o.size, o.context) == (asked.size, asked.context))
    assert asked.loss is not None
    reached = questions.comes_to(asked.loss, here.params, here.tokens, drawn)
    if reached.mean() < RARELY:
        shares = np.array([multiplier.FRACTIONS[-1], 1.0])
        ends = drawn.surface(here.params, here.tokens * shares)[0]
        low, high = np.quantile(ends[:, 1], 0.1), np.quantile(ends[:, 0], 0.9)
        raise UserError(
            f"loss {asked.loss:g} is not what curves of {asked.size} at context {asked.context} "
            f"come to within the budget; name one between {low:.2f} and {high:.2f}"
        )
    return drawn.rows(reached)


def _too_little(problem: Problem, budget: float, asked: Asked) -> str:
    """What to type where no design within the budget has an interval."""
    reach, everything = max(budget, problem.cost_C.min()), problem.price(problem.most_C)
    while reach < everything:
        reach *= 2
        for power in (1.0, 0.0):
            designs = search.greedy(problem, reach, power)
            finite = np.isfinite(problem.half_width(np.array(designs)))
            if finite.any():
                least = float(problem.price(designs[int(finite.argmax())]))
                return (
                    f"{budget:.4g} is too little for an interval of {asked}; the cheapest design "
                    f"that was found costs {least:.4g}"
                )
    return (
        f"no number of seeds gives an interval of {asked}: most truths of the prior have none; "
        "ask at another place"
    )
