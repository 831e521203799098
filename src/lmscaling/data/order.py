"""The order in which a run reads the blocks of its text: a permutation drawn from its seed.

Text that is not shuffled would otherwise make updates of a few neighbouring documents, and every
pass and every seed would repeat them. The blocks of a window of ``WINDOW`` tokens are permuted,
each window and pass in its own way, and the windows keep their places: shards that are added later
change no window before them. What is left after the last complete block is read last. A window is
so long however short its blocks are, because texts of one source are often neighbours: a run that
came from one window to the next would come from one source to the next.

The permutation is a Feistel network with cycle walking (Luby and Rackoff 1988, doi:10.1137/0217022;
Black and Rogaway 2002, doi:10.1007/3-540-45760-7_9, section 4), as in all runs that are recorded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

WINDOW = 2**29
"""Tokens of a window, 4,096 blocks of 131,072: 537 million, three or four shards of C4."""

ROUNDS = 6


@dataclass(frozen=True)
class Order:
    """The order of the text of a run with ``seed``, in blocks of ``block`` tokens."""

    block: int
    seed: int
    window_tokens: int = WINDOW

    @property
    def window_blocks(self) -> int:
        """Complete blocks of a window, at least one."""
        return max(1, self.window_tokens // self.block)

    def pieces(self, start: int, stop: int, tokens: int, passes: int) -> Iterator[tuple[int, int]]:
        """The ranges of a text that a pass, counted from 1, reads from ``start`` to ``stop``, both
        counted in its order; ``tokens`` of the text have a following token."""
        while start < stop:
            place, offset = divmod(start, self.block)
            n = min(self.block - offset, stop - start)
            at = self.source(place, tokens // self.block, passes) * self.block + offset
            yield at, at + n
            start += n

    def source(self, place: int, blocks: int, passes: int) -> int:
        """Number of the block that a pass reads in a place of so many complete blocks."""
        if place >= blocks:
            return place
        window, i = divmod(place, self.window_blocks)
        first = place - i
        n = min(self.window_blocks, blocks - first)
        return first + permuted(i, n, self.seed, passes, window)

    def window(self, token: int) -> tuple[int, int]:
        """First token of the window of a token, and the token after its last one."""
        tokens = self.window_blocks * self.block
        return token // tokens * tokens, token // tokens * tokens + tokens


def permuted(i: int, n: int, *key: int) -> int:
    """Image of ``i`` under a permutation of 0 to ``n - 1`` that ``key`` determines."""
    half = max(1, (n - 1).bit_length() + 1 >> 1)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for number in range(ROUNDS):
            text = ",".join(map(str, (right, number, *key))).encode()
            code = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
            left, right = right, left ^ code & mask
        i = left << half | right
        if i < n:
            return i
