"""Processes of training without their start: forks of one process that has loaded what they need.

To load torch takes two seconds of a processor, to fork a hundredth of one.
"""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

SECONDS = 600
"""Until what a test waits for must have happened, on the busiest machine."""

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "pytest",
        "lmscaling.train.run",
        "lmscaling.train.attempt",
        "lmscaling.bench.checks.gate",
        "torch._dynamo",
    ]
)


def start(function: Callable[..., object], said: Path, *arguments: Any) -> ForkServerProcess:
    """Call a function of a module of tests in a process whose output is added to a file."""
    process = SERVER.Process(target=_call, args=(function, said, arguments))
    process.start()
    return process


def _call(function: Callable[..., object], said: Path, arguments: tuple[Any, ...]) -> None:
    with said.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function(*arguments)


def until(happened: Callable[[], object], said: Path) -> None:
    """Wait for an event; what a process has said explains why it did not come."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.01)


def code(process: ForkServerProcess, said: Path) -> int:
    """The exit code of a process, as of ``subprocess``."""
    process.join(SECONDS)
    assert process.exitcode is not None, said.read_text()
    return process.exitcode


def attempt(cell: Path, manifest: Path, out: Path, most: int | None) -> None:
    """Train. So many updates after a new checkpoint wait for the signal, lest it comes too late."""
    from lmscaling.train import checkpoint, run
    from lmscaling.train.module import Training

    plain, after, scratch = Training.training_step, [0], out / "scratch"
    before = set(checkpoint.paths(scratch))

    def update(self: Training, slab: Any, batch_idx: int) -> Any:
        if after[0] or set(checkpoint.paths(scratch)) - before:
            after[0] += 1
        if after[0] == most:
            until((out / "sent").exists, out / "said")
        return plain(self, slab, batch_idx)

    Training.training_step = update
    checkpoint.CHECKPOINT_SECONDS = 0.02
    run.train(cell, manifest, scratch, out / "run" / "run.json")


def killed(
    cell: Any, manifest: Path, out: Path, signals: Sequence[int], seed: int = 0, most: int = 50
) -> tuple[list[int], str]:
    """Attempts of one run, each ended by a signal at a random moment after a new checkpoint, at
    most so many updates later, and a last one; their exit codes, and what they said."""
    out.mkdir(exist_ok=True)
    path, said, sent = out / "cell.json", out / "said", out / "sent"
    path.write_text(cell.to_json())
    said.touch()
    moments, codes = random.Random(seed), []

    def checkpoints() -> set[Path]:
        return set((out / "scratch").glob("checkpoint-*"))

    for number in signals:
        before = checkpoints()
        child = start(attempt, said, path, manifest, out, most)
        until(lambda: checkpoints() - before or child.exitcode is not None, said)  # noqa: B023
        time.sleep(moments.uniform(0, 0.1))
        assert child.pid
        os.kill(child.pid, number)
        sent.touch()
        codes.append(code(child, said))
        sent.unlink()
    codes.append(code(start(attempt, said, path, manifest, out, None), said))
    return codes, said.read_text()
