"""Train a cell: ``cell.json`` and tokens become a log and a record.

A run leaves a record if its budget is spent, its loss diverges, its stream is too short, or its
model does not fit into the memory of an empty device. Whatever else ends an attempt (a fault of the
machine, a bug, a damaged file, a kill) leaves none: the run is *held*, its checkpoints are kept,
and it goes on from the newest one.
"""

import gc
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from lmscaling.bench.checks import gate, variant
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records import ledger
from lmscaling.records.run import HELD, Run
from lmscaling.runtime import environment, faults, gpus, lock, planned, slurm
from lmscaling.runtime.rank import RANK, number
from lmscaling.train.outcome import close_last, end_row, ended
from lmscaling.train.ranks import Requests
from lmscaling.train.settings import device_of, guessed, nearest, read


def train(
    cell_path: Path,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None = None,
    stop_after: float | None = None,
    calibrated: Path | None = None,
    loggers: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Run | None:
    """Train a cell until its budget is spent, or a branch until its learning rate is zero.

    Args:
        cell_path: ``cell.json``.
        manifest: ``manifest.json`` of the tokens.
        scratch: Folder of the files that attempts share; the trunk's is beside that of a branch.
        record: Path of ``run.json``; ``log.jsonl`` is written beside it.
        calibration: ``calibration.json``; None uses the plan's guess for this device.
        stop_after: Seconds from the start of this process after which the attempt saves and stops,
            because the time limit of its job is near. The moments at which a run stops and resumes
            do not change its result, so this is not part of the cell.
        calibrated: ``cell.json`` of the cell that was calibrated, if it is another one.
        loggers: Options by name of loggers that get the rows of the log, too.
        options: Further arguments of ``lightning.Trainer``: its progress bar, or a profiler.

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens and the machine do not match, the attention fails its check,
            or the run is held, as one of its ranks or the machine has failed.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    deadline = math.inf if stop_after is None else psutil.Process().create_time() + stop_after
    requests = Requests(deadline)
    # A workflow that is started twice submits the same run twice.
    with _held_by_disk(scratch), _flushed(), nullcontext() if number() else _turn(scratch):
        if run := ended(cell, scratch, record):
            return run
        if record.exists():
            aside = planned.move_aside(record, scratch)
            print(f"asked for again: the earlier run is in {aside}", file=sys.stderr, flush=True)
        try:
            with gpus.reserved(cell.gpus):
                # Lightning loads the compiler, which reads its settings from the environment.
                from lmscaling.train.attempt import Attempt
                from lmscaling.train.data import Text

                _check_machine(cell)
                if calibration and calibrated:
                    chosen = nearest(calibration, calibrated, cell)
                else:
                    chosen = read(calibration, cell) if calibration else guessed(cell)

                def new() -> Attempt:
                    text, told = Text(cell, manifest, chosen.micro_batch), (requests, loggers or {})
                    return Attempt(cell, text, chosen, scratch, record, *told, options)

                own = new()
                if number():
                    return own.follow()
                if warning := own.text.exhausts(chosen.update_seconds):
                    print(f"cell {cell.name}: {warning}", file=sys.stderr, flush=True)
                _refuse_held(cell, scratch)
                checks = gate.record_beside(scratch, cell)
                variant.require(cell, device_of(cell), checks)
                while not (run := own.lead()):
                    own = new()
                    gc.collect()  # the memory of the one before
                return run
        except SystemExit:
            if "time limit" not in requests.reason:
                raise
    return slurm.queue_again()


@contextmanager
def _flushed() -> Iterator[None]:
    """Take numbers below 1e-38 as zero: feature maps and gates make some, and on a CPU each takes
    many times as long."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _held_by_disk(scratch: Path) -> Iterator[None]:
    """Of a disk that refuses at the border of an attempt, say that it holds the run.

    Raises:
        UserError: It has refused.
    """
    try:
        yield
    except OSError as error:
        if faults.machine_fault(error) != "disk":
            raise
        reason, node = f"{error.strerror}, at {error.filename or scratch}", environment.node()
        with suppress(OSError):  # the ledger may be on it
            (*_, last) = ledger.entries(scratch / ledger.NAME) or (None,)
            told = {"kind": "failed", "fault": "disk", "reason": reason, "host": node}
            if last:
                ledger.append(scratch / ledger.NAME, replace(last, **told))
        raise UserError(
            f"run {scratch.name} is held on {node}: {reason}; make room there, then snakemake "
            "continues it from its last checkpoint"
        ) from error


@contextmanager
def _turn(scratch: Path) -> Iterator[None]:
    """Hold the lock of a run. While another job trains it, this one waits; a job of Slurm does so
    in the queue, without a GPU."""
    with ExitStack() as held:
        held.callback(_remove_if_empty, scratch)
        while True:
            try:
                held.enter_context(lock.hold(scratch, f"run {scratch.name} is being trained"))
                break
            except lock.Busy as error:
                print(f"{error}; this job waits", file=sys.stderr, flush=True)
                who = lock.holder(scratch)
                if who and slurm.is_other_job(who):
                    slurm.queue_again(behind=who.job)
                while lock.holder(scratch):
                    time.sleep(lock.POLL_SECONDS)
        yield


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _refuse_held(cell: Cell, scratch: Path) -> None:
    """Refuse a run whose attempts have failed too often, until the user lets it go on."""
    entries = ledger.entries(scratch / ledger.NAME)
    hold = ledger.hold(entries)
    if hold and hold.needs_release and not ledger.is_too_large(entries):
        last = entries[-1]
        close_last(scratch, end_row(last.attempt, last.update, HELD, hold.reason))
        raise UserError(
            f"run {cell.run} is held at update {last.update}: {hold.reason}; to let it go on, "
            f"type lmscaling reset --go-on {cell.run}, then snakemake"
        )


def _check_machine(cell: Cell) -> None:
    """Refuse a machine that cannot train a cell, and a second launcher of ranks."""
    devices = torch.cuda.device_count()
    if cell.gpus > devices:
        raise UserError(
            f"cell {cell.name} needs {cell.gpus} gpus on one node and this node has {devices}; "
            f"set gpus to {devices or '0 (the CPU)'} or run it on another node"
        )
    ranks, world = max(1, cell.gpus), os.environ.get("WORLD_SIZE", "")
    differs = world.isdigit() and int(world) != ranks
    if RANK not in os.environ and (differs or "LOCAL_RANK" in os.environ):
        raise UserError(
            f"WORLD_SIZE is {world}, and train starts the {ranks} ranks of cell "
            f"{cell.name} itself; start train once and without torchrun"
        )
