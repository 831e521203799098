"""From documents to token ids, by backends that differ in speed and in nothing else.

A backend takes a list of texts and gives their ids laid end to end, uint16 ``[n]``, and the number
of ids of each text, int64 ``[documents]``. Text is always encoded as ordinary text, so no id is
that of end-of-text. The fast backend is young, so it is believed only as far as it is compared:
the first documents of a shard and as many random ones as ``RANDOM`` must have tiktoken's ids.
"""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiktoken

from lmscaling.config.datasets import Tokenizer
from lmscaling.errors import UserError

FIRST, RANDOM = 2_000, 500
"""Documents of a shard whose ids are compared: the first ones, and others drawn at random."""


class Ids(NamedTuple):
    """Ids of several documents."""

    flat: np.ndarray
    """uint16 ``[n]``, document after document."""
    lengths: np.ndarray
    """int64 ``[documents]``."""


Encode = Callable[[list[str]], Ids]


def simple(encoder: tiktoken.Encoding, texts: list[str]) -> Ids:
    """One list of integers a document, as nanoGPT prepares its data."""
    arrays = [np.array(encoder.encode_ordinary(text), dtype=np.uint16) for text in texts]
    return Ids(np.concatenate(arrays), np.array([len(a) for a in arrays], dtype=np.int64))


def buffers(encoder: tiktoken.Encoding, texts: list[str]) -> Ids:
    """tiktoken's buffers of uint32: no Python integers, and no search for special tokens.

    ``Encoding.encode_to_numpy`` is the public call around the same buffer; it costs a few per cent
    more, an array a document.
    """
    encode = encoder._core_bpe.encode_to_tiktoken_buffer
    none: set[str] = set()
    made = [memoryview(encode(text, none)) for text in texts]
    flat = np.frombuffer(b"".join(made), dtype=np.uint32).astype(np.uint16)
    return Ids(flat, np.array([view.nbytes for view in made], dtype=np.int64) // 4)


def gigatoken(path: Path) -> Encode:
    """The gigatoken package over GPT-2's ranks, on the calling thread: one shard, one core.

    Raises:
        UserError: The package is not installed.
    """
    try:
        import gigatoken
    except ImportError as error:
        raise UserError(
            "backend gigatoken is not installed; pip install 'lmscaling[fast]', "
            "or write backend: tiktoken"
        ) from error
    made = gigatoken.Tokenizer.from_tiktoken(path, pretokenizer="gpt2", special_tokens={})

    def encode(texts: list[str]) -> Ids:
        layout: Any = made.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        return Ids(np.asarray(layout.content.data).astype(np.uint16), np.diff(offsets))

    return encode


class Compared:
    """A fast encoder under the eyes of a slow one.

    Args:
        fast: Gives the ids.
        reference: Says what they must be.
        seed: Decides which documents are drawn: a shard always draws the same.
    """

    def __init__(self, fast: Encode, reference: Encode, seed: str) -> None:
        self._fast, self._reference = fast, reference
        self.seen = 0
        """Documents so far."""
        self._drawn: dict[int, tuple[int, str, np.ndarray]] = {}
        self._draws = drawn(RANDOM, random.Random(seed))
        self._next = next(self._draws)

    def __call__(self, texts: list[str]) -> Ids:
        """Ids of the next documents.

        Raises:
            UserError: One of the shard's first documents has other ids than the reference gives.
        """
        made = self._fast(texts)
        ends = np.cumsum(made.lengths)
        begin, self.seen = self.seen, self.seen + len(texts)

        def ids(number: int) -> np.ndarray:
            i = number - begin
            return made.flat[ends[i] - made.lengths[i] : ends[i]]

        for number in range(begin, min(self.seen, FIRST)):
            self._compare(number, texts[number - begin], ids(number))
        while (number := FIRST + self._next[0]) < self.seen:
            self._drawn[self._next[1]] = number, texts[number - begin], ids(number).copy()
            self._next = next(self._draws)
        return made

    def finish(self) -> int:
        """Compare the documents drawn; the number of all that were compared.

        Raises:
            UserError: One of them has other ids than the reference gives.
        """
        for number, text, ids in self._drawn.values():
            self._compare(number, text, ids)
        return min(self.seen, FIRST) + len(self._drawn)

    def _compare(self, number: int, text: str, ids: np.ndarray) -> None:
        if not np.array_equal(self._reference([text]).flat, ids):
            raise UserError(
                f"backend gigatoken gives document {number} other tokens than tiktoken; "
                "write backend: tiktoken in the tokenizer's row"
            )


def drawn(n: int, generator: random.Random) -> Iterator[tuple[int, int]]:
    """Which of the items 0, 1, 2, ... goes to which of n places, if as many come as will come.

    What lies in the places after any number of items is n of them drawn at random. Only drawn items
    cost anything.

    Source: Li 1994 (doi:10.1145/198429.198435), algorithm L.
    """
    yield from zip(range(n), range(n), strict=True)
    item, largest = n - 1, 1.0
    while True:
        largest *= generator.random() ** (1 / n)
        item += 1 + int(math.log(generator.random()) / math.log1p(-largest))
        yield item, generator.randrange(n)


def encode_with(
    row: Tokenizer, encoder: tiktoken.Encoding, ranks: Path | None, seed: str
) -> Encode | Compared:
    """The backend that a tokenizer row names.

    Args:
        row: The tokenizer.
        encoder: Its encoding.
        ranks: File of its vocabulary; the fast backend reads it.
        seed: See ``Compared``.

    Raises:
        UserError: The backend is not installed, or needs the file.
    """
    if row.backend == "simple":
        return partial(simple, encoder)
    if row.backend == "tiktoken":
        return partial(buffers, encoder)
    if ranks is None:
        raise UserError(
            "backend gigatoken reads the vocabulary from a file; give it with --vocabulary, "
            "made by: python -m lmscaling vocabulary FILE"
        )
    return Compared(gigatoken(ranks), partial(buffers, encoder), seed)


def versions(row: Tokenizer) -> dict[str, str]:
    """Packages that made the ids, with their versions."""
    fast = {"gigatoken": version("gigatoken")} if row.backend == "gigatoken" else {}
    return {"tiktoken": tiktoken.__version__, **fast}


def joined(ids: Ids, end_of_text: int) -> np.ndarray:
    """Documents as a stream, uint16: the end-of-text token before each.

    Raises:
        UserError: An id is not below that of end-of-text, so a boundary would be forged.
    """
    if ids.flat.size and ids.flat.max() >= end_of_text:
        raise UserError(
            f"the tokenizer gave id {ids.flat.max()} for ordinary text; allowed: below "
            f"{end_of_text}, the end-of-text token"
        )
    out = np.empty(len(ids.flat) + len(ids.lengths), dtype=np.uint16)
    is_id = np.ones(len(out), dtype=bool)
    is_id[np.cumsum(ids.lengths + 1) - ids.lengths - 1] = False
    out[is_id] = ids.flat
    out[~is_id] = end_of_text
    return out
