"""Where tokens stand in their own documents, and how many of them have how much before them.

Each document is preceded by the end-of-text token, which stands at position 0, so a token at
position p is the last of p tokens of text that a model was given of its document. Positions are
counted in bins that double: 0, 1, 2 to 3, 4 to 7 and so on; bin i holds those with i binary digits.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np


def positions(tokens: np.ndarray, end_of_text: int, before: int = 0) -> np.ndarray:
    """Position of each of N tokens in its own document, int64 ``[N]``.

    Args:
        tokens: Consecutive tokens.
        end_of_text: The token that begins a document.
        before: Position of the first of them, if it begins no document.
    """
    starts = np.flatnonzero(tokens == end_of_text)
    steps = np.ones(len(tokens), dtype=np.int64)
    steps[starts] = 1 - np.diff(starts, prepend=-before)  # from the last position back to 0
    steps[:1] = np.where(tokens[:1] == end_of_text, 0, before)
    return np.cumsum(steps, out=steps)


def bins(positions: np.ndarray) -> np.ndarray:
    """Bin of each position: its number of binary digits."""
    return np.frexp(positions)[1]


def bounds(bin: int) -> tuple[int, int]:
    """First position of a bin and the first behind it."""
    return 2**bin // 2, 2**bin


def own_context(lengths: Sequence[int] | np.ndarray) -> list[int]:
    """How many tokens of documents stand in each bin, from the lengths of the documents alone.

    Args:
        lengths: Tokens of each document, the end-of-text token before it included.

    Returns:
        Count by bin, down to the longest document; the sum is the number of tokens.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    longest = int(lengths.max(initial=0))
    counts = []
    while (edges := bounds(len(counts)))[0] < longest:
        low, high = (np.minimum(lengths, edge) for edge in edges)
        counts.append(int((high - low).sum()))
    return counts


def total(counts: Iterable[Sequence[int]]) -> list[int]:
    """Counts of several shards as those of all their text."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def shares(counts: Sequence[int]) -> dict[int, float]:
    """By N = 1, 2, 4, ...: share of the tokens with at least N tokens of their own document before.

    As in ``records.Evaluation``, a token stands for the one that is predicted from it.
    """
    behind = np.cumsum(counts[::-1])[::-1]
    return {bounds(i)[0]: float(n / behind[0]) for i, n in enumerate(behind) if i}
