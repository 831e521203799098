"""From ``cell.json`` and tokens to a log and a record: the only reader of a cell.

How a run ends is data: a spent budget, a diverged loss, a device out of memory and a stream that
is too short each leave a record. A bug, a broken file or a kill leaves none, and the run is still
to be done.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lmscaling import records
from lmscaling.config import Cell
from lmscaling.errors import UserError
from lmscaling.explain import checked
from lmscaling.fields import dump
from lmscaling.files import locked, read_json
from lmscaling.stream import Stream
from lmscaling.train import environment
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log, publish
from lmscaling.train.module import Training

INTERRUPTED = 75
"""Exit code of an attempt that was asked to stop (EX_TEMPFAIL): try again."""


def train(cell_path: Path, manifest: Path, scratch: Path, record: Path) -> records.Run | None:
    """Train a cell until its budget is spent.

    Args:
        cell_path: ``cell.json``.
        manifest: ``manifest.json`` of the tokens.
        scratch: Folder of what must outlive an attempt.
        record: Where ``run.json`` goes; ``log.jsonl`` is written beside it.

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens or the machine do not fit, or the run is already going.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    streams = Stream(manifest, "train"), Stream(manifest, "validation")
    _check(cell, *streams, record)
    _quiet()
    if int(os.environ.get("LOCAL_RANK", "0")):
        _fit(Training(cell, *streams), None)
        return None
    started, described = environment.now(), environment.describe(cell.gpus)
    module = Training(cell, *streams)
    counts = {
        "params": module.model.params,
        "params_total": module.model.params_total,
        "flops_per_token": module.model.flops_per_token(),
    }
    with _alone(scratch), Log(scratch) as log:
        log.write(
            records.Header(
                attempt=log.attempt,
                start_update=0,
                run=cell.run,
                cell=dump(cell),
                started=started,
                environment=described,
                **counts,
            )
        )
        ledger = _fit(module, log)
        ended = environment.now()
        log.write(
            records.End(
                attempt=log.attempt,
                update=module.updates,
                status=ledger.status,
                message=ledger.message,
                ended=ended,
            )
        )
        if ledger.status not in records.STATUSES:
            sys.exit(INTERRUPTED)
        tokens = module.updates * cell.update_tokens
        shard, identity = streams[0].reached(tokens)
        run = records.Run(
            run=cell.run,
            name=cell.name,
            cell=dump(cell),
            status=ledger.status,
            message=ledger.message,
            attempts=log.attempt,
            updates=module.updates,
            tokens=tokens,
            train_seconds=ledger.clock.seconds,
            data={"folder": cell.data.folder, "shard": shard, "id": identity},
            environment=described,
            started=started,
            ended=ended,
            **counts,
        )
        publish(scratch, record, run)
    return run


def _fit(module: Training, log: Log | None) -> Ledger:
    ledger = Ledger(module.cell, log)
    trainer = lightning.Trainer(callbacks=[ledger], **trainer_options(module.cell))
    try:
        trainer.fit(module)
    except SIGTERMException:
        ledger.end("interrupted", "asked to stop by SIGTERM")
    except torch.OutOfMemoryError as error:
        ledger.end("oom", str(error).split("\n")[0])
    return ledger


def trainer_options(cell: Cell) -> dict[str, Any]:
    """What Lightning is left to do: devices, ranks, precision."""
    return {
        "accelerator": "gpu" if cell.gpus else "cpu",
        "devices": max(1, cell.gpus),
        "strategy": "ddp" if cell.gpus > 1 else "auto",
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
            f"cell {cell.name} wants {cell.gpus} gpus and this machine has {found}; "
            f"set gpus to {found or '0 (the CPU)'} or run it elsewhere"
        )


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Hold the run's lock: a workflow started twice submits the same run twice."""
    try:
        with locked(scratch / records.LOCK):
            yield
    except BlockingIOError:
        raise UserError(f"run {scratch.name} is being trained by another process") from None


def _quiet() -> None:
    """Lightning's advice on loaders and loggers is about choices made on purpose here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
