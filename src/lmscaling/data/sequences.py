"""Datasets of sequences: every document is one sequence of a fixed length, and a task on its own.

A sequence is end-of-text and ``length - 1`` tokens below 256, so the tokenizer ``bytes`` has them
all. Contexts are as long as the sequences. ``marks`` says which targets count; that of the last
token, the end-of-text of the next sequence, never does.

Legend: N sequences, B those of a batch, T their length.
"""

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from lmscaling.data.dataset import BLOCK_TOKENS, Dataset, Documents
from lmscaling.errors import UserError
from lmscaling.types import Split, digest

AT_ONCE = 4096
"""Sequences that are made at once."""

BLOCK = 32
"""Sequences of a block of the order that is drawn from the seed."""


class Sequences(Dataset):
    """A dataset whose documents are sequences of one length."""

    sequences: int
    validation_sequences: int

    def __post_init__(self) -> None:
        if self.block_tokens != BLOCK_TOKENS:
            raise ValueError(
                f"block_tokens {self.block_tokens} is not for kind {self.kind}: a block is {BLOCK} "
                "sequences; leave it out"
            )
        if self.shuffle == "documents":
            raise ValueError(
                f"shuffle documents is not for kind {self.kind}: the sequences are no text; "
                "allowed: blocks, none"
            )

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of a sequence, with end-of-text: the context of its cells."""

    def number(self, split: Split) -> int | None:
        """Sequences of a split; None if this machine cannot tell."""
        return self.sequences if split == "train" else self.validation_sequences

    @abstractmethod
    def made(self, split: Split) -> Iterator[np.ndarray]:
        """The sequences of a split without end-of-text: uint16 arrays ``[N, T - 1]``."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of targets whose accuracy is measured; see ``marks``."""
        return ()

    @abstractmethod
    def marks(self, x_BT: np.ndarray) -> np.ndarray:
        """Which targets count, uint8 ``[B, T]``: 0 for none, 1 for one that counts in the loss, and
        2 + g for one whose accuracy counts in group g, too.

        Args:
            x_BT: Sequences, one a row; the target of a token is the next one.
        """

    def blocks(self, protocol: int, context: int) -> int | None:
        return None if self.shuffle == "none" else BLOCK * context

    def most_tokens(self, split: Split) -> float | None:
        n = self.number(split)
        return None if n is None else n * self.length

    def files(self, split: Split) -> list[str]:
        return [self.kind]

    def read(self, split: Split, shard: int) -> Documents:
        raise UserError(
            f"a dataset of kind {self.kind} has sequences of tokens and no text; name one that has "
            "text"
        )

    def tokens(self, split: Split, end_of_text: int) -> Iterator[np.ndarray]:
        for rows in self.made(split):
            first = np.full((len(rows), 1), end_of_text, dtype=np.uint16)
            yield np.concatenate((first, rows), 1).ravel()
        yield np.array([end_of_text], dtype=np.uint16)  # the target of the last token


def random_state(dataset: Dataset, split: Split) -> np.random.RandomState:
    """Random numbers that follow from a row and a split. NumPy promises those of this generator to
    be the same in all its versions."""
    return np.random.RandomState(int(digest({"row": dataset.identity(), "split": split}), 16))
