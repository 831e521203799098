"""Documents with a table of their own: text before the last end-of-text does not help, it misleads.

Each document is a Markov chain. Its table of next symbols is drawn for it alone, each row from a
symmetric Dirichlet distribution. The table is never drawn: as in Polya's urn, a symbol is followed
by one that has followed it in this document, or by a new one. A model can learn by its weights how
such texts are made, and nothing else, so what a reader of a window can know is exactly known.

Legend: N documents that are made at once, W windows, T their tokens, S symbols.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.data.dataset import Dataset, Documents
from lmscaling.data.sequences import random_state
from lmscaling.types import STRICT, Flag, Number, Positive, Split

AT_ONCE = 512
"""Documents that are made at once, with 4 MB of counts."""
FIRST, LAST, END = 33, 126, 256
"""Printable bytes, which stand for the symbols, and the end-of-text of the tokenizer ``bytes``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Tables(Dataset):
    """Documents of random lengths, each with its own table of which symbol follows which."""

    kind: Literal["tables"]
    symbols: Annotated[int, Field(ge=2, le=LAST - FIRST + 1), Number] = 63
    """Different symbols, printable characters."""
    concentration: Annotated[float, Field(gt=0, le=1000), Number] = 1.0
    """Of the rows of a table: the smaller, the fewer symbols follow one."""
    mean_length: Annotated[float, Field(ge=2, le=1_000_000), Number] = 500.0
    """Mean length of a document: it ends after each symbol with the probability 1 over this."""
    documents: Positive = 32_768
    """Training documents."""
    validation_documents: Positive = 512
    """Validation documents."""
    marked_windows: Flag = False
    """Whether models read an end-of-text in place of the first token of each window. A window then
    begins a document, as what is left of one has the length and the table of a whole one."""

    def files(self, split: Split) -> list[str]:
        return [self.kind]

    def read(self, split: Split, shard: int) -> Documents:
        return Documents(self._texts(split))

    def _texts(self, split: Split) -> Iterator[str]:
        random = random_state(self, split)
        n = self.documents if split == "train" else self.validation_documents
        for start in range(0, n, AT_ONCE):
            for symbols in self._drawn(random)[: n - start]:
                yield (symbols + FIRST).astype(np.uint8).tobytes().decode("ascii")

    def _drawn(self, random: np.random.RandomState) -> list[np.ndarray]:
        """``AT_ONCE`` documents of numbers below S."""
        lengths_N = random.geometric(1 / self.mean_length, AT_ONCE)
        longest_first = np.argsort(-lengths_N, kind="stable")
        lengths_N = lengths_N[longest_first]
        made_NT = np.zeros((AT_ONCE, lengths_N[0]), dtype=np.int64)
        made_NT[:, 0] = random.randint(0, self.symbols, AT_ONCE)
        counts_NSS = np.zeros((AT_ONCE, self.symbols, self.symbols), dtype=np.uint32)
        for t in range(1, lengths_N[0]):
            n = int((lengths_N > t).sum())
            at = np.arange(n), made_NT[:n, t - 1]
            seen = counts_NSS[at].cumsum(1)
            is_new, which = random.random_sample((2, n))
            is_new = is_new * (seen[:, -1] + self.concentration) < self.concentration
            new, old = which * self.symbols, (seen <= (which * seen[:, -1])[:, None]).sum(1)
            made_NT[:n, t] = np.where(is_new, new, old)
            counts_NSS[(*at, made_NT[:n, t])] += 1
        made = [symbols[:n] for symbols, n in zip(made_NT, lengths_N, strict=True)]
        return [made[i] for i in np.argsort(longest_first)]

    def known(self, context: int, tokens: np.ndarray) -> dict[str, float]:
        """Of a reader that knows how texts are made and forgets its counts at an end-of-text
        (``exact``), of one that cannot forget them, and of one that does not count."""
        x_WT = tokens[: (len(tokens) - 1) // context * context].reshape(-1, context).copy()
        targets_WT = tokens[1 : x_WT.size + 1].reshape(-1, context)
        is_known = (tokens == END) | (tokens >= FIRST) & (tokens < FIRST + self.symbols)
        if not x_WT.size or not is_known.all():  # of another tokenizer
            return {}
        if self.marked_windows:
            x_WT[:, 0] = END
        readers = {"exact": "forgets", "cannot forget": "keeps", "does not count": ""}
        return {name: self._loss(x_WT, targets_WT, how) for name, how in readers.items()}

    def _loss(self, x_WT: np.ndarray, targets_WT: np.ndarray, how: str) -> float:
        """Mean loss in nats of a reader that ``forgets`` or ``keeps`` its counts, or has none."""
        every, ends = np.arange(len(x_WT)), 1 / self.mean_length
        counts_WSS = np.zeros((len(x_WT), self.symbols, self.symbols))
        total = 0.0
        for x, y in zip(x_WT.T, targets_WT.T, strict=True):
            begins, is_end = x == END, y == END
            at = every, np.where(begins, 0, x - FIRST)
            row = counts_WSS[at]
            symbol = np.where(is_end, 0, y - FIRST)
            share = row[every, symbol] + self.concentration / self.symbols
            p = np.where(begins, 1 / self.symbols, share / (row.sum(1) + self.concentration))
            p = np.where(is_end, ends, np.where(begins, 1, 1 - ends) * p)
            total -= float(np.log(p).sum())
            if how:
                counts_WSS[(*at, symbol)] += ~(begins | is_end)
            if how == "forgets":
                counts_WSS[is_end] = 0
        return total / targets_WT.size
