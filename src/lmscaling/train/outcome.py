"""What the header, the end and the record of a run say."""

import json
from pathlib import Path
from typing import Any

from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.types import dump
from lmscaling.data import shards
from lmscaling.model import gpt
from lmscaling.records.run import End, Run
from lmscaling.runtime import environment, frozen
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import attempts
from lmscaling.train.loop import Loop
from lmscaling.train.module import Training


def end_row(attempt: int, update: int, status: str, message: str) -> End:
    now = environment.now()
    return End(attempt=attempt, update=update, status=status, message=message, ended=now)


def description(module: Training, calibration: Calibration, scratch: Path) -> dict[str, Any]:
    """The fields that the header of an attempt and the record of its run share.

    The source of the attention is kept in ``code/`` of the study.
    """
    cell, validation = module.cell, module.validation_stream
    files = code.attention_files(cell)
    return {
        "run": cell.run,
        "cell": dump(cell),
        "started": environment.now(),
        "environment": environment.describe(cell.gpus),
        "calibration": dump(calibration),
        "params": module.model.params,
        "params_total": module.model.params_total,
        "flops_per_token": module.flops_per_token(),
        "state_bytes": module.model.state_bytes(cell.gpus),
        **shards.origin(validation.folder, validation.shards)._asdict(),
        "remarks": "; ".join(gpt.remarks(cell)),
        "code": code.keep(files, scratch.absolute().parents[1] / "code"),
        "code_differs": frozen.differ(files),
    }


def run_record(
    module: Training,
    loop: Loop,
    book: Ledger,
    end: End,
    description: dict[str, Any],
) -> Run:
    """The record of a run that has ended."""
    cell, account = module.cell, book.account()
    budget = parse_budget(cell.budget)
    shard, identity = module.reached()
    shared: dict[str, Any] = description | {"code": "+".join(_codes(book.path.parent))}
    return Run(
        name=cell.name,
        status=end.status,
        message=end.message,
        attempts=end.attempt,
        updates=end.update,
        tokens=end.update * cell.update_tokens,
        train_seconds=loop.clock.seconds,
        attempt_seconds=account.attempt_seconds,
        lost_seconds=account.lost_seconds,
        gpu_hours=account.attempt_seconds * cell.gpus / 3600,
        data={"folder": cell.data.folder, "shard": shard, "id": identity},
        ended=end.ended,
        budget_amount=budget.amount,
        budget_unit=budget.unit,
        kernels=module.kernels,
        last_val_loss=loop.val_loss,
        **shared,
    )


def _codes(scratch: Path) -> list[str]:
    """Fingerprints of the attempts that have trained the weights of a run."""
    headers: list[dict[str, Any]] = []
    for path in attempts(scratch):
        with path.open() as log:
            header = json.loads(log.readline())
        headers = [*(headers if header["start_update"] else []), header]
    return list(dict.fromkeys(header["code"] for header in headers if header.get("code")))
