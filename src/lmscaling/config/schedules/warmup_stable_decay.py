"""A constant rate that falls linearly to zero over the last part of the budget.

Source: Haegele et al. 2024 (arXiv:2405.18392), a linear cooldown over a fifth of the run.
"""

from typing import Literal

from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT, Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """The peak rate, then a linear decay to zero."""

    kind: Literal["warmup_stable_decay"]
    decay_share: Share = 0.2
    """Share of the budget over which the rate decays."""

    def factor(self, spent: float) -> float:
        """1 until the decay begins, 0 when the budget is spent."""
        return min(1.0, (1 - spent) / self.decay_share)
