"""Runs of words that a document has in common with the validation text.

A document is cut into words: letters and digits, in lower case. Two documents that have n
consecutive words in common are near-duplicates; Brown et al. 2020 (arXiv:2005.14165, appendix C)
look for runs of 13 words that the training text of GPT-3 and a benchmark have in common, and remove
each with 200 characters around it. Here the whole training document is left out, so that validation
is the same whatever is trained on.

The runs of the validation text are an index on the disk: their 64-bit hashes, sorted. Two runs have
the same hash by chance with probability 2^-64: with the 6 million runs of 8.4 million
tokens in the index, that of C4's 173 billion tokens is one document in 18 passes.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np

SEPARATORS = re.compile(r"[\W_]+")

BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that it has an inverse modulo 2^64."""

INVERSE = np.uint64(pow(int(BASE), -1, 2**64))

CODES = np.random.default_rng(0).integers(2**64, size=256, dtype=np.uint64)
"""A random number for each byte: sums of the bytes themselves would be alike."""

WORDS = 50_000
"""Words that are hashed at once; bounds the memory for a book."""

FILTER_BITS = 27
"""Logarithm of the size of the table of bits: 16 MB. An eighth of it is filled by the runs of 22
million tokens, a file of C4's validation text."""

BLOCK = 1 << 20
"""Hashes that are put into the table at once."""

HASH = np.dtype("<u8")


def hashes(text: str, n: int) -> np.ndarray:
    """Hashes of all runs of n words of a document, uint64 ``[words - n + 1]``, or none.

    The hash of the bytes b_0 b_1 ... is the polynomial sum of CODES[b_i] BASE^i modulo 2^64: that
    of each run is the difference of two prefix sums, divided by a power of BASE.
    """
    words = SEPARATORS.sub(" ", text.lower()).strip()
    data = np.frombuffer(f" {words} ".encode("utf-8", "surrogatepass"), dtype=np.uint8)
    ends = np.flatnonzero(data == ord(" "))
    parts = [
        _runs(data, ends[start : start + WORDS + n], n)
        for start in range(0, len(ends) - n, WORDS)
        if words
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=HASH)


def _runs(data: np.ndarray, ends: np.ndarray, n: int) -> np.ndarray:
    """Hashes of the runs of n words between these spaces."""
    first = ends[0]
    part, ends = data[first : ends[-1]], ends - first
    sums = np.zeros(len(part) + 1, dtype=HASH)
    np.cumsum(CODES[part] * _powers(len(part), int(BASE)), out=sums[1:])
    return (sums[ends[n:]] - sums[ends[:-n]]) * _powers(len(part), int(INVERSE))[ends[:-n]]


def _powers(n: int, base: int) -> np.ndarray:
    return _table(max(16, n.bit_length()), base)[:n]


@cache
def _table(bits: int, base: int) -> np.ndarray:
    """The powers 0 to 2^bits - 1 of a number, modulo 2^64."""
    factors = np.full(2**bits, base, dtype=HASH)
    factors[0] = 1
    return np.cumprod(factors)


class Index:
    """The runs of words of the validation text.

    A table of bits, one for all hashes that begin alike, answers most questions from the cache of
    the processor; a search in the sorted hashes, for the rest, is five times as slow.

    Args:
        paths: Files of sorted hashes, at least one.
        n: Words of a run.
    """

    def __init__(self, paths: list[Path], n: int) -> None:
        self._n = n
        parts = [np.fromfile(path, dtype=HASH) for path in paths]
        self._sorted = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        self._bits = np.zeros(2 ** (FILTER_BITS - 3), dtype=np.uint8)
        for start in range(0, len(self._sorted), BLOCK):
            byte, bit = _places(self._sorted[start : start + BLOCK])
            for k in range(8):
                self._bits[byte[bit == k]] |= np.uint8(1 << k)

    def has(self, text: str) -> bool:
        """Whether a document has a run in common with the validation text."""
        found = hashes(text, self._n)
        byte, bit = _places(found)
        found = found[self._bits[byte] >> bit & 1 == 1]
        places = np.searchsorted(self._sorted, found)
        return (
            bool((self._sorted.take(places, mode="clip") == found).any()) if len(found) else False
        )


def _places(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Byte and bit of each hash in the table of bits."""
    places = hashes >> np.uint64(64 - FILTER_BITS)
    return places >> np.uint64(3), (places & np.uint64(7)).astype(np.uint8)
