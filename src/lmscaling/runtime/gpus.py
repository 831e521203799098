"""Reserving GPUs of this machine for one job, where no scheduler assigns them.

Snakemake counts the GPUs of a machine but does not say which job may use which. So each job locks
the GPUs that it needs, each by a file under the system's temporary folder. The system unlocks the
file when the job ends, however it ends. Slurm assigns GPUs itself: a Slurm job finds them in
``CUDA_VISIBLE_DEVICES`` and locks these.

A job with GPUs also gets PyTorch's settings for them, which PyTorch reads from the environment.
"""

import fcntl
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from lmscaling.errors import UserError
from lmscaling.runtime import rank

VISIBLE = "CUDA_VISIBLE_DEVICES"

ALLOCATOR = "PYTORCH_ALLOC_CONF"
ALLOCATORS = (ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Settings of the allocator since PyTorch 2.9 and before it, which still come first where set."""

COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
MOST_COMPILERS = 32
"""What each process of PyTorch starts at most by default."""

RETRY_SECONDS = (0.5, 1.5)
"""Range of the random wait between two tries, so that jobs that start together do not collide."""


@contextmanager
def reserved(n: int) -> Iterator[None]:
    """Reserve n GPUs during the block, hide the others from CUDA, and apply ``settings``.

    Waits until n GPUs are free. Call it before CUDA is initialized. It does nothing for n = 0, and
    reserves nothing on a machine without ``nvidia-smi`` or with fewer GPUs, and in a rank, whose
    parent holds the GPUs. UserError if another user has made the folder of the locks.
    """
    with ExitStack() as held:
        values = settings(n) if n else {}
        if n and not rank.number() and len(candidates := available()) >= n:
            if not (free := _lock(n, candidates, held)):
                told = f"gpus: waiting for {n} of {len(candidates)} GPUs"
                print(told, file=sys.stderr, flush=True)
            while not free:
                time.sleep(random.uniform(*RETRY_SECONDS))
                free = _lock(n, candidates, held)
            values[VISIBLE] = ",".join(free)
        for name, value in values.items():
            if name in os.environ:
                held.callback(os.environ.update, {name: os.environ[name]})
            else:
                held.callback(os.environ.pop, name, None)
            os.environ[name] = value
        yield


def settings(ranks: int) -> dict[str, str]:
    """PyTorch's settings for a job with one rank on each of its GPUs; those of the user stay.

    Segments that grow leave less memory in fragments, which no peak of allocated memory shows. The
    ranks share the cores: without a limit, 8 ranks start 256 compilers.

    Source: PyTorch documentation, CUDA semantics, "Optimizing memory usage".
    """
    values = {}
    if not os.environ.keys() & set(ALLOCATORS):
        values[ALLOCATOR] = "expandable_segments:True"
    if COMPILERS not in os.environ:
        cores = len(os.sched_getaffinity(0))
        values[COMPILERS] = str(max(1, min(MOST_COMPILERS, cores // ranks)))
    return values


def _lock(n: int, candidates: list[str], held: ExitStack) -> list[str]:
    """Lock the first n GPUs that are free, or none, so that two jobs never wait for each other.

    Raises:
        UserError: Somebody else has made the folder of the locks, and could hold them for ever.
    """
    folder = Path(tempfile.gettempdir()) / f"lmscaling-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(
            f"{folder}/ has the locks of GPUs and was made by another user; set TMPDIR to a "
            "folder of your own on this machine, the same for all jobs"
        )
    free: list[str] = []
    with ExitStack() as attempt:
        for gpu in candidates:
            with suppress(BlockingIOError):
                attempt.enter_context(locked(folder / f"{gpu}.lock"))
                free.append(gpu)
            if len(free) == n:
                held.push(attempt.pop_all())
                return free
    return []


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process.

    Raises:
        BlockingIOError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def available() -> list[str]:
    """UUIDs of the GPUs that ``CUDA_VISIBLE_DEVICES`` allows, in its order; all if it is not set.

    As in CUDA, an entry is an index or the beginning of a UUID, and the first that is neither ends
    the list.
    """
    gpus = installed()
    if VISIBLE not in os.environ:
        return [uuid for _, uuid in gpus]
    found = (
        next((uuid for index, uuid in gpus if entry == index or uuid.startswith(entry)), "")
        for entry in filter(None, map(str.strip, os.environ[VISIBLE].split(",")))
    )
    return list(takewhile(bool, found))


def installed() -> list[tuple[str, str]]:
    """Index and UUID of every GPU, from ``nvidia-smi``; empty where there is none.

    CUDA is not asked, because a process that has initialized CUDA cannot be forked.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^(\d+), *(\S+)", done.stdout, re.MULTILINE)
