"""What the header, the end and the record of a run say."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmscaling.config import code
from lmscaling.config.calibration import Calibration
from lmscaling.config.types import dump
from lmscaling.data import shards
from lmscaling.model import gpt
from lmscaling.records.ledger import account
from lmscaling.records.run import End, Run, finite
from lmscaling.runtime import commit, environment
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.callbacks.ledger import Ledger
from lmscaling.train.data import Text
from lmscaling.train.log import attempts
from lmscaling.train.module import Training


def description(
    module: Training, text: Text, calibration: Calibration, scratch: Path
) -> dict[str, Any]:
    """The fields that the header of an attempt and the record of its run share.

    The source of the attention is kept in ``code/`` of the study.
    """
    cell, validation = module.cell, text.validation
    files, lengths, flops = code.attention_files(cell), text.lengths(), module.model.flops_per_token
    return {
        "run": cell.run,
        "cell": dump(cell),
        "started": environment.now(),
        "environment": environment.describe(cell.gpus),
        "calibration": dump(calibration),
        "params": module.model.params,
        "params_total": module.model.params_total,
        "flops_per_token": flops() if lengths is None else flops(lengths),
        "state_bytes": module.model.state_bytes(cell.gpus),
        **shards.origin(validation.folder, validation.shards)._asdict(),
        "remarks": "; ".join(gpt.remarks(cell)),
        "code": code.keep(files, scratch.absolute().parents[1] / "code"),
        "code_differs": commit.differ(files),
    }


def run_record(
    text: Text,
    budget: Budget,
    val_loss: float | None,
    book: Ledger,
    end: End,
    description: dict[str, Any],
) -> Run:
    """The record of a run that has ended."""
    cell, spent = budget.cell, account(book.entries)
    shard, identity = text.reached(end.update)
    shared: dict[str, Any] = description | {"code": _codes(book.path.parent)}
    return Run(
        name=cell.name,
        status=end.status,
        message=end.message,
        attempts=end.attempt,
        updates=end.update,
        tokens=end.update * cell.update_tokens,
        train_seconds=budget.seconds,
        attempt_seconds=spent.attempt_seconds,
        lost_seconds=spent.lost_seconds,
        gpu_hours=spent.attempt_seconds * cell.gpus / 3600,
        data={"folder": cell.data.folder, "shard": shard, "id": identity},
        ended=end.ended,
        budget_amount=budget.budget.amount,
        budget_unit=budget.budget.unit,
        last_val_loss=None if val_loss is None else finite(val_loss),
        **shared,
    )


def _codes(scratch: Path) -> str:
    """Fingerprints of the attempts that have trained the weights of a run.

    A kill or a full disk may have left a log without its header; such an attempt trained nothing.
    """
    codes: list[str] = []
    for path in attempts(scratch):
        with path.open("rb") as log, suppress(ValueError, KeyError, TypeError):
            header = json.loads(log.readline())
            codes = [*(codes if header["start_update"] else []), header.get("code", "")]
    return "+".join(filter(None, dict.fromkeys(codes)))
