"""Records of losses that need no model."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A line of ``floors/<text>.jsonl``: a loss that is reached, or known, without a model, on the
    validation tokens that runs are validated on."""

    record: ClassVar[str] = "floor"
    dataset: str
    """Row under datasets:."""
    name: str
    """``1-gram`` to ``5-gram``, a table of the training text; or the name of a loss that is known,
    as ``exact``, the lowest that is possible."""
    context: int | None = None
    """Tokens of the windows; null if the loss does not depend on them."""
    loss: float
    """Mean over the targets that count, nats per token."""
    validation_tokens: int
    """Tokens whose targets are predicted."""
    train_tokens: int
    """Tokens that the tables count: those of the longest run, in its order, within one epoch."""
