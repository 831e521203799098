"""GPUs that a job has for itself, where nobody else gives them out.

Snakemake counts the GPUs of one machine but does not say which job has which, so each job locks as
many as it needs, by a file that the system unlocks when the job ends, however it ends. Slurm gives
out GPUs by itself; a job of it finds those it may use in ``CUDA_VISIBLE_DEVICES`` and locks these.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lmscaling.files import locked

VISIBLE = "CUDA_VISIBLE_DEVICES"
RETRY_SECONDS = (0.5, 1.5)
"""Wait between two tries, drawn at random: jobs that begin together should not try together."""


@contextmanager
def reserved(n: int) -> Iterator[None]:
    """Hold n GPUs and show no others to CUDA, which must not have been asked for its GPUs yet.

    Waits until n are free. Does nothing for n = 0, on a machine without ``nvidia-smi`` or with
    fewer GPUs, and in a process that was started by one that holds them.
    """
    candidates = visible(os.environ.get(VISIBLE), listed()) if n else []
    if len(candidates) < n or not n or "LOCAL_RANK" in os.environ:
        yield
        return
    before = os.environ.get(VISIBLE)
    with ExitStack() as held:
        os.environ[VISIBLE] = ",".join(_lock(n, candidates, held))
        try:
            yield
        finally:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before


def _lock(n: int, candidates: list[str], held: ExitStack) -> list[str]:
    """The first n GPUs that are free at one time; waiting holds none, so that nobody is stuck."""
    told = False
    while True:
        with ExitStack() as tried:
            found = []
            for gpu in candidates:
                try:
                    tried.enter_context(locked(_folder() / f"{gpu}.lock"))
                except BlockingIOError:
                    continue
                found.append(gpu)
                if len(found) == n:
                    held.push(tried.pop_all())
                    return found
        if not told:
            print(f"gpus: waiting for {n} of {len(candidates)} GPUs", file=sys.stderr, flush=True)
            told = True
        time.sleep(random.uniform(*RETRY_SECONDS))


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"lmscaling-gpus-{os.getuid()}"


def listed() -> list[tuple[str, str]]:
    """Index and UUID of every GPU, by ``nvidia-smi``; nothing where there is none.

    CUDA is not asked: a process that did could not be forked any more.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
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
    found: list[str] = []
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        match = [uuid for index, uuid in gpus if entry == index or uuid.startswith(entry)]
        if not match:
            break
        found.append(match[0])
    return found
