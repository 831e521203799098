"""The ranks of a run: processes on one node, one per GPU, that start and end together; and the
requests to stop them: signals, and the time limit of their job.

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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lmscaling.errors import TRY_AGAIN
from lmscaling.files import write_json
from lmscaling.runtime.rank import PARENT, RANK, REQUESTS, number

PLACE = "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"
"""Variables of a rank."""

POLL_SECONDS = 0.2


@contextmanager
def handled(handler: Any, *signals: int) -> Iterator[None]:
    """Handle signals in this way during the block."""
    previous = {n: signal.signal(n, handler) for n in signals}
    try:
        yield
    finally:
        for n, before in previous.items():
            signal.signal(n, before)


class Requests:
    """Takes signals as requests to stop, or a ``deadline`` in seconds since 1970. Rank 0 decides;
    other ranks ignore them."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reason = ""
        """Why to stop; empty if nobody has asked."""
        self.handler = signal.SIG_IGN if number() else self._on_signal
        self._waits = False

    def has_come(self) -> bool:
        """Whether a signal has arrived or the time limit of the job is near."""
        if time.time() > self.deadline:
            self.reason = self.reason or "the time limit of the job is near"
        return bool(self.reason)

    def wait_for_updates(self) -> None:
        """From now on a request waits for the end of an update, when there is something to save.

        Lightning has put its own handler beside this one by now; this one comes alone.
        """
        self._waits = True
        for n in REQUESTS:
            signal.signal(n, self.handler)

    def _on_signal(self, n: int, frame: Any) -> None:
        self.reason = f"asked to stop by {signal.Signals(n).name}"
        if not self._waits:  # compiling may take minutes
            sys.exit(TRY_AGAIN)


class Others(AbstractContextManager):
    """Ranks 1 and up, as rank 0 sees them; they end with the block.

    Args:
        world: Number of ranks.
        scratch: Scratch folder of the run; a rank that fails leaves ``rank-<number>.json`` there.
        give_up: Called with a fault and a reason, in a thread, if a rank ends with an error and
            this process does not notice it by itself.
    """

    def __init__(self, world: int, scratch: Path, give_up: Callable[[str, str], None]) -> None:
        self.scratch = scratch
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        for path in scratch.glob("rank-*.json"):
            path.unlink()
        if world == 1:
            return
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = str(listener.getsockname()[1])
        os.environ.update(zip(PLACE, (str(world), "127.0.0.1", port, "0"), strict=True))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
        # Requests that are ignored here are ignored there from the first moment.
        with handled(signal.SIG_IGN, *REQUESTS):
            for rank in map(str, range(1, world)):
                place = {RANK: rank, "LOCAL_RANK": rank, PARENT: str(os.getpid())}
                command = [sys.executable, *sys.orig_argv[1:]]
                self._processes.append(
                    subprocess.Popen(command, env=os.environ | place, stdin=subprocess.DEVNULL)
                )
        threading.Thread(target=self._watch, args=(give_up,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _watch(self, give_up: Callable[[str, str], None]) -> None:
        found = None
        while not found:
            if self._ended.wait(POLL_SECONDS):
                return
            found = self.ended()
        if not self._ended.wait(2 * POLL_SECONDS):  # else all are about to end
            give_up(*found)

    def ended(self) -> tuple[str, str] | None:
        """Fault and reason of the rank that was first to end with an error; None if none has.

        One that was killed has left no report and was the first: others, which lose it, report so
        later.
        """
        found = []
        for rank, process in enumerate(self._processes, start=1):
            if code := process.poll():
                path = self.scratch / f"rank-{rank}.json"
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
                report = 0, "rank", f"rank {rank} {how or f'exited with {code}'}"
                if path.is_file():
                    report = path.stat().st_mtime_ns, *json.loads(path.read_text())
                found.append(report)
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
        for name in PLACE:
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


def report_failure(scratch: Path, fault: str, reason: str) -> None:
    """Record in the scratch folder why this rank, which is not rank 0, ends."""
    write_json(scratch / f"rank-{number()}.json", [fault, reason])
