"""Random symbols, a separator and their copy: how far back an attention reproduces its input.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.1.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.data.sequences import AT_ONCE, Sequences, random_state
from lmscaling.types import STRICT, Number, Positive, Split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Copy(Sequences):
    """Sequences ``w 0 w``: ``w`` are random symbols from 1 on, and 0 separates them from their
    copy. Only the copy counts in the loss, because the rest is random."""

    kind: Literal["copy"]
    symbols: Annotated[int, Field(ge=2, le=255), Number] = 10
    """Different symbols."""
    copied: Annotated[int, Field(ge=1, le=2**20), Number]
    """Symbols that are copied; a sequence has twice as many tokens and two more."""
    sequences: Positive = 100_000
    """Training sequences."""
    validation_sequences: Positive = 512
    """Validation sequences."""

    @property
    def length(self) -> int:
        return 2 * self.copied + 2

    @property
    def groups(self) -> tuple[str, ...]:
        return ("copy",)

    def made(self, split: Split) -> Iterator[np.ndarray]:
        random = random_state(self, split)
        n = self.number(split) or 0
        for start in range(0, n, AT_ONCE):
            rows = min(AT_ONCE, n - start)
            w = random.randint(1, self.symbols + 1, (rows, self.copied)).astype(np.uint16)
            yield np.concatenate((w, np.zeros((rows, 1), dtype=np.uint16), w), 1)

    def known(self, context: int, tokens: np.ndarray) -> dict[str, float]:
        return {"exact": 0.0}  # what comes before a target that counts determines it

    def marks(self, x_BT: np.ndarray) -> np.ndarray:
        marks_BT = np.zeros(x_BT.shape, dtype=np.uint8)
        marks_BT[:, self.copied + 1 : -1] = 2  # from the separator on
        return marks_BT
