"""Positions of tokens within their documents, and their distribution.

Each document is preceded by the end-of-text token, at position 0. At position p, a model has
therefore read p tokens of the document's text. Positions are counted in bins that double in width:
0, 1, 2 to 3, 4 to 7 and so on; bin i contains the positions with i binary digits.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from lmscaling.files import read_json


def positions(tokens: np.ndarray, end_of_text: int, before: int = 0) -> np.ndarray:
    """Position of each of N consecutive tokens in its document, int64 ``[N]``; that of the first is
    ``before``, unless it is end-of-text, which starts a document."""
    starts = np.flatnonzero(tokens == end_of_text)
    steps = np.ones(len(tokens), dtype=np.int64)
    steps[starts] = 1 - np.diff(starts, prepend=-before)  # from the previous position back to 0
    steps[:1] = np.where(tokens[:1] == end_of_text, 0, before)
    return np.cumsum(steps, out=steps)


def bins(positions: np.ndarray) -> np.ndarray:
    """Bin of each position: its number of binary digits."""
    return np.frexp(positions)[1]


def bounds(bin: int) -> tuple[int, int]:
    """First position of a bin and of the next bin."""
    return 2**bin // 2, 2**bin


def own_context(lengths: Sequence[int] | np.ndarray) -> list[int]:
    """Number of tokens in each bin, up to that of the longest document, from the lengths of the
    documents, end-of-text included."""
    lengths = np.asarray(lengths, dtype=np.int64)
    longest = int(lengths.max(initial=0))
    counts = []
    while (edges := bounds(len(counts)))[0] < longest:
        low, high = (np.minimum(lengths, edge) for edge in edges)
        counts.append(int((high - low).sum()))
    return counts


def lengths_in_windows(own_context: Sequence[int], context: int) -> dict[int, float]:
    """Share of the tokens in parts of documents of several lengths, in windows of ``context``.

    A window may begin at any token, so a token at position p of its document has k tokens of it
    before it in its window with probability ``1 - k / context``, for k up to p. Within a bin, the
    share of positions beyond k is taken to fall evenly with log k. Lengths with the same number of
    binary digits are one, their mean over tokens.
    """
    at_least = np.append(np.cumsum(own_context[::-1])[::-1], 0) / sum(own_context)
    edges = np.arange(-1, len(own_context))  # log k; -1 stands for position 0
    k = np.arange(1, context + 1)
    beyond = np.interp(np.log2(k), edges, at_least) * (1 - k / context)  # share of the tokens
    longer = np.append(-np.diff(beyond, prepend=1), 0)  # pieces of at least k tokens, per token
    tokens, sizes = -np.diff(longer) * k, bins(k)  # in pieces of k tokens
    sums = np.bincount(sizes, tokens), np.bincount(sizes, tokens * k)
    return {round(weighted / n): float(n) for n, weighted in zip(*sums, strict=True) if n > 1e-12}


def of_shards(paths: Iterable[Path]) -> list[int]:
    """Number of tokens in each bin, from the sidecars of shards."""
    sidecars = (read_json(path.with_suffix(".json"), "sidecar") for path in paths)
    return total(sidecar["own_context"] for sidecar in sidecars)


def total(counts: Iterable[Sequence[int]]) -> list[int]:
    """Sum of the counts of several shards, bin by bin."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def shares(counts: Sequence[int]) -> dict[int, float]:
    """Share of the tokens after at least N tokens of their document, for N = 1, 2, 4, ...

    As in ``run.Evaluation``, a position is that of the token from which the next is predicted.
    """
    at_least = np.cumsum(counts[::-1])[::-1]
    return {bounds(i)[0]: float(n / at_least[0]) for i, n in enumerate(at_least) if i}
