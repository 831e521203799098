"""A constant rate that falls linearly to zero over the last part of the budget.

Source: Haegele et al. 2024 (arXiv:2405.18392), a linear cooldown over a fifth of the run.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """The peak rate, then a linear decay to zero."""

    kind: Literal["warmup_stable_decay"]
    decay_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the budget over which the rate decays."""

    def factor(self, spent: float) -> float:
        """1 until the decay begins, 0 when the budget is spent."""
        return min(1.0, (1 - spent) / self.decay_share)
