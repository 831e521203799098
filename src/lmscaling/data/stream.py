"""From an update number to its tokens, independent of the context and of the machine.

Update ``u`` (counted from 1) of ``B`` tokens reads tokens ``(u-1) B`` to ``u B - 1`` of the text
read again and again: of the concatenated shards or, with an order (``order.py``), of their blocks,
permuted in each pass. An epoch is as many updates as one pass fills, so the next one begins with
what is left of that pass. The target of a token is always the one that follows it in the text. The
context, the number of devices and the micro-batch change neither the tokens of an update nor their
order. All cells with one seed therefore train on the same text, and one integer is the complete
state of the data.
"""

import hashlib
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from lmscaling.data import document_positions, shards
from lmscaling.data.order import Order
from lmscaling.errors import UserError
from lmscaling.files import read_json

OPEN = 8
"""Shards open at once; all 1,024 shards of C4 would exceed the limit of many machines."""

LOOK_BACK = 2**12
"""Tokens searched first for the start of a document; each further block is four times as long."""

BLOCK_BYTES = 2**16
"""Bytes of tokens under one short digest: a reader reads and checks whole blocks."""


def digests(path: Path) -> "tuple[str, array[int]]":
    """SHA-256 of the tokens of a shard, and a digest of 64 bits of each of its blocks."""
    sha256, blocks = hashlib.sha256(), array("Q")
    with path.open("rb") as file:
        file.seek(shards.HEADER_BYTES)
        while block := file.read(BLOCK_BYTES):
            sha256.update(block)
            blocks.append(xxh3_64_intdigest(block))
    return sha256.hexdigest(), blocks


class Stream:
    """The shards of one split as one sequence of tokens.

    Args:
        manifest: Path of ``manifest.json``; the shards are in the same folder.
        split: ``"train"`` or ``"validation"``.
        order: Order of the blocks; None reads the shards from end to end.

    The SHA-256 of a shard is checked before its first token is used, in the background and one
    shard or one window of blocks ahead, so that the check costs no budget. The same pass digests
    each block, with which all that is read later is compared. Shards are read and not
    memory-mapped: if a mapped file is truncated, the process is killed without a message.
    """

    def __init__(self, manifest: Path, split: str, order: Order | None = None) -> None:
        self.folder = manifest.parent
        self.shards = shards.read_manifest(manifest, split)
        self.ends = list(accumulate(shard.tokens for shard in self.shards))
        self.tokens = self.ends[-1]
        """Length of the stream in tokens."""
        self.order = order
        self._checker = ThreadPoolExecutor(max_workers=1)
        self._checks: dict[int, Future[_Checked]] = {}
        """Of the shards that have the expected tokens."""
        self._files: dict[int, FileIO] = {}
        """Open shards, the one used last at the end."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop``, of type ``token``, across boundaries of shards; EOFError if
        the stream is shorter, UserError if a shard differs from the manifest or is truncated."""
        if stop > self.tokens:
            raise EOFError(f"the stream ends at token {self.tokens}, and {stop} was requested")
        out, at = np.empty(stop - start, dtype=self.token), start
        while at < stop:
            k = self._shard(at)
            end = min(stop, self.ends[k])
            offset = at - self.ends[k] + self.shards[k].tokens
            self._fill(out[at - start : end - start], k, offset)
            at = end
        return out

    def positions(self, start: int, tokens: np.ndarray) -> np.ndarray:
        """Position in its document of each of some tokens that were read from ``start`` on, int64;
        0 for the one that starts a document. It may search backwards for the start of the first."""
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

    def pieces(
        self, update: int, update_tokens: int, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[int, int]]:
        """The ranges of tokens of one rank's share of an update, in order."""
        share, once = update_tokens // world, self.tokens - 1  # of which a pass reads all
        start = (update - 1) * update_tokens + rank * share
        while share:
            passes, at = divmod(start, once)
            n = min(share, once - at)
            whole = [(at, at + n)]
            yield from self.order.pieces(at, at + n, once, passes + 1) if self.order else whole
            start, share = start + n, share - n

    def slab(self, update: int, update_tokens: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """One rank's share of an update: inputs and their targets, ``[2, update_tokens / world]``;
        dtype and errors are those of ``read``."""
        pieces = list(self.pieces(update, update_tokens, rank, world))
        if self.order:  # the windows that are read now, and the next one
            windows = [self.order.window(start) for start, _ in pieces]
            first, last = min(windows)[0], self.order.window(max(windows)[1])[1]
            self._check(range(self._shard(first), self._shard(min(last, self.tokens - 1)) + 1))
        out = np.empty((2, update_tokens // world), dtype=self.token)
        filled = 0
        for start, stop in pieces:
            tokens, part = self.read(start, stop + 1), slice(filled, filled + stop - start)
            out[0, part], out[1, part] = tokens[:-1], tokens[1:]
            filled = part.stop
        return out

    def reached(self, tokens: int) -> tuple[int, str]:
        """Number and id of the last shard on which the first ``tokens`` tokens of a run depend: of
        the last one or, with an order, of the end of its window."""
        last = self.order.window(max(0, tokens - 1))[1] if self.order else tokens
        k = self._shard(min(last, self.tokens - 1))
        return k, self.shards[k].id

    def go_on(self, tokens: int, shard: int, identity: str) -> None:
        """Prepare to go on after the first ``tokens`` tokens of a run, which had ``reached`` the
        shard with this number and id; ValueError if this is another text.

        If the text ended sooner when they were read, it keeps that end for this run, because more
        text would change the order of the window, or of the pass, that the run has begun.
        """
        now = self.reached(tokens)
        if shard < now[0] and self.shards[shard].id == identity:
            had = f"and had {shard + 1} when this run last read it; it keeps these"
            print(f"the text has {len(self.shards)} shards, {had}", file=sys.stderr, flush=True)
            self.shards, self.ends = self.shards[: shard + 1], self.ends[: shard + 1]
            self.tokens = self.ends[-1]
            now = self.reached(tokens)
        if now != (shard, identity):
            here = f"and the tokens here are {now[1][:12]} up to shard {now[0]}"
            raise ValueError(f"it has read tokens {identity[:12]} up to shard {shard}, {here}")

    def _shard(self, token: int) -> int:
        return bisect_right(self.ends, token)

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
        """Read tokens of shard ``k`` from ``offset`` on, in whole blocks, which are compared."""
        path, size = self.folder / self.shards[k].file, self.shards[k].tokens * out.itemsize
        start, stop = offset * out.itemsize, (offset + len(out)) * out.itemsize
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        before = first * BLOCK_BYTES
        data = np.empty(min(last * BLOCK_BYTES, size) - before, dtype=np.uint8)
        left, at = data.data, shards.HEADER_BYTES + before
        try:
            descriptor = self._open(k).fileno()
            while left and (n := os.preadv(descriptor, [left], at)):
                left, at = left[n:], at + n
        except OSError as error:
            problem = f"shard {path} cannot be read: {error.strerror}"
            raise UserError(f"{problem}; if its disk is sound, {shards.REMEDY}") from error
        if left:
            raise UserError(
                f"shard {path} was truncated while it was read: it ends at byte {at}, but the "
                f"manifest states {shards.HEADER_BYTES + size}; {shards.REMEDY}"
            )
        known = self._checks[k].result().blocks
        for i in range(first, last):
            place = (i - first) * BLOCK_BYTES
            if xxh3_64_intdigest(data.data[place : place + BLOCK_BYTES]) != known[i]:
                raise UserError(
                    f"shard {path} has changed since it was checked, after byte "
                    f"{shards.HEADER_BYTES + before + place}; {shards.REMEDY}"
                )
        out.view(np.uint8)[:] = data[start - before : stop - before]

    def _check(self, numbers: range) -> None:
        """Start the checks of shards that are not checked yet."""
        for i in numbers:
            if i not in self._checks:
                self._checks[i] = self._checker.submit(self._verified, i)

    def _open(self, k: int) -> FileIO:
        """Shard ``k``, checked. Starts the check of the next shard and closes the oldest one."""
        self._check(range(k, min(k + 2, len(self.shards))))
        path = self.folder / self.shards[k].file
        if self._checks[k].result().identity != _identity(path) and k not in self._files:
            self._checks[k] = self._checker.submit(self._verified, k)  # it was replaced
            self._checks[k].result()
        file = self._files[k] = self._files.pop(k, None) or FileIO(path)
        while len(self._files) > OPEN:
            self._files.pop(next(iter(self._files))).close()
        return file

    def _verified(self, k: int) -> "_Checked":
        """Check the tokens of shard ``k``."""
        shard = self.shards[k]
        path = self.folder / shard.file
        identity = _identity(path)
        n, token = shards.check(path), shards.token_type(path).name
        sha256, blocks = digests(path)
        others = [other.file for other in self.shards if other.sha256 == sha256]
        content = f"the tokens of {others[0]}" if others else f"SHA-256 {sha256}"
        for found, expected, is_right in (
            (f"tokens of {token}", self.token.name, token == self.token.name),
            (content, shard.sha256, sha256 == shard.sha256),
            (f"{n} tokens", shard.tokens, n == shard.tokens),
        ):
            if not is_right:
                problem = f"shard {path} has {found}, but the manifest states {expected}"
                raise UserError(f"{problem}; {shards.REMEDY}")
        return _Checked(identity, blocks)


class _Checked(NamedTuple):
    """What was found when the tokens of a shard were right."""

    identity: tuple[int, ...]
    """See ``_identity``."""
    blocks: "array[int]"
    """See ``digests``."""


def _identity(path: Path) -> tuple[int, ...]:
    """What changes if a file is written or replaced; empty if there is none."""
    state = path.stat() if path.exists() else None
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) if state else ()
