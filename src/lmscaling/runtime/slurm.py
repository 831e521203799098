"""What a job asks of Slurm: to be queued again, with the same number.

Snakemake does not notice: to it the job has not ended.
"""

import os
import signal
import subprocess
import sys
import time
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is saved is saved
    after = f", behind job {behind}" if behind else ""
    print(f"job {job} goes back into the queue{after}", file=sys.stderr, flush=True)
    if _scontrol("requeue", job):
        if behind:
            _scontrol("update", f"JobId={job}", f"Dependency=afterany:{behind}")
        time.sleep(PATIENCE_SECONDS)
    sys.exit(TRY_AGAIN)


def is_other_job(who: Holder) -> bool:
    """Whether the holder of a lock is another job of the cluster of this job."""
    own = os.environ.get("SLURM_JOB_ID", "")
    cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
    return (
        bool(own and who.job)
        and (who.job, who.cluster) != (own, cluster)
        and (who.cluster == cluster)
    )


def _scontrol(*words: str) -> bool:
    """Whether Slurm does what it is asked."""
    try:
        return not subprocess.run(["scontrol", *words], timeout=120, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
