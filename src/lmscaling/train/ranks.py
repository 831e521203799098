"""The ranks of a run: processes on one node, one per GPU, that start and end together.

Rank 0 starts the others with its own command and the variables that Lightning's
``LightningEnvironment`` reads. They ignore requests to stop and are killed by the system when rank
0 ends, however it ends. If one of them dies, rank 0 may wait for it inside a library, where no
exception reaches it; a thread then ends the attempt.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil

from lmscaling.files import write_json
from lmscaling.runtime.rank import PARENT, RANK, REQUESTS, number
from lmscaling.train.requests import handled

PLACE = "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
"""Variables of all ranks, beside their own ``LOCAL_RANK``."""

POLL_SECONDS = 0.2


class Others(AbstractContextManager):
    """Ranks 1 and up, as rank 0 sees them; they end with the block.

    Args:
        world: Number of ranks.
        scratch: Scratch folder of the run; a rank that fails leaves ``rank-<number>.json`` there.
    """

    def __init__(self, world: int, scratch: Path) -> None:
        self.scratch = scratch
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        for path in scratch.glob("rank-*.json"):
            path.unlink()
        if world == 1:
            return
        values = str(world), "127.0.0.1", _free_port()
        os.environ.update(zip(PLACE, values, strict=True), LOCAL_RANK="0")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
        # Requests that are ignored here are ignored there from the first moment.
        with handled(signal.SIG_IGN, *REQUESTS):
            for rank in map(str, range(1, world)):
                place = {RANK: rank, "LOCAL_RANK": rank, PARENT: str(os.getpid())}
                command = [sys.executable, *sys.orig_argv[1:]]
                self._processes.append(
                    subprocess.Popen(command, env=os.environ | place, stdin=subprocess.DEVNULL)
                )

    def __exit__(self, *_: object) -> None:
        self.kill()

    def watch(self, give_up: Callable[[str, str], None]) -> None:
        """Call ``give_up`` with a fault and a reason in a thread, if a rank ends with an error and
        this process does not notice it by itself."""

        def look() -> None:
            while not self._ended.wait(POLL_SECONDS):
                if found := self.ended():
                    if not self._ended.wait(2 * POLL_SECONDS):  # else all are about to end
                        give_up(*found)
                    return

        if self._processes:
            threading.Thread(target=look, daemon=True).start()

    def ended(self) -> tuple[str, str] | None:
        """Fault and reason of the rank that was first to end with an error; None if none has.

        One that was killed has left no report and was the first: others, which lose it, report so
        later.
        """
        found: list[tuple[int, str, str]] = []
        for rank, process in enumerate(self._processes, start=1):
            if code := process.poll():
                path = self.scratch / f"rank-{rank}.json"
                if path.is_file():
                    fault, reason = json.loads(path.read_text())
                    found.append((path.stat().st_mtime_ns, fault, reason))
                else:
                    name = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
                    found.append((0, "rank", f"rank {rank} {name or f'exited with {code}'}"))
        return min(found)[1:] if found else None

    def blame(self, seconds: float) -> tuple[str, str] | None:
        """As ``ended``, but waits: a connection breaks before the process at its end has died."""
        deadline = time.monotonic() + seconds
        while self._processes and time.monotonic() < deadline:
            if found := self.ended():
                return found
            time.sleep(0.05)
        return None

    def kill(self) -> None:
        """End all of them, with the processes that they have started."""
        self._ended.set()
        for name in (*PLACE, "LOCAL_RANK"):
            os.environ.pop(name, None)
        doomed: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                doomed += psutil.Process(process.pid).children(recursive=True)
        for process in [*self._processes, *doomed]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.wait(5.0)

    def wait(self, seconds: float) -> None:
        """Wait until they have ended, at most so long."""
        deadline = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def report_failure(scratch: Path, fault: str, reason: str) -> None:
    """Record in the scratch folder why this rank, which is not rank 0, ends."""
    write_json(scratch / f"rank-{number()}.json", [fault, reason])
