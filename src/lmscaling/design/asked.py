"""What may be asked, what may be trained for it, and what all runs of a design share."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = {
    "gap": "difference of the final losses of two attentions, nats",
    "multiplier": "ln of how much more the reference spends for a loss",
    "crossing": "ln of the updates at which two curves cross",
    "beta": "ln of the exponent of the data in L(N, D)",
    "a": "logit of the exponent of the best size, N ~ C^a",
    "gamma": "exponent of the loss of one cell over its budget",
    "size": "ln of the best size of the budget",
}
"""What the half-width of each kind is of."""
PAIRS = ("gap", "multiplier", "crossing")
"""Kinds that compare two attentions."""
PASSED = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of the budget at which trunks at a constant rate give points, see ``store/laws.sql``."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One seed of a size and context: a run, or a run of each of two attentions."""

    attentions: tuple[str, ...]
    size: str
    context: int
    params: float
    """Without embeddings."""
    tokens: float
    """Of the whole budget; of two attentions the fewer."""
    cost: float
    """Of the trunks and the whole budget."""
    seeds: tuple[int, ...] = ()
    """Finished seeds, which cost nothing."""


class Option(NamedTuple):
    """What all runs of a design share."""

    budget: float = 1.0
    """Of that of the study."""
    shares: tuple[float, ...] = ()
    """Where branches end, of the budget."""

    @property
    def price(self) -> float:
        """Of a trunk and its branches, over that of a trunk with the whole budget."""
        return self.budget * (1 + 0.2 * sum(self.shares))

    @property
    def points(self) -> NDArray:
        """Shares of the study's budget at which a run has points."""
        return self.budget * np.array(self.shares or PASSED)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question to the study."""

    kind: str
    attention: str
    reference: str = ""
    """Of a pair."""
    size: str | None = None
    context: int
    loss: float | None = None
    """Nats per token, of a multiplier."""

    def __str__(self) -> str:
        named = [("context", self.context), ("size", self.size), ("loss", self.loss)]
        places = ",".join(f"{key}={value}" for key, value in named if value is not None)
        return f"{self.kind}:{places},attention={self.attention}"
