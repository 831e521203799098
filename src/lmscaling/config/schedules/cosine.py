"""Half a period of a cosine, from the peak rate at the start to a share of it at the end.

Source: Loshchilov and Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts.
"""

import math
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT, Number


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """The peak rate times a cosine that falls to ``final_share``."""

    kind: Literal["cosine"]
    final_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Number] = 0.1
    """Rate at the end of the budget, as a share of the peak rate."""

    def factor(self, spent: float) -> float:
        """1 at the start, ``final_share`` when the budget is spent."""
        fall = (1 - math.cos(math.pi * spent)) / 2
        return 1 - (1 - self.final_share) * fall
