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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
    parent holds the GPUs.
    """
    candidates = available() if n else []
    values = settings(n) if n else {}
    with ExitStack() as locks:
        if n and len(candidates) >= n and not rank.number():
            values[VISIBLE] = ",".join(_lock(n, candidates, locks))
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def settings(ranks: int) -> dict[str, str]:
    """PyTorch's settings for a job with one rank on each of its GPUs; those of the user stay.

    Segments that grow leave less memory in fragments, which no peak of allocated memory shows. The
    ranks share the cores: without a limit, 8 ranks start 256 compilers.

    Source: PyTorch documentation, CUDA semantics, "Optimizing memory usage".
    """
    values = {}
    if not any(name in os.environ for name in ALLOCATORS):
        values[ALLOCATOR] = "expandable_segments:True"
    if COMPILERS not in os.environ:
        cores = len(os.sched_getaffinity(0))
        values[COMPILERS] = str(max(1, min(MOST_COMPILERS, cores // ranks)))
    return values


def _lock(n: int, candidates: list[str], locks: ExitStack) -> list[str]:
    """Lock the first n GPUs that are free at the same time.

    It holds no lock while it waits, so that two jobs never wait for each other.
    """
    waiting = False
    while True:
        with ExitStack() as attempt:
            free = []
            for gpu in candidates:
                try:
                    attempt.enter_context(locked(_folder() / f"{gpu}.lock"))
                except BlockingIOError:
                    continue
                free.append(gpu)
                if len(free) == n:
                    locks.push(attempt.pop_all())
                    return free
        if not waiting:
            print(f"gpus: waiting for {n} of {len(candidates)} GPUs", file=sys.stderr, flush=True)
            waiting = True
        time.sleep(random.uniform(*RETRY_SECONDS))


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


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"lmscaling-gpus-{os.getuid()}"


def available() -> list[str]:
    """UUIDs of the GPUs of this machine that ``CUDA_VISIBLE_DEVICES`` allows."""
    return visible(os.environ.get(VISIBLE), installed())


def installed() -> list[tuple[str, str]]:
    """Index and UUID of every GPU, from ``nvidia-smi``; empty where there is none.

    CUDA is not asked, because a process that has initialized CUDA cannot be forked.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    pairs = (line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1)
    return [(index.strip(), uuid.strip()) for index, uuid in pairs]


def visible(setting: str | None, gpus: list[tuple[str, str]]) -> list[str]:
    """UUIDs of the GPUs that ``CUDA_VISIBLE_DEVICES`` allows, in its order; all if it is not set.

    As in CUDA, an entry is an index or the beginning of a UUID, and the first that is neither ends
    the list.
    """
    if setting is None:
        return [uuid for _, uuid in gpus]
    allowed: list[str] = []
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        match = [uuid for index, uuid in gpus if entry == index or uuid.startswith(entry)]
        if not match:
            break
        allowed.append(match[0])
    return allowed
