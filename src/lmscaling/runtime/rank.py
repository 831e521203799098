"""The place of this process among the ranks of a run, which rank 0 passes in the environment."""

import ctypes
import os
import signal
from contextlib import suppress

RANK, PARENT = "LMSCALING_RANK", "LMSCALING_PARENT"
"""Variables of ranks other than 0: number, and process number of rank 0."""

REQUESTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Requests to stop: rank 0 saves after the current update, and another attempt continues."""

PR_SET_PDEATHSIG = 1
"""From prctl(2)."""


def number() -> int:
    """Number of this process among the ranks of its run."""
    return int(os.environ.get(RANK, "0"))


def die_with_parent() -> None:
    """Let the system kill this process when rank 0 ends; does nothing in rank 0 itself.

    Call it before anything slow. Only Linux can do this; elsewhere a rank ends when it next waits
    for rank 0.
    """
    if PARENT not in os.environ:
        return
    die_with(int(os.environ[PARENT]))


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent, a process number, ends; only Linux can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
