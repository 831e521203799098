"""What a process has from its environment: its place among the ranks of a run, which rank 0 passes,
and what it does not take from whoever has started it."""

import ctypes
import locale
import os
import signal
import sys
from contextlib import suppress

RANK, PARENT = "LMSCALING_RANK", "LMSCALING_PARENT"
"""Variables of ranks other than 0: number, and process number of rank 0."""

PLAN = "LMSCALING_PLAN"
"""The variable with the path of the plan of a workflow. Where it is set, this is a job."""

OWN = {"MPLBACKEND": "agg", "PYTHONUTF8": "1"}
"""Variables of every process, whatever those of a notebook, a shell or a cluster are."""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a launcher of ranks. A job is none of them, whoever has started the workflow."""

REQUESTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Requests to stop: rank 0 saves after the current update, and another attempt continues."""


def settle() -> None:
    """Set ``OWN``, drop ``LAUNCHERS`` from a job of the workflow, and start this process again
    where its text has another encoding."""
    os.environ.update(OWN)
    for name in LAUNCHERS if PLAN in os.environ and RANK not in os.environ else ():
        os.environ.pop(name, None)
    if locale.getencoding().lower() != "utf-8" and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


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
