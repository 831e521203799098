"""Train a cell: ``cell.json`` and tokens become a log and a record.

A run leaves a record if its budget is spent, its loss diverges, its stream is too short, or its
model does not fit into the memory of an empty device. Whatever else ends an attempt (a fault of the
machine, a bug, a damaged file, a kill) leaves none: the run is *held*, its checkpoints are kept,
and it goes on from the newest one.
"""

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Decay
from lmscaling.config.validation import checked
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.files import read_json
from lmscaling.plan import estimate
from lmscaling.records import ledger
from lmscaling.records.run import HELD, STATUSES, Header, Run
from lmscaling.runtime import gpus, lock
from lmscaling.runtime.rank import RANK, number
from lmscaling.train import branch, checked_kernels, checkpoint, failure, outcome, settings
from lmscaling.train.checkpoint import Checkpoint
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log, close_last, ended, publish
from lmscaling.train.loop import Loop, Writer
from lmscaling.train.module import Training
from lmscaling.train.ranks import Others, Rank, report_failure
from lmscaling.train.watch import Watch

GIVE_UP_SECONDS = 8.0
"""Longest time to record why an attempt is given up."""

BLAME_SECONDS = 2.0
"""How long rank 0 waits for a rank to end after a connection has broken."""


def train(
    cell_path: Path,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None = None,
    stop_after: float | None = None,
    calibrated: Path | None = None,
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

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens and the machine do not match, the attention fails its check,
            the run is being trained, or it is held, as one of its ranks or the machine has failed.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    if run := ended(cell, scratch, record):
        return run
    deadline = math.inf if stop_after is None else psutil.Process().create_time() + stop_after
    with gpus.reserved(cell.gpus):
        order = Order(cell.block_tokens, cell.seed) if cell.block_tokens else None
        text = Stream(manifest, "train", order=order)
        streams = text, Stream(manifest, "validation")
        _check(cell, *streams)
        if calibration and calibrated:
            chosen = settings.nearest(calibration, calibrated, cell)
        else:
            chosen = settings.read(calibration, cell) if calibration else settings.guessed(cell)
        return _train(cell, streams, scratch, record, chosen, deadline)


def _train(
    cell: Cell,
    streams: tuple[Stream, Stream],
    scratch: Path,
    record: Path,
    chosen: Calibration,
    deadline: float,
) -> Run | None:
    _warn_of_too_little_text(cell, chosen, streams[0])
    if number():
        _follow(Training(cell, *streams, chosen), scratch, record)
        return None
    # A workflow that is started twice submits the same run twice.
    with lock.hold(scratch, f"run {scratch.name} is being trained"):
        if run := ended(cell, scratch, record):  # whoever had the lock has finished
            return run
        _refuse_held(cell, scratch)
        checked_kernels.require(cell, scratch)
        others = Others(ranks(cell), scratch)
        try:
            module = Training(cell, *streams, chosen)
            return _attempt(module, scratch, record, chosen, deadline, others)
        finally:
            others.kill()


def _refuse_held(cell: Cell, scratch: Path) -> None:
    """Refuse a run whose attempts have failed too often, until the user lets it go on."""
    entries = ledger.entries(scratch / ledger.NAME)
    hold = ledger.hold(entries)
    if hold and hold.needs_release and not ledger.is_too_large(entries):
        last = entries[-1]
        end = outcome.end_row(last.attempt, last.update, HELD, hold.reason)
        close_last(scratch, end)
        raise failure.Failed(
            f"run {cell.run} is held at update {last.update}: {hold.reason}; to let it go on, "
            f"type lmscaling reset --go-on {cell.run}, then snakemake"
        )


def _follow(module: Training, scratch: Path, record: Path) -> None:
    """Train on a rank other than 0; on an error report it and exit, because the others may hang."""
    rank = None
    try:
        rank = Rank(ranks(module.cell), bool(module.cell.gpus), scratch)
        checked_kernels.use(module, rank, scratch)
        Loop(module, None, _resume(module, scratch, record)).run(rank)
        rank.leave()
    except Exception as error:
        traceback.print_exc()
        report_failure(scratch, *failure.diagnosis(error, rank), module.updates)
        sys.stderr.flush()
        os._exit(1)


def _attempt(
    module: Training,
    scratch: Path,
    record: Path,
    calibration: Calibration,
    deadline: float,
    others: Others,
) -> Run:
    """One attempt of rank 0: resume from the newest checkpoint, and record the run if it ends."""
    description = outcome.description(module, calibration, scratch)
    start, no_trunk = None, ""
    try:
        start = _resume(module, scratch, record)
    except branch.NoTrunk as reason:
        no_trunk = str(reason)
    with Log(scratch) as log, Ledger(scratch, log.attempt) as book:
        log.write(Header(attempt=log.attempt, start_update=module.updates, **description))
        loop = Loop(module, Writer(log, book), start, deadline)
        if start and isinstance(module.rates, Decay):
            end_update = branch.fixed_end(book, start.progress, module.rates.end)
            module.rates = replace(module.rates, end=end_update)
        start = None  # it is as large as the model and its moments
        if no_trunk:
            loop.end("no_trunk", no_trunk)
        else:
            _continue(loop, others)
        end = outcome.end_row(log.attempt, module.updates, loop.status, loop.message)
        log.write(end)
        if loop.status not in STATUSES:
            stop = f"stopped after update {module.updates}: {loop.message}; the next job continues"
            print(stop, file=sys.stderr, flush=True)
            sys.exit(TRY_AGAIN)
        run = outcome.run_record(module, loop, book, end, description)
        with _ignoring_sigterm():
            if module.updates:
                checkpoint.save_weights(record.with_name("model.safetensors"), module.model)
            publish(module.cell, scratch, record, run)
    return run


def _continue(loop: Loop, others: Others) -> None:
    """Train, unless the model does not fit or the run is already complete."""
    assert loop.writer
    entries = ledger.entries(loop.writer.ledger.path)
    if ledger.is_too_large(entries):
        loop.end("oom", entries[-1].reason)
    elif loop.module.updates and loop.spent(loop.module):
        loop.end("done", "")
    else:
        _train_together(loop, others)


def _train_together(loop: Loop, others: Others) -> None:
    """Train on all ranks. Of a failure, the ledger and the log say what it was and where.

    Raises:
        failure.Failed: A rank or the machine has failed; the run goes on in another attempt.
    """
    assert loop.writer
    module, book = loop.module, loop.writer.ledger
    scratch, rank = book.path.parent, None
    try:
        with Watch(others, _giving_up(loop, others)) as watch:
            rank = Rank(ranks(module.cell), bool(module.cell.gpus), scratch, others.store)
            checked_kernels.use(module, rank, scratch)
            loop.run(rank, watch)
            rank.leave()
            others.wait(BLAME_SECONDS)
    except SystemExit:  # asked to stop before the first update
        others.kill()
    except Exception as error:
        with suppress(Exception):  # the checkpoint that is being written counts
            loop.saver.wait()
        blamed = others.blame(BLAME_SECONDS)
        fault, reason = blamed or failure.diagnosis(error, rank)
        if ranks(module.cell) > 1 and not blamed:
            reason = f"rank 0 failed at update {module.updates}: {reason}"
        failure.record_failure(loop, others, fault, reason)
        if ledger.is_too_large(ledger.entries(book.path)):
            loop.end("oom", reason)
            return
        failure.close_log(loop, reason)
        if not fault and not blamed:  # a bug: with its traceback
            print(failure.advice(loop, reason), file=sys.stderr, flush=True)
            raise
        raise failure.Failed(failure.advice(loop, reason)) from error
    book.write("beat", module.updates, loop.clock.seconds)


def _giving_up(loop: Loop, others: Others) -> Callable[[str, str], None]:
    """What the watch does if the main thread cannot: record the failure and end the process."""

    def give_up(fault: str, reason: str) -> None:
        assert loop.writer
        # If not even the file server answers.
        threading.Timer(GIVE_UP_SECONDS, os._exit, (1,)).start()
        try:
            failure.record_failure(loop, others, fault, reason)
            failure.close_log(loop, reason)
            print(f"error: {failure.advice(loop, reason)}", file=sys.stderr, flush=True)
            (loop.writer.scratch / lock.NAME).unlink(missing_ok=True)
        finally:
            os._exit(1)

    return give_up


@contextmanager
def _ignoring_sigterm() -> Iterator[None]:
    """Ignore requests to stop: finishing takes less time than another attempt."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _resume(module: Training, scratch: Path, record: Path) -> Checkpoint | None:
    """Restore weights and update number from the newest usable checkpoint, and return it.

    Raises:
        NoTrunk: This is a branch whose trunk left no checkpoint for it.
        UserError: This is a branch and the trunk's checkpoint is damaged.
    """
    cell = module.cell
    expected = checkpoint.Expected(cell.run, cell.update_tokens, module.train_stream.go_on)
    start = checkpoint.newest(scratch, expected)
    if cell.branch:
        trunk = branch.trunk_checkpoint(cell, expected, scratch, record)
        module.rates = branch.decay(cell, trunk.progress)
        start = start or trunk
    if start:
        checkpoint.restore_weights(start.tensors, module.model)
        module.updates = start.progress.update
    return start


def ranks(cell: Cell) -> int:
    """Processes that train a cell: one per GPU, or one on the CPU."""
    return max(1, cell.gpus)


def _warn_of_too_little_text(cell: Cell, calibration: Calibration, stream: Stream) -> None:
    updates = estimate.budget_updates(cell, calibration.update_seconds)
    tokens = stream.updates(cell.update_tokens) * cell.update_tokens
    if warning := estimate.exhausts(cell, updates, tokens):
        print(f"cell {cell.name}: {warning}", file=sys.stderr, flush=True)


def _check(cell: Cell, train: Stream, validation: Stream) -> None:
    """Refuse what would fail only after hours."""
    if validation.tokens <= cell.validation.tokens:
        raise UserError(
            f"validation.tokens is {cell.validation.tokens} and the validation stream has "
            f"{validation.tokens} tokens; lower it to at most "
            f"{(validation.tokens - 1) // cell.context * cell.context} or add validation text"
        )
    if not train.updates(cell.update_tokens):
        raise UserError(
            f"update_tokens is {cell.update_tokens} and the training stream has {train.tokens} "
            "tokens; add training text"
        )
    devices = torch.cuda.device_count()
    if cell.gpus > devices:
        raise UserError(
            f"cell {cell.name} needs {cell.gpus} gpus on one node and this node has {devices}; "
            f"set gpus to {devices or '0 (the CPU)'} or run it on another node"
        )
    world = os.environ.get("WORLD_SIZE", "")
    differs = world.isdigit() and int(world) != ranks(cell)
    if RANK not in os.environ and (differs or "LOCAL_RANK" in os.environ):
        raise UserError(
            f"WORLD_SIZE is {world}, and train starts the {ranks(cell)} ranks of cell {cell.name} "
            "itself; start train once and without torchrun"
        )
