"""A lock on a folder between jobs on different nodes: a file that names its holder.

It must work on a file system that nodes share, so it relies only on what NFS guarantees: making a
hard link or a folder either succeeds or fails, and opening a file shows its current times. NFS does
not guarantee ``flock``. The holder touches the file every ``BEAT_SECONDS``. A lock is *stale* if
its holder is a process of this host that has ended, or if the file was not touched for
``STALE_SECONDS``. Another process that wants a stale lock breaks it and says so. A holder whose
lock was broken exits at once.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.files import temporary_path

NAME = "lock"
"""Name of the file in the folder that is locked."""

BEAT_SECONDS = 20.0
"""Time between two touches by the holder."""

STALE_SECONDS = 300.0
"""Time without a touch after which a holder counts as gone; a busy file server may delay several
touches."""

POLL_SECONDS = 1.0
"""Time between two looks at a lock that another process holds."""


class Busy(UserError):
    """Another process holds the lock."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What the file of a lock says about the process that holds it."""

    host: str = ""
    namespace: str = ""
    """Host, boot and namespace of processes: only within one is a process known by its number."""
    pid: int = 0
    born: float = 0.0
    """Start of the process, seconds after the boot: numbers are reused, and the clock is set."""
    job: str = ""
    """Slurm job, or empty."""
    cluster: str = ""

    @property
    def description(self) -> str:
        """For people: the job or the process, and its host."""
        return f"{f'job {self.job}' if self.job else f'process {self.pid}'} on {self.host or '?'}"


def this_process() -> Holder:
    """This process as a holder."""
    host = namespace = socket.gethostname()
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace += f" {boot} {os.readlink('/proc/self/ns/pid')}"
    return Holder(
        host=host,
        namespace=namespace,
        pid=os.getpid(),
        born=_since_boot(psutil.Process()),
        job=os.environ.get("SLURM_JOB_ID", ""),
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
    )


def holder(folder: Path) -> Holder | None:
    """The holder of the lock on a folder; None if there is no lock or it is stale."""
    who, touched = _read(folder / NAME)
    return who if who and not _why_stale(who, time.time() - touched) else None


@contextmanager
def hold(folder: Path, activity: str) -> Iterator[None]:
    """Hold the lock on a folder during the block.

    Args:
        folder: What to lock; it is created.
        activity: What the holder does, for the error of the others: "run r is being trained".

    Raises:
        Busy: Another process holds the lock, which is not stale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / NAME, this_process()
    _acquire(path, me, activity)
    released = threading.Event()
    toucher = threading.Thread(target=_keep_touching, args=(path, me, released), daemon=True)
    toucher.start()
    try:
        yield
    finally:
        released.set()
        toucher.join()
        if _read(path)[0] == me:
            path.unlink()


def _acquire(path: Path, me: Holder, activity: str) -> None:
    """Link a file of ours to the name of the lock, as soon as it is free or stale."""
    mine = temporary_path(path)
    try:
        mine.write_text(json.dumps(asdict(me)))
        while not _link(mine, path):
            mine.touch()  # then both times are of the server's clock
            now = mine.stat().st_mtime
            who, touched = _read(path)
            if who and (why := _why_stale(who, now - touched)):
                message = f"{activity}: the lock of {who.description} is broken: {why}"
                _break(path, (who, touched), now, message)
            elif who:
                raise Busy(f"{activity} by {who.description}")
    finally:
        mine.unlink(missing_ok=True)  # a full disk has not made it


def _link(mine: Path, path: Path) -> bool:
    """Give our file a second name; whether it worked."""
    try:
        os.link(mine, path)
    except FileExistsError:
        # If the answer of an NFS server is lost, the request is sent again and finds its own link.
        return mine.stat().st_nlink == 2
    return True


def _read(path: Path) -> tuple[Holder | None, float]:
    """The holder of a lock and when it last touched the file; no holder if there is no lock."""
    try:
        with path.open("rb") as file:  # without opening the file, NFS may show old times
            text, touched = file.read(), os.fstat(file.fileno()).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None, 0.0
    try:
        return Holder(**json.loads(text)), touched
    except (ValueError, TypeError):
        return Holder(), touched  # damaged


def _why_stale(who: Holder, silent: float) -> str:
    """Why it is certain that a holder has ended; empty if it is not."""
    if who.namespace != this_process().namespace:
        return f"it was not touched for {silent:.0f} s" if silent > STALE_SECONDS else ""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(who.pid)
        is_same = abs(_since_boot(process) - who.born) < 2
        if is_same and process.status() != psutil.STATUS_ZOMBIE:
            return ""
    return "its process has ended"


def _since_boot(process: psutil.Process) -> float:
    """psutil adds the time of the boot, which it takes from the clock."""
    return process.create_time() - psutil.boot_time()


def _break(path: Path, stale: tuple[Holder, float], now: float, message: str) -> None:
    """Remove a lock, if it is still the one that was found stale.

    Only one process at a time may do this. Otherwise another process could put its own lock there
    between the check and the removal. A turn ends late if its process was killed meanwhile.
    """
    turn = path.with_name(f"{NAME}.breaking")
    try:
        turn.mkdir()
    except FileExistsError:
        with suppress(OSError):
            if now - turn.stat().st_mtime > STALE_SECONDS:
                turn.rmdir()
        time.sleep(POLL_SECONDS / 20)
        return
    try:
        if _read(path) == stale:
            path.unlink()
            print(message, file=sys.stderr, flush=True)
    finally:
        turn.rmdir()


def _keep_touching(path: Path, me: Holder, released: threading.Event) -> None:
    """Touch the lock until it is released; exit the process if another one has taken it."""
    while not released.wait(BEAT_SECONDS):
        with suppress(OSError):  # the file server may answer at the next touch
            if _read(path)[0] != me:
                print(f"{path} was taken over by another process", file=sys.stderr, flush=True)
                os._exit(TRY_AGAIN)
            os.utime(path)
