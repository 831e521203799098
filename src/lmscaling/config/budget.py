"""What a run may spend: ``24 hours`` of productive time, ``200 updates`` or ``1e9 tokens``.

A study may also say ``1e18 flops`` or ``20 tokens per parameter``: the updates of each cell.

FLOPs are those of training that the model counts itself, attention and head included. Tokens per
parameter are of all parameters, as in Hoffmann et al. 2022 (arXiv:2203.15556), or ``per
non-embedding parameter``, as in Kaplan et al. 2020 (arXiv:2001.08361).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass as checked

from lmscaling.errors import shown
from lmscaling.types import STRICT

PATTERN = re.compile(r"([0-9.eE+]+) (?:(hour|minute|second|update|token|flop)s?|(tokens per .*))")
SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
OF_MODEL = {
    "flops": "flops_per_token",
    "tokens per parameter": "params_total",
    "tokens per non-embedding parameter": "params",
}
"""Units that become updates, with the count of a model that each depends on."""
BOUNDS = {"seconds": (0.001, 3.2e8), "updates": (1, 1e9), "tokens": (1, 1e15), "flops": (1, 1e30)}
BOUNDS |= dict.fromkeys([*OF_MODEL][1:], (1e-3, 1e6))
"""Least and largest budget: up to ten years, or several times all text that has been collected."""


@checked(frozen=True, kw_only=True, config=STRICT)
class Counts:
    """What budgets depend on of a model."""

    flops_per_token: float
    """Training FLOPs per token at the context of its cell."""
    params_total: int
    params: int
    """Without embeddings."""


@dataclass(frozen=True)
class BudgetAmount:
    """A budget as a number and its unit."""

    amount: float
    unit: str
    """``hours``, ``minutes``, ``seconds``, ``updates``, ``tokens``, or one of ``OF_MODEL``."""

    @property
    def seconds(self) -> float | None:
        """The budget in seconds; None if it is not a time."""
        return self.amount * SECONDS[self.unit] if self.unit in SECONDS else None

    @property
    def is_of_model(self) -> bool:
        """Whether its updates depend on the model."""
        return self.unit in OF_MODEL

    def updates(self, update_tokens: int, counts: Counts | None = None) -> float:
        """The budget in updates; infinite of a time, whose speed is unknown."""
        if self.seconds:
            return float("inf")
        if self.unit in OF_MODEL:
            assert counts is not None
            count = getattr(counts, OF_MODEL[self.unit])
            tokens = self.amount / count if self.unit == "flops" else self.amount * count
            return tokens / update_tokens
        return self.amount / (update_tokens if self.unit == "tokens" else 1)

    def fraction(self, *, updates: int, tokens: int, seconds: float) -> float:
        """Share of the budget that is spent; the last update may exceed 1."""
        spent = seconds if self.seconds else {"updates": updates, "tokens": tokens}[self.unit]
        return spent / (self.seconds or self.amount)


def parse_budget(text: str) -> BudgetAmount:
    """Parse ``"24 hours"`` or ``"1 update"``; the unit of the result is a plural.

    Raises:
        ValueError: The text is not a number and a unit, or the number is out of bounds.
    """
    match = PATTERN.fullmatch(" ".join(str(text).split()))
    try:
        amount = float(match[1]) if match else 0.0
    except ValueError:
        amount = 0.0
    if match is None or not 0 < amount < float("inf"):
        raise ValueError(
            f"{shown(text)} is not a budget; allowed: a positive number and hours, minutes, "
            "seconds, updates, tokens, flops or tokens per parameter, such as '24 hours'"
        )
    unit = f"{match[2]}s" if match[2] else match[3]
    if match[3] and unit not in OF_MODEL:
        raise ValueError(
            f"{shown(text)} is not a budget; allowed: tokens per parameter, which counts all, or "
            "tokens per non-embedding parameter"
        )
    budget = BudgetAmount(amount, unit)
    low, high = BOUNDS["seconds" if budget.seconds else budget.unit]
    if not low <= (budget.seconds or amount) <= high:
        scale = SECONDS.get(budget.unit, 1.0)
        raise ValueError(
            f"{shown(text)} is out of bounds; allowed: {low / scale:g} to {high / scale:g} "
            f"{budget.unit}"
        )
    return budget


def canonical(text: str) -> str:
    """The one way of writing a budget.

    Raises:
        ValueError: See ``parse_budget``.
    """
    budget = parse_budget(text)
    if budget.unit == "flops":
        return f"{Decimal(repr(budget.amount)).normalize():e} flops".replace("e+", "e")
    whole = budget.amount == int(budget.amount)
    return f"{int(budget.amount) if whole else budget.amount} {budget.unit}"


Budget = Annotated[str, BeforeValidator(canonical)]
"""A budget as text in canonical form: cells and their hashes contain it."""
