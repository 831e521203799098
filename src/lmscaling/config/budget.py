"""What a run may spend: ``24 hours`` of productive time, ``200 updates`` or ``1e9 tokens``."""

import re
from typing import Annotated

from pydantic import AfterValidator

BUDGET = re.compile(r"([0-9.eE+]+) (hour|minute|second|update|token)s?")

SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
"""Units of a budget that is a time."""


def _check_budget(text: str) -> str:
    amount, unit = parse_budget(text)
    return f"{int(amount) if amount == int(amount) else amount} {unit}"


def parse_budget(text: str) -> tuple[float, str]:
    """``"24 hours"`` -> ``(24.0, "hours")``; the unit comes back in the plural."""
    match = BUDGET.fullmatch(" ".join(str(text).split()))
    try:
        amount = float(match[1]) if match else 0.0
    except ValueError:
        amount = 0.0
    if match is None or not 0 < amount < float("inf"):
        raise ValueError(
            f"{text!r} is not a budget; allowed: a positive number and hours, minutes, seconds, "
            "updates or tokens, such as '24 hours' or '200 updates'"
        )
    return amount, f"{match[2]}s"


Budget = Annotated[str, AfterValidator(_check_budget)]


class Spending:
    """A budget such as ``24 hours``, ``200 updates`` or ``1e9 tokens``."""

    def __init__(self, text: str) -> None:
        self.amount, self.unit = parse_budget(text)

    def fraction(self, *, updates: int, tokens: int, seconds: float) -> float:
        """The share that is spent, 0 to 1; a last update may pass 1."""
        if self.unit in SECONDS:
            return seconds / (self.amount * SECONDS[self.unit])
        return {"updates": updates, "tokens": tokens}[self.unit] / self.amount

    def spent(self, *, updates: int, tokens: int, seconds: float) -> bool:
        """Whether nothing is left."""
        return self.fraction(updates=updates, tokens=tokens, seconds=seconds) >= 1
