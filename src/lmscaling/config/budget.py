"""What a run may spend: ``24 hours`` of productive time, ``200 updates`` or ``1e9 tokens``."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from lmscaling.errors import shown

PATTERN = re.compile(r"([0-9.eE+]+) (hour|minute|second|update|token)s?")
SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
BOUNDS = {"seconds": (0.001, 3.2e8), "updates": (1, 1e9), "tokens": (1, 1e15)}
"""Least and largest budget: up to ten years, or several times all text that has been collected."""


@dataclass(frozen=True)
class BudgetAmount:
    """A budget as a number and its unit."""

    amount: float
    unit: str
    """``hours``, ``minutes``, ``seconds``, ``updates`` or ``tokens``."""

    @property
    def seconds(self) -> float | None:
        """The budget in seconds; None if it is not a time."""
        return self.amount * SECONDS[self.unit] if self.unit in SECONDS else None

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
            "seconds, updates or tokens, such as '24 hours' or '200 updates'"
        )
    budget = BudgetAmount(amount, f"{match[2]}s")
    low, high = BOUNDS["seconds" if budget.seconds else budget.unit]
    if not low <= (budget.seconds or amount) <= high:
        scale = SECONDS.get(budget.unit, 1.0)
        raise ValueError(
            f"{shown(text)} is out of bounds; allowed: {low / scale:g} to {high / scale:g} "
            f"{budget.unit}"
        )
    return budget


def _canonical(text: str) -> str:
    budget = parse_budget(text)
    whole = budget.amount == int(budget.amount)
    return f"{int(budget.amount) if whole else budget.amount} {budget.unit}"


Budget = Annotated[str, AfterValidator(_canonical)]
"""A budget as text in canonical form: cells and their hashes contain it."""
