"""Train a cell: ``cell.json`` and tokens become a log and a record.

A run whose budget is spent, whose loss diverges, whose device is out of memory or whose stream is
too short leaves a record. A bug, a damaged file or a kill leaves none, and the run can be resumed.
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
from lmscaling.config.schedule import Decay
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.data.stream import Stream
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.files import read_json
from lmscaling.plan import estimate
from lmscaling.records import schema
from lmscaling.records.run import STATUSES, End, Header, Run
from lmscaling.runtime import environment, gpus, lock
from lmscaling.train import branch, calibrate, checkpoint
from lmscaling.train.callback import TrainingCallback, Writer
from lmscaling.train.ledger import Ledger, entries, reason_to_give_up
from lmscaling.train.log import Log, publish, restore_record
from lmscaling.train.module import Training


def train(
    cell_path: Path,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None = None,
    stop_after: float | None = None,
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

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens and the machine do not match, or the run is being trained.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    if run := restore_record(cell.run, scratch, record):
        print(f"run {cell.run} had ended: {record} is written again", file=sys.stderr, flush=True)
        return run
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
) -> Run | None:
    streams = Stream(manifest, "train"), Stream(manifest, "validation")
    _check(cell, *streams, record)
    settings = calibrate.read(calibration, cell) if calibration else calibrate.guessed(cell)
    _warn_of_too_little_text(cell, settings, streams[0])
    _silence_lightning()
    scratch.mkdir(parents=True, exist_ok=True)
    module = Training(cell, *streams, settings)
    if int(os.environ.get("LOCAL_RANK", "0")):
        _fit(TrainingCallback(cell, None, _resume(module, scratch, record)), module)
        return None
    # A workflow that is started twice submits the same run twice.
    with lock.hold(scratch, f"run {scratch.name} is being trained"):
        if record.exists():  # whoever had the lock has finished
            where, remedy = f"run record {record}", "move it away to train the cell again"
            values = schema.read(Run, read_json(record, "run record"), where, remedy)[0]
            return Run(**values)
        return _attempt(module, scratch, record, settings, deadline)


def _attempt(
    module: Training, scratch: Path, record: Path, calibration: Calibration, deadline: float
) -> Run:
    """One attempt of rank 0: resume from the newest checkpoint, and record the run if it ends."""
    description = _description(module, calibration)
    start, no_trunk = None, ""
    try:
        start = _resume(module, scratch, record)
    except branch.NoTrunk as reason:
        no_trunk = str(reason)
    with Log(scratch) as log, Ledger(scratch, log.attempt) as ledger:
        log.write(Header(attempt=log.attempt, start_update=module.updates, **description))
        callback = TrainingCallback(module.cell, Writer(log, ledger), start, deadline)
        if start and isinstance(module.rates, Decay):
            end_update = branch.fixed_end(ledger, start[0], module.rates.end)
            module.rates = replace(module.rates, end=end_update)
        if no_trunk:
            callback.end("no_trunk", no_trunk)
        else:
            _continue(module, callback, ledger)
        end = End(
            attempt=log.attempt,
            update=module.updates,
            status=callback.status,
            message=callback.message,
            ended=environment.now(),
        )
        log.write(end)
        if callback.status not in STATUSES:
            sys.exit(TRY_AGAIN)
        run = _record(module, callback, ledger, end, description)
        with _ignoring_sigterm():
            if module.updates:
                checkpoint.save_weights(record.with_name("model.safetensors"), module.model)
            publish(scratch, record, run)
    return run


def _description(module: Training, calibration: Calibration) -> dict[str, Any]:
    """The fields that the header of an attempt and the record of its run share."""
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


def _continue(module: Training, callback: TrainingCallback, ledger: Ledger) -> None:
    """Train, unless the run has crashed too often or is already complete."""
    if reason := reason_to_give_up(entries(ledger.path)):
        callback.end("crashed", reason)
    elif module.updates and callback.spent(module):
        callback.end("done", "")
    else:
        with _last_entry(ledger, module, callback):
            _fit(callback, module)


def _record(
    module: Training,
    callback: TrainingCallback,
    ledger: Ledger,
    end: End,
    description: dict[str, Any],
) -> Run:
    """The record of a run that has ended."""
    cell, account = module.cell, ledger.account()
    budget = parse_budget(cell.budget)
    shard, identity = module.reached()
    return Run(
        name=cell.name,
        status=end.status,
        message=end.message,
        attempts=end.attempt,
        updates=end.update,
        tokens=end.update * cell.update_tokens,
        train_seconds=callback.clock.seconds,
        attempt_seconds=account.attempt_seconds,
        lost_seconds=account.lost_seconds,
        gpu_hours=account.attempt_seconds * cell.gpus / 3600,
        data={"folder": cell.data.folder, "shard": shard, "id": identity},
        ended=end.ended,
        budget_amount=budget.amount,
        budget_unit=budget.unit,
        **description,
    )


@contextmanager
def _last_entry(ledger: Ledger, module: Training, callback: TrainingCallback) -> Iterator[None]:
    """Write the last entry of an attempt into the ledger, which says whether it failed."""
    try:
        yield
    except Exception:
        ledger.write("failed", module.updates, callback.clock.seconds)
        raise
    ledger.write("beat", module.updates, callback.clock.seconds)


@contextmanager
def _ignoring_sigterm() -> Iterator[None]:
    """Ignore requests to stop: finishing takes less time than another attempt."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _resume(
    module: Training, scratch: Path, record: Path
) -> tuple[checkpoint.Progress, dict[str, torch.Tensor]] | None:
    """Restore weights and update number from the newest usable checkpoint, and return it.

    Raises:
        NoTrunk: This is a branch whose trunk left no checkpoint for it.
        UserError: This is a branch and the trunk's checkpoint is damaged.
    """
    cell = module.cell
    expected = checkpoint.Expected(cell.run, cell.update_tokens, module.train_stream.reached)
    start = checkpoint.newest(scratch, expected)
    if cell.branch:
        trunk = branch.trunk_checkpoint(cell, expected, scratch, record)
        module.rates = branch.decay(cell, trunk[0])
        start = start or trunk
    if start:
        checkpoint.restore_weights(start[1], module.model)
        module.updates = start[0].update
    return start


def _fit(callback: TrainingCallback, module: Training) -> None:
    trainer = lightning.Trainer(callbacks=[callback], **trainer_options(module.cell))
    try:
        trainer.fit(module)
    except torch.OutOfMemoryError as error:
        callback.end("oom", str(error).split("\n")[0])


def trainer_options(cell: Cell) -> dict[str, Any]:
    """Options of Lightning's trainer, which handles devices, ranks and precision only."""
    return {
        "accelerator": "gpu" if cell.gpus else "cpu",
        "devices": ranks(cell),
        "strategy": DDPStrategy(gradient_as_bucket_view=True) if ranks(cell) > 1 else "auto",
        "precision": "bf16-mixed" if cell.gpus else "32-true",
        # Without it Lightning takes a Slurm job of one task for one of its own ranks and refuses.
        "plugins": [LightningEnvironment()],
        "max_epochs": 1,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def ranks(cell: Cell) -> int:
    """Processes that train a cell: one per GPU, or one on the CPU."""
    return max(1, cell.gpus)


def _warn_of_too_little_text(cell: Cell, calibration: Calibration, stream: Stream) -> None:
    updates = estimate.budget_updates(cell, calibration.update_seconds)
    tokens = stream.updates(cell.update_tokens) * cell.update_tokens
    if warning := estimate.exhausts(cell, updates, tokens):
        print(f"cell {cell.name}: {warning}", file=sys.stderr, flush=True)


def _check(cell: Cell, train: Stream, validation: Stream, record: Path) -> None:
    """Refuse what would fail only after hours, or would overwrite a finished run."""
    if record.exists():
        raise UserError(
            f"{record} exists, so this run has ended; "
            f"to train it again, type python -m lmscaling reset {cell.run}"
        )
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
    if world.isdigit() and int(world) != ranks(cell):
        raise UserError(
            f"WORLD_SIZE is {world}, and train starts the {ranks(cell)} ranks of cell {cell.name} "
            "itself; start train once and without torchrun"
        )


def _silence_lightning() -> None:
    """Hide Lightning's advice on loaders and loggers, which are used as intended here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
