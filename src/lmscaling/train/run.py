"""From ``cell.json`` and tokens to a log and a record: the only reader of a cell.

How a run ends is data: a spent budget, a diverged loss, a device out of memory and a stream that
is too short each leave a record. A bug, a broken file or a kill leaves none, and the run is still
to be done.
"""

import logging
import math
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import psutil
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

from lmscaling.config.budget import parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.plan import estimate
from lmscaling.records import run as records
from lmscaling.records import schema
from lmscaling.runtime import environment, gpus, lock
from lmscaling.train import branch, calibrate, checkpoint
from lmscaling.train.callback import Boundary, Writer
from lmscaling.train.ledger import Ledger, entries, hopeless
from lmscaling.train.log import Log, publish, published
from lmscaling.train.module import Training

INTERRUPTED = 75
"""Exit code of an attempt that was asked to stop (EX_TEMPFAIL): try again."""


def train(
    cell_path: Path,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None = None,
    stop_after: float | None = None,
) -> records.Run | None:
    """Train a cell until its budget is spent, or a branch until its rate is zero.

    Args:
        cell_path: ``cell.json``.
        manifest: ``manifest.json`` of the tokens.
        scratch: Folder of what must outlive an attempt; a branch looks for its trunk's beside it.
        record: Where ``run.json`` goes; ``log.jsonl`` is written beside it.
        calibration: ``calibration.json``; without it the plan's guess for this device is used.
        stop_after: Seconds from the start of this process after which the attempt saves and stops,
            for the limit of its job is near. When a run stops and goes on changes nothing in its
            result, so this is no part of the cell.

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens or the machine do not fit, or the run is already going.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    if made := published(cell.run, scratch, record):
        print(f"run {cell.run} was over: {record} is written again", file=sys.stderr, flush=True)
        return made
    deadline = math.inf if stop_after is None else psutil.Process().create_time() + stop_after
    with gpus.reserved(cell.gpus):
        return _train(cell, manifest, scratch, record, calibration, deadline)


def _train(
    cell: Cell,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None,
    deadline: float,
) -> records.Run | None:
    streams = Stream(manifest, "train"), Stream(manifest, "validation")
    _check(cell, *streams, record)
    way = calibrate.read(calibration, cell) if calibration else calibrate.guessed(cell)
    _tell(cell, way, streams[0])
    _quiet()
    scratch.mkdir(parents=True, exist_ok=True)
    module = Training(cell, *streams, way)
    if int(os.environ.get("LOCAL_RANK", "0")):
        _fit(Boundary(cell, None, _resume(module, scratch, record)), module)
        return None
    # A workflow that is started twice submits the same run twice.
    with lock.held(scratch / records.LOCK, f"run {scratch.name} is being trained"):
        if record.exists():  # whoever had the lock has finished
            where, remedy = f"run record {record}", "move it away to train the cell again"
            values = schema.read(records.Run, read_json(record, "run record"), where, remedy)[0]
            return records.Run(**values)
        return _attempt(module, scratch, record, way, deadline)


def _attempt(
    module: Training, scratch: Path, record: Path, calibration: Calibration, deadline: float
) -> records.Run:
    """One attempt of rank 0: go on from the newest checkpoint, and close the run if it ends."""
    described = _described(module, calibration)
    start, no_trunk = None, ""
    try:
        start = _resume(module, scratch, record)
    except branch.NoTrunk as reason:
        no_trunk = str(reason)
    with Log(scratch) as log, Ledger(scratch, log.attempt) as ledger:
        log.write(records.Header(attempt=log.attempt, start_update=module.updates, **described))
        boundary = Boundary(module.cell, Writer(log, ledger), start, deadline)
        if start and module.decay:
            fixed = branch.fixed_end(ledger, start[0], module.decay.end)
            module.decay = replace(module.decay, end=fixed)
        if no_trunk:
            boundary.end("no_trunk", no_trunk)
        else:
            _go_on(module, boundary, ledger)
        end = records.End(
            attempt=log.attempt,
            update=module.updates,
            status=boundary.status,
            message=boundary.message,
            ended=environment.now(),
        )
        log.write(end)
        if boundary.status not in records.STATUSES:
            sys.exit(INTERRUPTED)
        run = _record(module, boundary, ledger, end, described)
        with _undisturbed():
            if module.updates:
                checkpoint.save_weights(record.with_name("model.safetensors"), module.model)
            publish(scratch, record, run)
    return run


def _described(module: Training, calibration: Calibration) -> dict[str, Any]:
    """What the header of an attempt and the record of its run both say."""
    cell = module.cell
    return {
        "run": cell.run,
        "cell": dump(cell),
        "started": environment.now(),
        "environment": environment.describe(cell.gpus),
        "calibration": dump(calibration),
        "params": module.model.params,
        "params_total": module.model.params_total,
        "flops_per_token": module.model.flops_per_token(),
    }


def _go_on(module: Training, boundary: Boundary, ledger: Ledger) -> None:
    """Train on, unless it would be in vain."""
    if reason := hopeless(entries(ledger.path)):
        boundary.end("crashed", reason)
    elif module.updates and boundary.spent(module):
        boundary.end("done", "")
    else:
        with _accounted(ledger, module, boundary):
            _fit(boundary, module)


def _record(
    module: Training,
    boundary: Boundary,
    ledger: Ledger,
    end: records.End,
    described: dict[str, Any],
) -> records.Run:
    """The record of a run that has ended."""
    cell, account = module.cell, ledger.account()
    amount, unit = parse_budget(cell.budget)
    shard, identity = module.reached()
    return records.Run(
        name=cell.name,
        status=end.status,
        message=end.message,
        attempts=end.attempt,
        updates=end.update,
        tokens=end.update * cell.update_tokens,
        train_seconds=boundary.clock.seconds,
        attempt_seconds=account.attempt_seconds,
        lost_seconds=account.lost_seconds,
        gpu_hours=account.attempt_seconds * cell.gpus / 3600,
        data={"folder": cell.data.folder, "shard": shard, "id": identity},
        ended=end.ended,
        budget_amount=amount,
        budget_unit=unit,
        **described,
    )


@contextmanager
def _accounted(ledger: Ledger, module: Training, boundary: Boundary) -> Iterator[None]:
    """Write down what came since the last entry, and whether the attempt failed by itself."""
    try:
        yield
    except Exception:
        ledger.write("failed", module.updates, boundary.clock.seconds)
        raise
    ledger.write("beat", module.updates, boundary.clock.seconds)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ask to stop in vain: what is left to do takes less time than to do it again."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _resume(
    module: Training, scratch: Path, record: Path
) -> tuple[checkpoint.Progress, dict[str, torch.Tensor]] | None:
    """Put the newest usable checkpoint's weights into the model, and its update number.

    Raises:
        NoTrunk: This is a branch whose trunk ended before it.
        UserError: This is a branch and the trunk's checkpoint is broken.
    """
    cell = module.cell
    expected = checkpoint.Expected(cell.run, cell.update_tokens, module.train_stream.reached)
    start = checkpoint.newest(scratch, expected)
    if cell.branch:
        trunk = branch.leave(cell, expected, scratch, record)
        module.decay = branch.decay(cell, trunk[0])
        start = start or trunk
    if start:
        checkpoint.restore_weights(start[1], module.model)
        module.updates = start[0].update
    return start


def _fit(boundary: Boundary, module: Training) -> None:
    trainer = lightning.Trainer(callbacks=[boundary], **trainer_options(module.cell))
    try:
        trainer.fit(module)
    except torch.OutOfMemoryError as error:
        boundary.end("oom", str(error).split("\n")[0])


def trainer_options(cell: Cell) -> dict[str, Any]:
    """What Lightning is left to do: devices, ranks, precision."""
    return {
        "accelerator": "gpu" if cell.gpus else "cpu",
        "devices": ranks(cell),
        "strategy": DDPStrategy(gradient_as_bucket_view=True) if ranks(cell) > 1 else "auto",
        "precision": "bf16-mixed" if cell.gpus else "32-true",
        # Lightning would take a Slurm job of one task for one of its own ranks, and refuse.
        "plugins": [LightningEnvironment()],
        "max_epochs": 1,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def ranks(cell: Cell) -> int:
    """Processes that train a cell: one a GPU, or one on the CPU."""
    return max(1, cell.gpus)


def _tell(cell: Cell, calibration: Calibration, stream: Stream) -> None:
    """Say before it starts that a run will pass its data."""
    updates = estimate.budget_updates(cell, calibration.update_seconds)
    if told := estimate.exhausts(
        cell, updates, stream.updates(cell.update_tokens) * cell.update_tokens
    ):
        print(f"cell {cell.name}: {told}", file=sys.stderr, flush=True)


def _check(cell: Cell, train: Stream, validation: Stream, record: Path) -> None:
    """What would only show after hours, or would spoil what is finished."""
    if record.exists():
        raise UserError(
            f"{record} exists, so this run is over; "
            f"to train it again: python -m lmscaling rerun {cell.run}"
        )
    if validation.tokens <= cell.validation.tokens:
        raise UserError(
            f"validation.tokens {cell.validation.tokens} is more than the validation stream's "
            f"{validation.tokens}; lower it to at most "
            f"{(validation.tokens - 1) // cell.context * cell.context} "
            "or give more validation text"
        )
    if not train.updates(cell.update_tokens):
        raise UserError(
            f"update_tokens {cell.update_tokens} is more than the training stream's "
            f"{train.tokens}; give more training text"
        )
    found = torch.cuda.device_count()
    if cell.gpus > found:
        raise UserError(
            f"cell {cell.name} wants {cell.gpus} gpus and this node has {found}, where all of its "
            f"ranks must be; set gpus to {found or '0 (the CPU)'} or run it elsewhere"
        )
    world = os.environ.get("WORLD_SIZE", "")
    if world.isdigit() and int(world) != ranks(cell):
        raise UserError(
            f"cell {cell.name} is trained by {ranks(cell)} ranks, which train starts itself, and "
            f"WORLD_SIZE is {world}; start train once, not through torchrun or the like"
        )


def _quiet() -> None:
    """Lightning's advice on loaders and loggers is about choices made on purpose here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
