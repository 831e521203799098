"""Multi-query associative recall: key-value pairs, then queries whose values must be recalled.

A sequence is ``P`` pairs "key, value", then queries "key, value" to its end: every key once in each
round of queries, in a new order. Sequences of all numbers of pairs alternate, so that easy ones
teach what hard ones need. The loss counts the values of all queries; the accuracy counts the first
query of each key, because a later one could be answered from the first answer.

Source: Arora et al. 2023 (arXiv:2312.04927), section 4 and appendix on MQAR.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.data.sequences import AT_ONCE, Sequences, random_state
from lmscaling.types import STRICT, Distinct, Number, Positive, Split

Vocabulary = Annotated[int, Field(ge=2, le=254), Number]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recall(Sequences):
    """Key-value pairs, and queries of their keys. Keys are tokens from 0 on, values follow them."""

    kind: Literal["recall"]
    pairs: Distinct[Positive]
    """Numbers of pairs, in equal shares of the sequences."""
    queries: Positive
    """Queries of a sequence with the most pairs; the others have more, up to the same length."""
    keys: Vocabulary = 64
    """Different keys. With as many as a head is wide, a linear state keeps a slot for each."""
    values: Vocabulary = 64
    """Different values; ``keys + values`` are at most 256."""
    power: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), Number] = 0.99
    """The first round asks for a pair with a weight of its distance to this power, inverted; 0 for
    a uniform order. The default is that of the source."""
    sequences: Positive = 32_768
    """Training sequences."""
    validation_sequences: Positive = 1024
    """Validation sequences."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys + self.values > 256:
            raise ValueError(
                f"keys {self.keys} and values {self.values} are {self.keys + self.values} tokens; "
                f"allowed: up to 256, so write values: {256 - self.keys}"
            )
        if (most := max(self.pairs)) > self.keys:
            raise ValueError(f"pairs {most} need as many keys; write keys: {most}, or fewer pairs")
        if self.queries < most:
            raise ValueError(f"queries {self.queries} are not all pairs; write queries: {most}")

    @property
    def length(self) -> int:
        return 1 + 2 * (max(self.pairs) + self.queries)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(map(str, sorted(self.pairs)))

    def made(self, split: Split) -> Iterator[np.ndarray]:
        random = random_state(self, split)
        n = self.number(split) or 0
        kinds = sorted(self.pairs)
        each = AT_ONCE // len(kinds)
        for start in range(0, n, each * len(kinds)):
            parts = [self._drawn(random, each, p) for p in kinds]
            rows = np.stack(parts, 1).reshape(-1, self.length - 1)  # the numbers of pairs alternate
            yield rows[: n - start]

    def _drawn(self, random: np.random.RandomState, n: int, pairs: int) -> np.ndarray:
        """Sequences with one number of pairs, ``[n, T - 1]``."""
        keys = random.random_sample((n, self.keys)).argsort(1)[:, :pairs]
        values = random.randint(self.keys, self.keys + self.values, (n, pairs))
        asked = (self.length - 1) // 2 - pairs
        # The order of the largest keys log(weight) + Gumbel noise is one of draws by weight.
        weight = -self.power * np.log(np.arange(pairs, 0, -1))
        orders = []
        for start in range(0, asked, pairs):
            noise = -np.log(-np.log(random.random_sample((n, pairs)) + 1e-300))
            orders.append((-(noise + (weight if not start else 0.0))).argsort(1))
        order = np.concatenate(orders, 1)[:, :asked]
        every = [
            np.concatenate((drawn, np.take_along_axis(drawn, order, 1)), 1)
            for drawn in (keys, values)
        ]
        return np.stack(every, 2).reshape(n, -1).astype(np.uint16)

    def known(self, context: int, tokens: np.ndarray) -> dict[str, float]:
        return {"exact": 0.0}  # what comes before a target that counts determines it

    def marks(self, x_BT: np.ndarray) -> np.ndarray:
        asked_BP = x_BT[:, 1:-1:2]  # the keys of pairs and of queries
        before_BPP = (asked_BP[:, :, None] == asked_BP[:, None, :]) & np.tri(
            asked_BP.shape[1], k=-1, dtype=bool
        )
        times_BP = before_BPP.sum(2)  # how often a key has occurred before
        pairs_B = (times_BP == 0).sum(1)
        group_B = np.searchsorted(sorted(self.pairs), pairs_B)
        marks_BT = np.zeros(x_BT.shape, dtype=np.uint8)
        marks_BT[:, 1:-1:2] = np.where(
            times_BP == 1, 2 + group_B[:, None], np.where(times_BP > 1, 1, 0)
        )
        return marks_BT
