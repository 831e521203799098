"""Runs on several CPU ranks, into which tests inject faults.

The ranks are forks of rank 0, which is a fork itself. Run as a script, ranks are processes that
load everything, as in a job. Arguments: cell, calibration, manifest, results, ranks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked

from lmscaling.runtime import rank

FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79.11 GiB, 1.02 GiB is free."


def strike(fault: str) -> None:
    """What happens to this process."""
    import torch

    if fault == "oom":
        raise torch.OutOfMemoryError(FULL)
    if fault == "bug":
        raise KeyError("bug")
    if fault == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if fault == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), getattr(signal, fault))


def sign(results: Path) -> None:
    """Let tests find this process."""
    with (results / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


class Spare:
    """A rank that waits until rank 0 starts it, and is then to rank 0 what ``Popen`` returns."""

    def __init__(self, *places: Any) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        waiting, self.started = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(waiting)
            return
        code = 1
        try:
            rank.die_with_parent(parent)
            sign(places[3])
            for number in rank.REQUESTS:
                signal.signal(number, signal.SIG_IGN)
            with os.fdopen(waiting) as pipe:
                os.environ.update(json.loads(pipe.readline()))
            rank.die_with_parent()
            train(*places)
            code = 0
        except SystemExit as ended:
            print(ended, file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def start(self, environment: dict[str, str]) -> "Spare":
        os.write(self.started, json.dumps(environment).encode() + b"\n")
        return self

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.01)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def train(cell: Path, way: Path, manifest: Path, results: Path, world: int, injection: Any) -> None:
    """Train on this rank; its learning rates are added to ``rates-<rank>.txt`` in the results.

    The injection says which ``fault`` strikes which ``rank`` at the beginning of which ``update``.
    """
    from lmscaling.config.cell import Cell
    from lmscaling.config.validation import checked
    from lmscaling.errors import UserError
    from lmscaling.files import read_json
    from lmscaling.train import attempt, checkpoint, run
    from lmscaling.train.module import Training

    name = checked(Cell, read_json(cell, "cell"), "cell").run
    plain = Training.training_step
    seconds = injection.get("checkpoint_seconds", checkpoint.CHECKPOINT_SECONDS)
    checkpoint.CHECKPOINT_SECONDS = seconds
    write = checkpoint.tensor_file.write

    def slow(*given: Any, **named: Any) -> None:
        time.sleep(injection.get("writing", 0.0))
        write(*given, **named)

    checkpoint.tensor_file.write = slow

    def update(self: Training, slab: Any, batch_idx: int) -> Any:
        struck = rank.number() == injection.get("rank")
        if struck and self.updates + 1 == injection["update"]:
            (results / "struck").touch()
            strike(injection["fault"])
        outputs = plain(self, slab, batch_idx)
        with (results / f"rates-{rank.number()}.txt").open("a") as file:
            file.write(f"{self.rate!r}\n")
        return outputs

    Training.training_step = update
    hidden = injection.get("hidden", [None, ""])
    if rank.number() == hidden[0]:
        listed = checkpoint.paths
        checkpoint.paths = lambda folder: [p for p in listed(folder) if p.name != hidden[1]]
    attempt.ranks = lambda cell: world
    scratch, record = results / "scratch" / name, results / "runs" / name / "run.json"
    try:
        run.train(cell, manifest, scratch, record, way)
    except UserError as error:
        sys.exit(f"error: {error}")


def first(*places: Any) -> None:
    """Rank 0 and its spare ranks, which are forked before it has threads."""
    from lmscaling.train import ranks

    sign(places[3])
    spares = [Spare(*places) for _ in range(places[4] - 1)]
    forks: Any = SimpleNamespace(
        Popen=lambda _, env, **__: spares.pop(0).start(env),
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    ranks.subprocess = forks
    train(*places)


def trained(cell: Any, way: Path, manifest: Path, results: Path, world: int = 2) -> Path:
    """Train a cell on ranks; returns its log."""
    results.mkdir(exist_ok=True)
    path, said = results / "cell.json", results / "said"
    path.write_text(cell.to_json())
    process = forked.start(first, said, path, way, manifest, results, world, {})
    assert forked.code(process, said) == 0, said.read_text()
    return results / "runs" / cell.run / "log.jsonl"


if __name__ == "__main__":
    rank.die_with_parent()  # before torch is loaded, which takes seconds
    own, calibrated, tokens, out = map(Path, sys.argv[1:5])
    train(own, calibrated, tokens, out, int(sys.argv[5]), {})
