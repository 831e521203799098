"""A lock between jobs on different nodes: a file that says who holds it and shows that he lives.

It must work on a file system that nodes share, so it asks for no more than NFS promises: a hard
link appears once or not at all, a rename is whole, and who opens a file sees its present times.
``flock`` is not among that. The holder touches the file every ``BEAT_SECONDS``. A lock is *stale*
if its process or its Slurm job is known to have ended, or if it was silent for ``STALE_SECONDS``;
whoever wants it then breaks it and says so. A holder whose lock was broken ends at once.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from lmscaling.errors import UserError

BEAT_SECONDS = 20.0
"""Time between two signs of life."""

STALE_SECONDS = 300.0
"""Silence after which a holder counts as gone: a busy file server may delay several beats."""

LOOK_SECONDS = 1.0
"""Time between two looks at a lock that somebody else holds."""

LOST = 75
"""Exit code of a holder whose lock was broken (EX_TEMPFAIL): another process goes on with it."""

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PENDING", "PREEMPTED", "TIMEOUT",
}  # fmt: skip
"""States in which no process of a Slurm job runs; a job that was requeued is pending."""


class Busy(UserError):
    """Somebody else holds the lock, and lives."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What a lock says of the process that holds it."""

    host: str = ""
    namespace: str = ""
    """Boot and process namespace: a process number means something in one of them only."""
    pid: int = 0
    born: float = 0.0
    """Start of the process, seconds since 1970: a number alone may have been given again."""
    job: str = ""
    """Slurm job, or empty."""
    cluster: str = ""

    @property
    def words(self) -> str:
        """Who it is, for people."""
        return f"{f'job {self.job}' if self.job else f'process {self.pid}'} on {self.host or '?'}"


def myself() -> Holder:
    """This process as a holder."""
    return Holder(
        host=socket.gethostname(),
        namespace=_namespace(),
        pid=os.getpid(),
        born=psutil.Process().create_time(),
        job=os.environ.get("SLURM_JOB_ID", ""),
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
    )


def holder(path: Path) -> Holder | None:
    """Who holds a lock as far as its file tells; None if nobody does or the lock is stale."""
    found = _read(path)
    if found is None:
        return None
    who, beat = found
    lives = _lives(who)
    silent = time.time() - beat
    return who if (silent < STALE_SECONDS if lives is None else lives) else None


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock; ``what`` is said of it if somebody else does.

    Raises:
        Busy: Its holder lives. Waits for a sign of life, or for ``STALE_SECONDS`` without one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with mine.open("w+b") as file:
        file.write(json.dumps(asdict(myself())).encode())
        file.flush()
        os.fsync(file.fileno())
        try:
            _take(path, mine, file, what)
        finally:
            mine.unlink()
        released = threading.Event()
        beating = threading.Thread(target=_beat, args=(path, file, released), daemon=True)
        beating.start()
        try:
            yield
        finally:
            released.set()
            beating.join()
            if _is_mine(path, file):
                path.unlink()


def _take(path: Path, mine: Path, file: BinaryIO, what: str) -> None:
    """Link our file to the name of the lock, as soon as it is free or stale."""
    seen: float | None = None
    while not _linked(mine, path):
        found = _read(path)
        if found is None:
            continue
        who, beat = found
        os.utime(file.fileno())  # the server's clock gives both times
        silent = os.fstat(file.fileno()).st_mtime - beat
        reason = _over(who, silent)
        if reason:
            _break(path, found, f"{what}: the lock of {who.words} is broken, for {reason}")
            continue
        if _lives(who) or (seen is not None and seen != beat):
            raise Busy(f"{what} by {who.words}")
        seen = beat
        time.sleep(LOOK_SECONDS)


def _linked(mine: Path, path: Path) -> bool:
    """Whether the lock is ours now."""
    try:
        os.link(mine, path)
    except FileExistsError:
        # A server whose answer was lost is asked again, and then says that the file exists.
        return mine.stat().st_nlink == 2
    return True


def _read(path: Path) -> tuple[Holder, float] | None:
    """Who a lock names and when he last gave a sign of life; None if there is no lock."""
    try:
        with path.open("rb") as file:  # opened, not only asked: NFS may keep old times otherwise
            text, beat = file.read(), os.fstat(file.fileno()).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Holder(**json.loads(text)), beat
    except (ValueError, TypeError):
        return Holder(), beat  # of another version


def _over(who: Holder, silent: float) -> str:
    """Why it is certain that a holder has ended; empty if it is not."""
    lives, me = _lives(who), myself()
    if lives is False:
        return "its process has ended"
    if lives is None and who.job and who.cluster == me.cluster:
        if who.job == me.job:
            return "this job was requeued"
        if silent > 2 * BEAT_SECONDS and _job_has_ended(who.job):
            return "the job has ended"
    return f"it was silent for {silent:.0f} s" if lives is None and silent > STALE_SECONDS else ""


def _lives(who: Holder) -> bool | None:
    """Whether a process of this host lives; None if it is of another."""
    if (who.host, who.namespace) != (socket.gethostname(), _namespace()):
        return None
    try:
        process = psutil.Process(who.pid)
        same = abs(process.create_time() - who.born) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _job_has_ended(job: str) -> bool:
    """Whether Slurm is at hand and says so."""
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if asked.returncode:
        return "Invalid job id" in asked.stderr
    return not set(asked.stdout.split()) - ENDED


def _break(path: Path, judged: tuple[Holder, float], said: str) -> None:
    """Take away the lock that was judged, and no other.

    One process at a time may do it: nobody else can then have put his own lock in its place between
    the look and the removal.
    """
    turn = path.with_name(f"{path.name}.breaking")
    mine = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    mine.touch()
    try:
        if _linked(mine, turn):
            try:
                if _read(path) == judged:
                    path.unlink()
                    print(said, file=sys.stderr, flush=True)
            finally:
                turn.unlink()
        else:
            _pass_over(turn, mine.stat().st_mtime)
    finally:
        mine.unlink()


def _pass_over(turn: Path, now: float) -> None:
    """Wait for the process whose turn it is, or end its turn if it was killed in it."""
    with suppress(FileNotFoundError):
        if now - turn.stat().st_mtime > STALE_SECONDS:
            turn.unlink()
    time.sleep(LOOK_SECONDS / 20)


def _beat(path: Path, file: BinaryIO, released: threading.Event) -> None:
    while not released.wait(BEAT_SECONDS):
        try:
            os.utime(file.fileno())
        except OSError:
            continue  # if the file is gone for good, the next line tells
        if not _is_mine(path, file):
            print(f"{path} was taken over by another process", file=sys.stderr, flush=True)
            os._exit(LOST)


def _is_mine(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
