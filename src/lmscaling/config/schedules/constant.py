"""A constant learning rate. Decayed branches start from runs that have it."""

from typing import Literal

from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """The peak rate until the budget is spent."""

    kind: Literal["constant"]

    def factor(self, spent: float) -> float:
        """The peak rate throughout."""
        return 1.0
