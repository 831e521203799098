"""One call: as many jobs as there is time for. The next call goes on.

Each task is a line of ``records.jsonl`` as soon as it has ended, and then the archive of all
records is replaced. Too little time is no failure: a task that the end of the call interrupts
leaves no line. Neither does a fault of the machine.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lmscaling.bench.isolation import Ended, Refused, each, isolated
from lmscaling.config import grid, study_file
from lmscaling.config.speed import PEERS
from lmscaling.data import vocabulary
from lmscaling.errors import UserError
from lmscaling.gpu import archive
from lmscaling.gpu.jobs import Job, Lines, jobs
from lmscaling.records.run import FORMAT
from lmscaling.runtime import environment, gpus

PACKAGES = ("numpy", "safetensors", "tiktoken", "orjson", "xxhash", "psutil")
"""Packages that jobs import; this module itself has loaded torch, pydantic and yaml."""

SETUP_SECONDS = 120.0
"""For the first process to find its device."""

START_SECONDS = (5.0, 30.0)
"""Time that must be left to start a job, on a CPU and on a GPU."""


def measure(
    values: dict[str, Any],
    out: Path,
    folder: Path,
    minutes: float,
    parts: Sequence[str],
    sizes: Sequence[str] | None,
) -> str:
    """Measure the device of this machine.

    Args:
        values: The study.
        out: Gets records, log, tokens and runs.
        folder: Gets the archive.
        minutes: Time limit of this call.
        parts: Of ``PARTS``.
        sizes: Of steps, sampling and training; None stands for all.

    Returns:
        How much is done.

    Raises:
        UserError: A package, the device, a file or the vocabulary is missing, the machine failed,
            or ``out`` has records of another device, other versions or another study.
    """
    end = time.monotonic() + 60 * minutes
    _require_packages()
    study = grid.expand(values)
    on = int(bool(study.study.gpus))
    here = _device(on)
    if "train" in parts:
        _require_text(study)
    with _alone(out):
        lines = archive.read(out / "records.jsonl")
        if not lines:
            first = {"format": FORMAT, "id": uuid.uuid4().hex, "environment": here, "study": values}
            _add(out, lines, "device", first)
        archive.require_same(lines["device"], here, values, out)
        study_file.write_record(out / "study.json", {"command": "lmscaling gpu", "study": values})
        listed = [
            job
            for job in jobs(study, out, here["device"], lines, end)
            if job.part in parts and not (sizes and job.size and job.size not in sizes)
        ]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: sys.exit(128 + got))
        with (out / "log.txt").open("a", buffering=1) as log, contextlib.redirect_stderr(log):
            for job in listed:
                if end - time.monotonic() >= START_SECONDS[on]:
                    _run(job, lines, out, folder, end, on)
        archive.pack(out, folder)
    left = sum(
        task.key not in lines for job in listed if not _failed(job, lines) for task in job.tasks
    )
    done = f"{left} of {sum(len(job.tasks) for job in listed)} measurements are left"
    goes_on = f"{done}; the same command goes on" if left else "complete"
    return f"gpu: {goes_on}; lmscaling gpu --import {archive.path(folder)} uses the records"


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuse a second call at the same time. A lock of the system ends with whoever is killed."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(gpus.locked(out / "lock"))
        except BlockingIOError:
            raise UserError(
                f"another call measures into {out}; start again when it has ended"
            ) from None
        yield


def _device(on: int) -> dict[str, Any]:
    """``environment.complete``, with the packages that others compare with."""
    try:
        here = isolated(partial(environment.complete, on), SETUP_SECONDS).value
    except Refused as error:
        raise UserError(f"{error}; or type make gpu PRESET=cpu") from error
    if not here:
        raise UserError("the device cannot be used; type python -m lmscaling doctor")
    here["versions"] |= environment.versions_if_installed(tuple(PEERS.values()))
    return here


def _require_packages() -> None:
    """Import what jobs will import: what is there may not fit what else is there."""
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{name} cannot be used: {error}; put a wheel into wheels/") from error


def _require_text(study: grid.Grid) -> None:
    """Refuse what training would miss in the last of the calls."""
    corpus = study.corpora[study.tokens]
    for _, path in corpus.source.local():
        if not Path(path).is_file():
            raise UserError(f"{path} does not exist; correct dataset {corpus.dataset}")
    vocabulary.load(corpus.encoding)


def _failed(job: Job, lines: Lines) -> bool:
    return any(lines[t.key]["status"] != "done" for t in job.tasks if t.key in lines)


def _run(job: Job, lines: Lines, out: Path, folder: Path, end: float, on: int) -> None:
    """Make the tasks of a job that are left, until one fails or time is up."""
    left = [task for task in job.tasks if task.key not in lines]
    no_text = job.part == "train" and job.name != "tokens" and "train/tokens" not in lines
    if not left or no_text or _failed(job, lines):
        return
    with gpus.reserved(0 if job.part == "train" else on):  # a run reserves its GPU itself
        ends = each([task.call for task in left], job.limit_seconds, end)
        for task in left:
            started, begun = environment.now(), time.monotonic()
            try:
                ended: Ended = next(ends)
            except Refused as error:
                print(f"gpu: {job.part} {job.name}: {error}", flush=True)
                return
            is_over = time.monotonic() >= end if ended.status != "done" else ended.value is None
            if is_over:
                return
            seconds = time.monotonic() - begun
            _add(out, lines, task.key, vars(ended) | {"started": started, "seconds": seconds})
            archive.pack(out, folder)
            said = archive.said(lines[task.key])
            print(f"{end - time.monotonic():6.0f} s left  {task.key}: {said}", flush=True)
            if ended.status != "done":
                return


def _add(out: Path, lines: Lines, key: str, values: dict[str, Any]) -> None:
    """Write a whole line to the disk; a file without a buffer would take a part of one."""
    lines[key] = {"key": key, **values}
    with (out / "records.jsonl").open("ab") as file:
        file.write(json.dumps(lines[key]).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
