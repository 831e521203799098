"""The order in which a run reads the blocks of its text: a permutation drawn from its seed.

Text that is not shuffled would otherwise make updates of a few neighbouring documents, and every
epoch and every seed would repeat them. The blocks of a window of ``WINDOW`` blocks are permuted,
each window and each epoch in its own way; the windows keep their places. So shards that are added
later change no window before them, and a run has a few shards in use and not all of them. What is
left after the last complete block is read last.

The permutation is a Feistel network with cycle walking: its state is the seed, and it is the same
in every version of Python and NumPy. Neither the context, the ranks nor the micro-batch enter it.

Sources: Luby and Rackoff 1988 (doi:10.1137/0217022) for the network; Black and Rogaway 2002
(doi:10.1007/3-540-45760-7_9), section 4, for domains that are no power of two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

WINDOW = 4096
"""Blocks of a window: 537 million tokens in blocks of 131,072, three or four shards of C4."""

ROUNDS = 6


@dataclass(frozen=True)
class Order:
    """The order of a run's text.

    Args:
        block: Tokens of a block.
        seed: Seed of the run.
    """

    block: int
    seed: int

    def pieces(self, start: int, stop: int, tokens: int, epoch: int) -> Iterator[tuple[int, int]]:
        """The ranges of a text that an epoch reads from its token ``start`` to ``stop``.

        Args:
            start: First token, counted in the order of the epoch.
            stop: The token after the last one.
            tokens: Tokens of the text that have a following token.
            epoch: Number of the epoch.
        """
        while start < stop:
            place, offset = divmod(start, self.block)
            n = min(self.block - offset, stop - start)
            at = self.source(place, tokens // self.block, epoch) * self.block + offset
            yield at, at + n
            start += n

    def source(self, place: int, blocks: int, epoch: int) -> int:
        """Number of the block that is read in a place, of a text with so many complete blocks."""
        if place >= blocks:
            return place
        window, i = divmod(place, WINDOW)
        first = window * WINDOW
        return first + permuted(i, min(WINDOW, blocks - first), self.seed, epoch, window)

    def window(self, token: int) -> tuple[int, int]:
        """First token of the window of a token, and the token after its last one."""
        tokens = WINDOW * self.block
        first = token // tokens * tokens
        return first, first + tokens


def permuted(i: int, n: int, *key: int) -> int:
    """Image of ``i`` under a permutation of 0 to ``n - 1`` that the numbers of ``key`` determine.

    Cost: six hashes, four times as many at worst on average.
    """
    half = max(1, (n - 1).bit_length() + 1 >> 1)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for number in range(ROUNDS):
            left, right = right, left ^ _hash(right, number, *key) & mask
        i = left << half | right
        if i < n:
            return i


def _hash(*numbers: int) -> int:
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
