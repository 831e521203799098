"""Copies of shards on the local disk of a node, which the runs on that node share.

While a run reads from the shared folder, a thread copies the shards that it reads next. A copy is
named by the SHA-256 of its tokens, so it serves every study, and has its name only when it is
complete. Two runs that copy the same shard both rename a complete file, so they need no lock.

A process deletes the copies that it made when it ends; a run that has one open reads on. What a
killed process leaves is for the epilog of Slurm, as ``$SLURM_TMPDIR`` is.
"""

import atexit
import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from lmscaling.data.shards import Shard
from lmscaling.files import replacing

NEXT = 2
"""The first shard that is copied, counted from the one that is read. The one before is checked
already, from the shared folder."""

AHEAD = 4
"""Number of shards that are copied ahead of reading. The shared folder serves other nodes, too."""

FREE_SHARE = 0.05
"""Share of the local disk that stays free."""


class Copies:
    """Copies of the shards of a stream.

    Args:
        scratch: Folder on the local disk.
        source: Folder of the shards.
        shards: The shards, in the order of the stream.
        makes: Whether to copy shards, and not only to read what other processes have copied.
    """

    def __init__(self, scratch: Path, source: Path, shards: list[Shard], makes: bool) -> None:
        self._folder = scratch / f"lmscaling-{os.getuid()}"
        self._source, self._shards = source, shards
        self._asked: set[int] = set()
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._made: list[Path] = []
        if makes:
            # A daemon: a job that has to end does not wait for a copy.
            threading.Thread(target=self._work, daemon=True).start()
            atexit.register(self._delete)

    def path(self, k: int) -> Path:
        """Where the copy of shard ``k`` is, once it is complete."""
        return self._folder / f"{self._shards[k].sha256}.bin"

    def read_on(self, k: int) -> None:
        """Copy what is read after shard ``k``; it returns at once."""
        for i in range(k + NEXT, k + NEXT + AHEAD):
            shard = i % len(self._shards)
            if shard not in self._asked:
                self._asked.add(shard)
                self._queue.put(shard)

    def _work(self) -> None:
        try:
            while self._copy(self._queue.get()):
                pass
        except OSError as error:
            _say(f"{self._folder}: {error.strerror}")

    def _copy(self, k: int) -> bool:
        """Copy a shard unless a run on this node has; False if the disk has no room for it."""
        source, copy = self._source / self._shards[k].file, self.path(k)
        if copy.exists():
            return True
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._folder)
        if disk.free - source.stat().st_size < FREE_SHARE * disk.total:
            _say(f"{self._folder} has no more room")
            return False
        with source.open("rb") as shared, replacing(copy) as file:
            shutil.copyfileobj(shared, file, 1 << 20)
        self._made.append(copy)
        return True

    def _delete(self) -> None:
        for path in self._made:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another run uses it, or it was never made
            self._folder.rmdir()


def _say(reason: str) -> None:
    print(f"node_scratch: {reason}; further shards are read where they are", file=sys.stderr)
