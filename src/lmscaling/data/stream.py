"""From an update number to its tokens, independent of the context and of the machine.

Update ``u`` (counted from 1) of ``B`` tokens reads the slab ``[(u-1) B, u B]`` of the concatenated
shards: one token more than B, because targets are inputs shifted by one. The context, the number of
devices and the micro-batch change neither the tokens of an update nor their order. All cells
therefore train on the same text, and one integer is the complete state of the data.
"""

import os
import sys
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from io import FileIO
from itertools import accumulate
from pathlib import Path

import numpy as np

from lmscaling.data import document_positions, shards
from lmscaling.data.local_copies import Copies
from lmscaling.errors import UserError
from lmscaling.files import read_json, sha256_of

OPEN = 4
"""Shards open at once: the current one, its neighbours and one more. All 1,024 shards of C4 would
exceed the limit on open files of many machines."""

LOOK_BACK = 2**12
"""Tokens searched first for the start of a document; each further block is four times as long."""


class Stream:
    """The shards of one split as one sequence of tokens.

    Args:
        manifest: Path of ``manifest.json``; the shards are in the same folder.
        split: ``"train"`` or ``"validation"``.
        scratch: Folder on the local disk of this node; see ``local_copies``. None uses no copies.
        copies: Whether this process copies shards to ``scratch``; the ranks of a run share them.

    The SHA-256 of a shard is checked before its first token is used, one shard ahead and in the
    background, so that the check costs no budget. Shards are read and not memory-mapped: if a
    mapped file is truncated, the process is killed without a message.
    """

    def __init__(
        self, manifest: Path, split: str, scratch: Path | None = None, copies: bool = True
    ) -> None:
        self.folder = manifest.parent
        self.shards = shards.read_manifest(manifest, split)
        self.ends = list(accumulate(shard.tokens for shard in self.shards))
        self.tokens = self.ends[-1]
        """Length of the stream in tokens."""
        self._checker = ThreadPoolExecutor(max_workers=1)
        self._files: dict[int, Future[FileIO]] = {}
        self._copies = Copies(scratch, self.folder, self.shards, copies) if scratch else None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop``, of type ``token``, across the boundaries of shards.

        Raises:
            EOFError: The stream is shorter.
            UserError: A shard differs from the manifest or is truncated.
        """
        if stop > self.tokens:
            raise EOFError(
                f"the stream ends at token {self.tokens}, but token {stop} was requested"
            )
        out = np.empty(stop - start, dtype=self.token)
        filled = 0
        while filled < out.size:
            at = start + filled
            k = bisect_right(self.ends, at)
            n = min(stop, self.ends[k]) - at
            self._fill(out[filled : filled + n], k, at - self.ends[k] + self.shards[k].tokens)
            filled += n
        return out

    def positions(self, start: int, tokens: np.ndarray) -> np.ndarray:
        """Position of each token in its document, int64, for tokens read from ``start`` on.

        The token that starts a document has position 0. Cost: one pass over the tokens and, if they
        start inside a document, a search backwards for its start.
        """
        inside = len(tokens) and tokens[0] != self.end_of_text
        before = start - self._document_start(start) if inside else 0
        return document_positions.positions(tokens, self.end_of_text, before)

    @cached_property
    def token(self) -> np.dtype:
        """Type of the tokens, uint16 or uint32, from the header of the first shard."""
        return shards.token_type(self.folder / self.shards[0].file)

    @cached_property
    def end_of_text(self) -> int:
        """The token that starts a document, from the first shard's sidecar."""
        path = (self.folder / self.shards[0].file).with_suffix(".json")
        return read_json(path, "sidecar")["end_of_text"]

    def updates(self, update_tokens: int) -> int:
        """Number of complete updates in the stream."""
        return max(0, self.tokens - 1) // update_tokens

    def slab_start(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> int:
        """First token of one rank's share of an update.

        After the last complete update of the stream, a new epoch starts with the first one.
        """
        share = update_tokens // world
        return (update - 1) % self.updates(update_tokens) * update_tokens + rank * share

    def slab(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """One rank's share of an update: ``update_tokens / world + 1`` tokens."""
        start = self.slab_start(update, update_tokens, rank, world)
        return self.read(start, start + update_tokens // world + 1)

    def epoch(self, update: int, update_tokens: int) -> int:
        """Epoch of an update, from 1."""
        return 1 + (update - 1) // self.updates(update_tokens)

    def reached(self, tokens: int) -> tuple[int, str]:
        """Number and id of the shard that contains the last of the first ``tokens`` tokens."""
        k = bisect_right(self.ends, max(0, min(tokens, self.tokens - 1)))
        return k, self.shards[k].id

    def _document_start(self, at: int) -> int:
        """First token of the document that contains token ``at``, or of the stream."""
        block = LOOK_BACK
        while at:
            start = max(0, at - block)
            if starts := np.flatnonzero(self.read(start, at) == self.end_of_text).tolist():
                return start + starts[-1]
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
                f"shard {path} was truncated while it was read: it ends at byte {at}, but the "
                f"manifest states {shards.HEADER_BYTES + self.shards[k].tokens * out.itemsize}; "
                f"{shards.REMEDY}"
            )

    def _open(self, k: int) -> FileIO:
        """Shard ``k``, checked. Starts the check of the next shard and closes distant shards."""
        for i in range(k, min(k + 2, len(self.shards))):
            if i not in self._files:
                self._files[i] = self._checker.submit(self._checked, i)
                if self._copies:
                    self._copies.read_on(k)
        while len(self._files) > OPEN:
            farthest = max(self._files, key=lambda i: abs(i - k))
            self._files.pop(farthest).result().close()
        return self._files[k].result()

    def _checked(self, k: int) -> FileIO:
        """Shard ``k``, from its copy on this node if there is a good one."""
        if self._copies and (copy := self._copies.path(k)).is_file():
            try:
                return self._verified(k, copy)
            except (OSError, UserError) as error:
                print(f"node_scratch: a copy is not used: {error}", file=sys.stderr)
        return self._verified(k, self.folder / self.shards[k].file)

    def _verified(self, k: int, path: Path) -> FileIO:
        shard = self.shards[k]
        n = shards.check(path)
        if (token := shards.token_type(path)) != self.token:
            raise UserError(
                f"shard {path} has tokens of {token.name}, but {self.shards[0].file} has "
                f"{self.token.name}; {shards.REMEDY}"
            )
        sha256 = sha256_of(path, shards.HEADER_BYTES)
        if sha256 != shard.sha256:
            others = [other.file for other in self.shards if other.sha256 == sha256]
            content = f"the tokens of {others[0]}" if others else f"SHA-256 {sha256}"
            raise UserError(
                f"shard {path} has {content}, but the manifest states {shard.sha256}; "
                f"{shards.REMEDY}"
            )
        if n != shard.tokens:
            raise UserError(
                f"shard {path} has {n} tokens, but the manifest states {shard.tokens}; "
                f"{shards.REMEDY}"
            )
        return FileIO(path)
