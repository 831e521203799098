"""The ranks of a run: processes on one node, one per GPU, that start and end together.

Rank 0 starts the others with its own command and an environment that numbers them. It decides and
broadcasts, because clocks differ between processes, and ranks that stopped at different updates
would wait for each other. The other ranks ignore requests to stop and are killed by the system when
rank 0 ends, however it ends.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from lmscaling.files import write_json
from lmscaling.runtime.rank import PARENT, PORT, RANK, REQUESTS, number

TIMEOUT = timedelta(minutes=10)
"""Longest wait of a rank for the others: compilation and validation take less."""


FREE = 0.95
"""Share of a device's memory that is free if only this process uses it."""


class Rank:
    """This process among the ranks of a run: its device, and what it does together with the others.

    Args:
        world: Number of ranks.
        gpus: Whether each rank has a GPU.
        scratch: Scratch folder of the run, in which the ranks record their steps.
        store: Where the ranks meet: that of ``Others`` on rank 0, None elsewhere.
    """

    def __init__(
        self, world: int, gpus: bool, scratch: Path, store: TCPStore | None = None
    ) -> None:
        self.number, self.world = number(), world
        self._steps = steps(scratch, world)
        self.device = torch.device("cuda", self.number) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(self.device)
        self.shares_device = _is_in_use(self.device)
        self._group: Any = None
        if world > 1:
            self._join(store or _meet(world))

    def _join(self, store: TCPStore) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
        distributed.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=store,
            rank=self.number,
            world_size=self.world,
            timeout=TIMEOUT,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        # Messages between CPUs do not wait for a device.
        self._group = distributed.new_group(backend="gloo", timeout=TIMEOUT)

    def mark(self, step: int) -> None:
        """Record that this rank is at a step, for ``Watch`` to find one that hangs."""
        self._steps[self.number] = step, self._steps[self.number, 1] + 1

    def broadcast(self, *numbers: float) -> list[float]:
        """The numbers of rank 0, on every rank, as float64; a decision is 0 or 1."""
        if self._group is None:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64)
        distributed.broadcast(message, src=0, group=self._group)
        return message.tolist()

    def agree(self, subject: str, *texts: str) -> None:
        """Check that every rank has the same texts.

        Raises:
            RuntimeError: On all ranks, if one differs; the message names it.
        """
        if self._group is None:
            return
        gathered: list[Any] = [None] * self.world
        distributed.all_gather_object(gathered, texts, group=self._group)
        for rank, other in enumerate(gathered):
            if other != gathered[0]:
                raise RuntimeError(
                    f"ranks disagree on {subject}: rank {rank} has {', '.join(other)}, "
                    f"rank 0 has {', '.join(gathered[0])}"
                )

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over the ranks, in place, and return it."""
        if self.world > 1:
            distributed.all_reduce(tensor)
        return tensor

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _is_in_use(device: torch.device) -> bool:
    """Whether other processes use memory of a GPU."""
    if device.type == "cpu":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free < FREE * total


def _meet(world: int) -> TCPStore:
    """The store of rank 0, on a rank that it has started."""
    return TCPStore("127.0.0.1", int(os.environ[PORT]), world, timeout=TIMEOUT)


class Others:
    """Ranks 1 and up, as rank 0 sees them.

    Args:
        world: Number of ranks.
        scratch: Scratch folder of the run; a rank that fails leaves ``rank-<number>.json`` there.
    """

    def __init__(self, world: int, scratch: Path) -> None:
        self.scratch = scratch
        self.store: TCPStore | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        for path in scratch.glob("rank-*.json"):
            path.unlink()
        self.steps = steps(scratch, world)
        if world == 1:
            return
        store = self.store = TCPStore(
            "127.0.0.1", 0, world, is_master=True, wait_for_workers=False, timeout=TIMEOUT
        )
        environment = {**os.environ, PARENT: str(os.getpid()), PORT: str(store.port)}
        handlers = {n: signal.signal(n, signal.SIG_IGN) for n in REQUESTS}
        try:
            for rank in range(1, world):
                # Requests that are ignored here are ignored there from the first moment.
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, *sys.orig_argv[1:]],
                        env={**environment, RANK: str(rank)},
                        stdin=subprocess.DEVNULL,
                    )
                )
        finally:
            for n, handler in handlers.items():
                signal.signal(n, handler)

    def ended(self) -> tuple[str, str] | None:
        """Fault and reason of the rank that was first to end with an error; None if none has."""
        codes = [(rank, process.poll()) for rank, process in enumerate(self._processes, start=1)]
        failed = [(rank, code) for rank, code in codes if code]
        if not failed:
            return None
        return self._fault(*min(failed, key=lambda found: self._reported(found[0])))

    def _reported(self, rank: int) -> float:
        """When a rank has reported its failure; others, which lose it, do so later.

        One that was killed has no report, and was the first.
        """
        path = self.scratch / f"rank-{rank}.json"
        return path.stat().st_mtime_ns if path.is_file() else 0

    def _fault(self, rank: int, code: int) -> tuple[str, str]:
        path = self.scratch / f"rank-{rank}.json"
        if path.is_file():
            left = json.loads(path.read_text())
            return left["fault"], f"rank {rank} failed at update {left['update']}: {left['reason']}"
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return "rank", f"rank {rank} {ended}"

    def blame(self, seconds: float) -> tuple[str, str] | None:
        """As ``ended``, but waits: a connection breaks before the process at its end has died."""
        deadline = time.monotonic() + seconds
        while self._processes and time.monotonic() < deadline:
            if found := self.ended():
                return found
            time.sleep(0.05)
        return None

    def trace(self) -> None:
        """Let each rank print where it is."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR2)

    def stopped(self) -> list[int]:
        """Ranks whose process is suspended."""
        stopped = []
        for rank, process in enumerate(self._processes, start=1):
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    stopped.append(rank)
        return stopped

    def kill(self) -> None:
        """End all of them, with the processes that they have started."""
        doomed: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                doomed += psutil.Process(process.pid).children(recursive=True)
        for process in [*self._processes, *doomed]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.wait(5.0)

    def wait(self, seconds: float) -> bool:
        """Wait until they have ended; whether they did in this time."""
        deadline = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        return all(process.poll() is not None for process in self._processes)


def steps(scratch: Path, world: int) -> np.memmap:
    """What each rank does, shared by all, int64 ``[world, 2]``: its step, and a count of marks.

    Steps can be compared between ranks; a count that grows shows that its rank is alive.
    """
    path = scratch / "ranks.bin"
    if number() == 0:
        path.write_bytes(bytes(16 * world))
    return np.memmap(path, np.int64, "r+", shape=(world, 2))


def report_failure(scratch: Path, fault: str, reason: str, update: int) -> None:
    """Record in the scratch folder why this rank, which is not rank 0, ends."""
    values = {"fault": fault, "reason": reason, "update": update}
    write_json(scratch / f"rank-{number()}.json", values)
