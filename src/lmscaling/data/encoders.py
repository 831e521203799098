"""From documents to token ids, with backends that differ only in speed.

A backend takes a list of texts and returns their concatenated ids, unsigned ``[n]``, and the number
of ids of each text, int64 ``[documents]``. Text is always encoded as ordinary text, so no id is
end-of-text. The backend gigatoken is a recent package, so its output is checked: the first
``FIRST`` documents of a shard and ``RANDOM`` random ones must have the ids of tiktoken.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tiktoken

from lmscaling.config.datasets import Tokenizer
from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError

if TYPE_CHECKING:
    import tokenizers

FIRST, RANDOM = 2_000, 500
"""Numbers of documents per shard whose ids are compared: from the start, and at random."""


class Ids(NamedTuple):
    """Token ids of several documents."""

    flat: np.ndarray
    """uint16 or uint32 ``[n]``, concatenated."""
    lengths: np.ndarray
    """Number of ids of each document, int64 ``[documents]``."""


Encode = Callable[[list[str]], Ids]


def simple(encoder: tiktoken.Encoding, texts: list[str]) -> Ids:
    """One list of integers per document, as in nanoGPT's data preparation."""
    return _concatenated(encoder.encode_ordinary(text) for text in texts)


def through_tokenizers(encoder: "tokenizers.Tokenizer", texts: list[str]) -> Ids:
    """The package ``tokenizers``, without the tokens that a post-processor adds."""
    made = encoder.encode_batch_fast(texts, add_special_tokens=False)
    return _concatenated(encoding.ids for encoding in made)


def _concatenated(documents: Iterable[list[int]]) -> Ids:
    arrays = [np.array(ids, dtype=np.uint32) for ids in documents]
    return Ids(np.concatenate(arrays), np.array([len(a) for a in arrays], dtype=np.int64))


def buffers(encoder: tiktoken.Encoding, texts: list[str]) -> Ids:
    """tiktoken's buffers of uint32: no Python integers, and no search for special tokens.

    The public ``Encoding.encode_to_numpy`` wraps the same buffer. It takes a few per cent longer
    because it creates one array per document.
    """
    encode = encoder._core_bpe.encode_to_tiktoken_buffer
    no_special: set[str] = set()
    views = [memoryview(encode(text, no_special)) for text in texts]
    flat = np.frombuffer(bytearray().join(views), dtype=np.uint32)
    return Ids(flat, np.array([view.nbytes for view in views], dtype=np.int64) // 4)


def gigatoken(path: Path) -> Encode:
    """The gigatoken package with GPT-2's ranks, on the calling thread: one core per shard.

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
    tokenizer = gigatoken.Tokenizer.from_tiktoken(path, pretokenizer="gpt2", special_tokens={})

    def encode(texts: list[str]) -> Ids:
        layout: Any = tokenizer.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        return Ids(np.asarray(layout.content.data), np.diff(offsets))

    return encode


class Compared:
    """A fast encoder whose ids are compared with those of a slow one.

    Args:
        fast: Encoder whose ids are used.
        reference: Encoder with the correct ids.
        seed: Seed of the random documents; a shard always draws the same ones.
    """

    def __init__(self, fast: Encode, reference: Encode, seed: str) -> None:
        self._fast, self._reference = fast, reference
        self.seen = 0
        """Number of documents so far."""
        self._drawn: dict[int, tuple[int, str, np.ndarray]] = {}
        self._draws = drawn(RANDOM, random.Random(seed))
        self._next = next(self._draws)

    def __call__(self, texts: list[str]) -> Ids:
        """Ids of the next documents.

        Raises:
            UserError: One of the first documents has other ids than the reference.
        """
        batch = self._fast(texts)
        ends = np.cumsum(batch.lengths)
        begin, self.seen = self.seen, self.seen + len(texts)

        def ids(number: int) -> np.ndarray:
            i = number - begin
            return batch.flat[ends[i] - batch.lengths[i] : ends[i]]

        for number in range(begin, min(self.seen, FIRST)):
            self._compare(number, texts[number - begin], ids(number))
        while (number := FIRST + self._next[0]) < self.seen:
            self._drawn[self._next[1]] = number, texts[number - begin], ids(number).copy()
            self._next = next(self._draws)
        return batch

    def finish(self) -> int:
        """Compare the random documents, and return the number of all compared documents.

        Raises:
            UserError: One of them has other ids than the reference.
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
    """Reservoir sampling of n items from a stream of unknown length.

    Yields pairs of an item number and its place in the reservoir, from 0 to n - 1. After any number
    of items, the reservoir is a uniform sample of them. Items that are not drawn cost no time.

    Source: Li 1994 (doi:10.1145/198429.198435), algorithm L.
    """
    yield from zip(range(n), range(n), strict=True)
    item, largest = n - 1, 1.0
    while True:
        largest *= generator.random() ** (1 / n)
        item += 1 + int(math.log(generator.random()) / math.log1p(-largest))
        yield item, generator.randrange(n)


def encode_with(
    row: Tokenizer, encoder: tiktoken.Encoding | Loaded, ranks: Path | None, seed: str
) -> Encode | Compared:
    """The backend of a tokenizer row.

    Args:
        row: The tokenizer.
        encoder: What ``vocabulary.load`` returns for it.
        ranks: File of its vocabulary; required by backend gigatoken.
        seed: See ``Compared``.

    Raises:
        UserError: The backend is not installed, or the file is missing.
    """
    if isinstance(encoder, Loaded):
        return partial(through_tokenizers, encoder.tokenizer)
    if row.reader == "simple":
        return partial(simple, encoder)
    if row.reader == "tiktoken":
        return partial(buffers, encoder)
    if ranks is None:
        raise UserError(
            "backend gigatoken reads the vocabulary from a file; give it with --vocabulary, "
            "and create it with: lmscaling vocabulary gpt2.tiktoken"
        )
    return Compared(gigatoken(ranks), partial(buffers, encoder), seed)


def versions(row: Tokenizer) -> dict[str, str]:
    """Versions of the packages that compute the ids."""
    if not row.encoding:
        import tokenizers

        return {"tokenizers": tokenizers.__version__}
    fast = {"gigatoken": version("gigatoken")} if row.backend == "gigatoken" else {}
    return {"tiktoken": tiktoken.__version__, **fast}


def joined(ids: Ids, end_of_text: int) -> np.ndarray:
    """The documents as one stream with the end-of-text token before each, uint16 if that holds it,
    else uint32.

    Raises:
        UserError: An id is that of end-of-text or above, so it would fake a boundary.
    """
    if ids.flat.size and ids.flat.max() >= end_of_text:
        raise UserError(
            f"the tokenizer returned id {ids.flat.max()} for ordinary text; allowed: below "
            f"{end_of_text}, the end-of-text token"
        )
    token = np.uint16 if end_of_text < 2**16 else np.uint32
    out = np.empty(len(ids.flat) + len(ids.lengths), dtype=token)
    is_id = np.ones(len(out), dtype=bool)
    is_id[np.cumsum(ids.lengths + 1) - ids.lengths - 1] = False
    out[is_id] = ids.flat
    out[~is_id] = end_of_text
    return out
