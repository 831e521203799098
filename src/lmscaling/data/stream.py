"""From an update number to its tokens: the same stream whatever the context or the machine.

Update ``u`` (counted from 1) of ``B`` tokens reads the slab ``[(u-1) B, u B]`` of the shards laid
end to end, one token more than B because targets are inputs moved by one. Neither the context,
the number of devices nor the micro-batch changes which tokens an update sees or in which order,
so cells are compared on the same text, and the whole state of the data is one integer.
"""

import os
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from io import FileIO
from itertools import accumulate
from pathlib import Path

import numpy as np

from lmscaling.data import document_positions, shards
from lmscaling.errors import UserError
from lmscaling.files import read_json, sha256_of

OPEN = 4
"""Shards open at once: the one that is read, its neighbours and one more. All 1,024 of C4 would be
more files than a process may have on many machines."""

LOOK_BACK = 2**12
"""Tokens looked through at first for where a document began; four times as many each time after."""


class Stream:
    """The shards of one split as one sequence of tokens.

    Args:
        manifest: Path of ``manifest.json``; the shards lie beside it.
        split: ``"train"`` or ``"validation"``.

    A shard's SHA-256 is checked before its first token is used, one shard ahead and in the
    background, so that checking does not eat the budget. Shards are read and never mapped: a file
    that is cut short under a map kills the process that reads it, without a word.
    """

    def __init__(self, manifest: Path, split: str) -> None:
        self.folder = manifest.parent
        self.shards = shards.read_manifest(manifest, split)
        self.ends = list(accumulate(shard.tokens for shard in self.shards))
        self.tokens = self.ends[-1]
        """Length of the stream in tokens."""
        self._checker = ThreadPoolExecutor(max_workers=1)
        self._files: dict[int, Future[FileIO]] = {}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` as uint16, across shard borders.

        Raises:
            EOFError: The stream is shorter.
            UserError: A shard is not what the manifest says, or ends before its tokens do.
        """
        if stop > self.tokens:
            raise EOFError(f"the stream ends at token {self.tokens}, asked for {stop}")
        out = np.empty(stop - start, dtype=shards.TOKEN)
        filled = 0
        while filled < out.size:
            at = start + filled
            k = bisect_right(self.ends, at)
            n = min(stop, self.ends[k]) - at
            self._fill(out[filled : filled + n], k, at - self.ends[k] + self.shards[k].tokens)
            filled += n
        return out

    def positions(self, start: int, tokens: np.ndarray) -> np.ndarray:
        """Position of each token in its own document, int64, of tokens read from ``start`` on.

        The token that begins a document is at 0. Cost: one pass over the tokens, and where they
        begin inside a document, reading back to where that began.
        """
        inside = len(tokens) and tokens[0] != self.end_of_text
        before = start - self._document_start(start) if inside else 0
        return document_positions.positions(tokens, self.end_of_text, before)

    @cached_property
    def end_of_text(self) -> int:
        """The token that begins a document, from the first shard's sidecar."""
        path = (self.folder / self.shards[0].file).with_suffix(".json")
        return read_json(path, "sidecar")["end_of_text"]

    def updates(self, update_tokens: int) -> int:
        """Number of whole updates in the stream."""
        return max(0, self.tokens - 1) // update_tokens

    def slab_start(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> int:
        """Where in the stream one rank's share of an update begins.

        Behind the last whole update of the stream the first comes again: a new epoch.
        """
        share = update_tokens // world
        return (update - 1) % self.updates(update_tokens) * update_tokens + rank * share

    def slab(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """One rank's share of an update: ``update_tokens / world + 1`` tokens, uint16."""
        start = self.slab_start(update, update_tokens, rank, world)
        return self.read(start, start + update_tokens // world + 1)

    def epoch(self, update: int, update_tokens: int) -> int:
        """The pass over the stream that an update belongs to, from 1."""
        return 1 + (update - 1) // self.updates(update_tokens)

    def reached(self, tokens: int) -> tuple[int, str]:
        """Number and chain id of the last shard read after so many tokens: the data's identity."""
        k = bisect_right(self.ends, max(0, min(tokens, self.tokens - 1)))
        return k, self.shards[k].id

    def _document_start(self, at: int) -> int:
        """Where the document of a token began; the start of the stream if nothing else."""
        block = LOOK_BACK
        while at:
            start = max(0, at - block)
            if found := np.flatnonzero(self.read(start, at) == self.end_of_text).tolist():
                return start + found[-1]
            at, block = start, 4 * block
        return 0

    def _fill(self, out: np.ndarray, k: int, offset: int) -> None:
        """Read tokens of shard ``k`` from ``offset`` on."""
        path, left = self.folder / self.shards[k].file, out.data.cast("B")
        at = shards.HEADER_BYTES + offset * out.itemsize
        try:
            descriptor = self._open(k).fileno()
            while left and (n := os.preadv(descriptor, [left], at)):
                left, at = left[n:], at + n
        except OSError as error:
            raise UserError(f"shard {path} cannot be read: {error.strerror}") from error
        if left:
            raise UserError(
                f"shard {path} was cut short while it was read: it ends at byte {at}, the manifest "
                f"says {shards.HEADER_BYTES + self.shards[k].tokens * out.itemsize}; "
                f"{shards.REMEDY}"
            )

    def _open(self, k: int) -> FileIO:
        """Shard ``k``, checked; the next shard's check is started, and what is far is closed."""
        for i in range(k, min(k + 2, len(self.shards))):
            if i not in self._files:
                self._files[i] = self._checker.submit(self._checked, i)
        while len(self._files) > OPEN:
            far = max(self._files, key=lambda i: abs(i - k))
            self._files.pop(far).result().close()
        return self._files[k].result()

    def _checked(self, k: int) -> FileIO:
        shard, path = self.shards[k], self.folder / self.shards[k].file
        found = shards.check(path)
        sha256 = sha256_of(path, shards.HEADER_BYTES)
        if sha256 != shard.sha256:
            others = [other.file for other in self.shards if other.sha256 == sha256]
            holds = f"holds the tokens of {others[0]}" if others else f"has SHA-256 {sha256}"
            raise UserError(
                f"shard {path} {holds}, the manifest says {shard.sha256}; {shards.REMEDY}"
            )
        if found != shard.tokens:
            raise UserError(
                f"shard {path} has {found} tokens, the manifest says {shard.tokens}; "
                f"{shards.REMEDY}"
            )
        return FileIO(path)
