"""From an update number to its tokens: the same stream whatever the context or the machine.

Update ``u`` (counted from 1) of ``B`` tokens reads the slab ``[(u-1) B, u B]`` of the shards laid
end to end, one token more than B because targets are inputs moved by one. Neither the context,
the number of devices nor the micro-batch changes which tokens an update sees or in which order,
so cells are compared on the same text, and the whole state of the data is one integer.
"""

import os
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np

from lmscaling import shards
from lmscaling.errors import UserError
from lmscaling.files import sha256_of


class Stream:
    """The shards of one split as one sequence of tokens.

    Args:
        manifest: Path of ``manifest.json``; the shards lie beside it.
        split: ``"train"`` or ``"validation"``.

    A shard's SHA-256 is checked before its first token is used, one shard ahead and in the
    background, so that checking does not eat the budget.
    """

    def __init__(self, manifest: Path, split: str) -> None:
        self.folder = manifest.parent
        self.shards = shards.read_manifest(manifest, split)
        self.ends = list(accumulate(shard.tokens for shard in self.shards))
        self.tokens = self.ends[-1]
        """Length of the stream in tokens."""
        self._checker = ThreadPoolExecutor(max_workers=1)
        self._files: dict[int, Future[int]] = {}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` as uint16, across shard borders.

        Raises:
            EOFError: The stream is shorter.
            UserError: A shard is not what the manifest says.
        """
        if stop > self.tokens:
            raise EOFError(f"the stream ends at token {self.tokens}, asked for {stop}")
        out = np.empty(stop - start, dtype=shards.TOKEN)
        filled = 0
        while filled < out.size:
            at = start + filled
            k = bisect_right(self.ends, at)
            n = min(stop, self.ends[k]) - at
            offset = at - (self.ends[k] - self.shards[k].tokens)
            data = os.pread(
                self._open(k), n * out.itemsize, shards.HEADER_BYTES + offset * out.itemsize
            )
            if len(data) != n * out.itemsize:
                raise UserError(f"shard {self.shards[k].file} was cut short while it was read")
            out[filled : filled + n] = np.frombuffer(data, dtype=shards.TOKEN)
            filled += n
        return out

    def updates(self, update_tokens: int) -> int:
        """Number of whole updates in the stream."""
        return max(0, self.tokens - 1) // update_tokens

    def slab(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """One rank's share of an update: ``update_tokens / world + 1`` tokens, uint16.

        Behind the last whole update of the stream the first comes again: a new epoch.
        """
        share = update_tokens // world
        start = (update - 1) % self.updates(update_tokens) * update_tokens + rank * share
        return self.read(start, start + share + 1)

    def epoch(self, update: int, update_tokens: int) -> int:
        """The pass over the stream that an update belongs to, from 1."""
        return 1 + (update - 1) // self.updates(update_tokens)

    def reached(self, tokens: int) -> tuple[int, str]:
        """Number and chain id of the last shard read after so many tokens: the data's identity."""
        k = bisect_right(self.ends, max(0, min(tokens, self.tokens - 1)))
        return k, self.shards[k].id

    def _open(self, k: int) -> int:
        """File descriptor of shard ``k``, checked; the next shard's check is started."""
        for i in range(k, min(k + 2, len(self.shards))):
            if i not in self._files:
                self._files[i] = self._checker.submit(self._checked, i)
        return self._files[k].result()

    def _checked(self, k: int) -> int:
        shard, path = self.shards[k], self.folder / self.shards[k].file
        found = shards.check(path)
        if found != shard.tokens:
            raise UserError(
                f"shard {path} has {found} tokens, the manifest says {shard.tokens}; "
                f"{shards.REMEDY}"
            )
        sha256 = sha256_of(path, shards.HEADER_BYTES)
        if sha256 != shard.sha256:
            raise UserError(
                f"shard {path} has SHA-256 {sha256}, the manifest says {shard.sha256}; "
                f"{shards.REMEDY}"
            )
        return os.open(path, os.O_RDONLY)
