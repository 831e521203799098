"""The place of this process among the ranks of a run, which rank 0 passes in the environment."""

import ctypes
import os
import signal
from contextlib import suppress

RANK, PARENT = "LMSCALING_RANK", "LMSCALING_PARENT"
"""Variables of ranks other than 0: number, and process number of rank 0."""

REQUESTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Requests to stop: rank 0 saves after the current update, and another attempt continues."""


def number() -> int:
    """Number of this process among the ranks of its run."""
    return int(os.environ.get(RANK, "0"))


def die_with_parent(parent: int | None = None) -> None:
    """Let the system kill this process when its parent ends. Call it before anything slow.

    Args:
        parent: Process number; by default that of rank 0, in which this does nothing.
    """
    if parent := parent or int(os.environ.get(PARENT, "0")):
        with suppress(AttributeError):  # only Linux has it
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, see prctl(2)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
