"""A lock on a folder between jobs on different nodes: a file that names its holder.

It must work on a file system that nodes share, so it relies only on what NFS guarantees: creating a
hard link either succeeds or fails, a rename is atomic, and opening a file shows its current times.
NFS does not guarantee ``flock``. The holder touches the file every ``BEAT_SECONDS``. A lock is
*stale* if the process or the Slurm job of its holder is known to have ended, or if the file was not
touched for ``STALE_SECONDS``. Another process that wants a stale lock breaks it and says so. A
holder whose lock was broken exits at once.
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

from lmscaling.errors import TRY_AGAIN, UserError

NAME = "lock"
"""Name of the file in the folder that is locked."""

BEAT_SECONDS = 20.0
"""Time between two touches by the holder."""

STALE_SECONDS = 300.0
"""Time without a touch after which a holder counts as gone; a busy file server may delay several
touches."""

POLL_SECONDS = 1.0
"""Time between two looks at a lock that another process holds."""

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PENDING", "PREEMPTED", "TIMEOUT",
}  # fmt: skip
"""States in which no process of a Slurm job runs; a job that was requeued is pending."""


class Busy(UserError):
    """Another process holds the lock and is running."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What the file of a lock says about the process that holds it."""

    host: str = ""
    namespace: str = ""
    """Boot and process namespace: only within one does a process number identify a process."""
    pid: int = 0
    born: float = 0.0
    """Start of the process, seconds after the boot of its host, for process numbers are reused.

    Seconds since 1970 would change with the clock, which is set at any time.
    """
    job: str = ""
    """Slurm job, or empty."""
    cluster: str = ""

    @property
    def description(self) -> str:
        """For people: the job or the process, and its host."""
        return f"{f'job {self.job}' if self.job else f'process {self.pid}'} on {self.host or '?'}"


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(
        host=socket.gethostname(),
        namespace=_namespace(),
        pid=os.getpid(),
        born=_since_boot(psutil.Process()),
        job=os.environ.get("SLURM_JOB_ID", ""),
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
    )


def holder(folder: Path) -> Holder | None:
    """The holder of the lock on a folder; None if there is no lock or it is stale."""
    state = _read(folder / NAME)
    if state is None:
        return None
    who, touched = state
    running = _is_running(who)
    silent = time.time() - touched
    return who if (silent < STALE_SECONDS if running is None else running) else None


@contextmanager
def hold(folder: Path, activity: str) -> Iterator[None]:
    """Hold the lock on a folder during the block.

    Args:
        folder: What to lock; it is created.
        activity: What the holder does, for the error of the others: "run r is being trained".

    Raises:
        Busy: Another process holds the lock and is running. To find this out of a process on
            another node, it waits for the next touch, at most ``STALE_SECONDS``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    mine = _temporary(path)
    with mine.open("w+b") as file:
        file.write(json.dumps(asdict(this_process())).encode())
        file.flush()
        os.fsync(file.fileno())
        try:
            _acquire(path, mine, file, activity)
        finally:
            mine.unlink()
        released = threading.Event()
        toucher = threading.Thread(target=_keep_touching, args=(path, file, released), daemon=True)
        toucher.start()
        try:
            yield
        finally:
            released.set()
            toucher.join()
            if _is_mine(path, file):
                path.unlink()


def _acquire(path: Path, mine: Path, file: BinaryIO, activity: str) -> None:
    """Link our file to the name of the lock, as soon as it is free or stale."""
    seen: float | None = None
    while not _link(mine, path):
        state = _read(path)
        if state is None:
            continue
        who, touched = state
        os.utime(file.fileno())  # then both times are of the server's clock
        silent = os.fstat(file.fileno()).st_mtime - touched
        if reason := _why_stale(who, silent):
            _break(path, state, f"{activity}: the lock of {who.description} is broken: {reason}")
            continue
        if _is_running(who) or (seen is not None and seen != touched):
            raise Busy(f"{activity} by {who.description}")
        seen = touched
        time.sleep(POLL_SECONDS)


def _temporary(path: Path) -> Path:
    """A unique hidden name beside a file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _link(mine: Path, path: Path) -> bool:
    """Give our file a second name; whether it worked."""
    try:
        os.link(mine, path)
    except FileExistsError:
        # If the answer of an NFS server is lost, the request is sent again and finds its own link.
        return mine.stat().st_nlink == 2
    return True


def _read(path: Path) -> tuple[Holder, float] | None:
    """The holder of a lock and when it last touched the file; None if there is no lock."""
    try:
        with path.open("rb") as file:  # without opening the file, NFS may show old times
            text, touched = file.read(), os.fstat(file.fileno()).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Holder(**json.loads(text)), touched
    except (ValueError, TypeError):
        return Holder(), touched  # damaged


def _why_stale(who: Holder, silent: float) -> str:
    """Why it is certain that a holder has ended; empty if it is not."""
    running, me = _is_running(who), this_process()
    if running is False:
        return "its process has ended"
    if running is None and who.job and who.cluster == me.cluster:
        if who.job == me.job:
            return "this job was requeued"
        if silent > 2 * BEAT_SECONDS and _job_has_ended(who.job):
            return "its job has ended"
    if running is None and silent > STALE_SECONDS:
        return f"it was not touched for {silent:.0f} s"
    return ""


def _is_running(who: Holder) -> bool | None:
    """Whether a process of this host is running; None if it is of another host."""
    if (who.host, who.namespace) != (socket.gethostname(), _namespace()):
        return None
    try:
        process = psutil.Process(who.pid)
        same = abs(_since_boot(process) - who.born) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _since_boot(process: psutil.Process) -> float:
    """psutil adds the time of the boot, which it takes from the clock."""
    return process.create_time() - psutil.boot_time()


def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _job_has_ended(job: str) -> bool:
    """Whether Slurm says that a job has ended; False if Slurm does not answer."""
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if listing.returncode:
        return "Invalid job id" in listing.stderr
    return not set(listing.stdout.split()) - ENDED


def _break(path: Path, stale: tuple[Holder, float], message: str) -> None:
    """Remove a lock, if it is still the one that was found stale.

    Only one process at a time may do this. Otherwise another process could put its own lock there
    between the check and the removal.
    """
    turn = path.with_name(f"{path.name}.breaking")
    mine = _temporary(path)
    mine.touch()
    try:
        if _link(mine, turn):
            try:
                if _read(path) == stale:
                    path.unlink()
                    print(message, file=sys.stderr, flush=True)
            finally:
                turn.unlink()
        else:
            _await_turn(turn, mine.stat().st_mtime)
    finally:
        mine.unlink()


def _await_turn(turn: Path, now: float) -> None:
    """Wait for the process that breaks a lock, or end its turn if it was killed meanwhile."""
    with suppress(FileNotFoundError):
        if now - turn.stat().st_mtime > STALE_SECONDS:
            turn.unlink()
    time.sleep(POLL_SECONDS / 20)


def _keep_touching(path: Path, file: BinaryIO, released: threading.Event) -> None:
    """Touch the lock until it is released; exit the process if another one has taken it."""
    while not released.wait(BEAT_SECONDS):
        try:
            os.utime(file.fileno())
        except OSError:
            continue  # if the file is gone for good, _is_mine finds out
        if not _is_mine(path, file):
            print(f"{path} was taken over by another process", file=sys.stderr, flush=True)
            os._exit(TRY_AGAIN)


def _is_mine(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
