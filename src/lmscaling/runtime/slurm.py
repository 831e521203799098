"""What a job asks of Slurm: to be queued again, with the same number.

Snakemake does not notice: to it the job has not ended.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import NoReturn

from lmscaling.errors import TRY_AGAIN
from lmscaling.runtime.lock import Holder

PATIENCE_SECONDS = 600.0
"""Longest time until Slurm ends a job that it has queued again."""


def queue_again(behind: str = "") -> NoReturn:
    """Put this job back into the queue, and wait for Slurm to end it.

    Where there is no Slurm, or it refuses, the exit code says that another attempt goes on: it
    counts as one of the ``retries:`` of Snakemake.

    Args:
        behind: Number of a job for whose end it waits, without a GPU.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        sys.exit(TRY_AGAIN)
    asked: list[int] = []  # by Slurm, to end; what is saved is saved
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    # What is typed below inherits this mask: Slurm's signal must not end it, too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    after = f", behind job {behind}" if behind else ""
    print(f"job {job} goes back into the queue{after}", file=sys.stderr, flush=True)
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scontrol", "requeue", job], timeout=120, check=True)
        if behind:
            words = ["scontrol", "update", f"JobId={job}", f"Dependency=afterany:{behind}"]
            subprocess.run(words, timeout=120, check=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not asked and time.monotonic() < deadline:
            time.sleep(0.2)  # a signal that another thread has got does not end a sleep
    sys.exit(TRY_AGAIN)


def is_other_job(who: Holder) -> bool:
    """Whether the holder of a lock is another job of the cluster of this job."""
    own, cluster = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_CLUSTER_NAME", "")
    return bool(own and who.job) and who.job != own and who.cluster == cluster
