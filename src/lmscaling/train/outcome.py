"""What an attempt says about itself, and what a run leaves: a log and a record.

Until a run has ended, its log is one file per attempt. ``publish`` joins them, byte for byte, into
``runs/<run>/log.jsonl`` and then writes ``run.json``.
"""

import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmscaling import registry
from lmscaling.config import code
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.data import shards
from lmscaling.files import replacing, write_record
from lmscaling.model import sizing
from lmscaling.records import finished, ledger, schema
from lmscaling.records.run import CONCLUSIVE, End, Run, line
from lmscaling.runtime import commit, environment, planned
from lmscaling.train import initial
from lmscaling.types import dump

if TYPE_CHECKING:  # Lightning is loaded later, see run.py
    from lmscaling.train.budget import Budget
    from lmscaling.train.data import Text
    from lmscaling.train.module import Training


def description(
    module: "Training", text: "Text", calibration: Calibration, scratch: Path
) -> dict[str, Any]:
    """The fields that the header of an attempt and the record of its run share.

    The sources of the attention and of the rest of the model are kept in ``code/`` of the study.
    """
    cell, validation = module.cell, text.validation
    here = environment.complete(cell.gpus)
    files, lengths = registry.attention_sources(cell.variants), text.lengths()
    flops = module.model.flops_per_token
    packages = code.packages(files, cell.gpus)
    here["versions"] |= environment.versions_if_installed(["lightning"]) | packages
    kept = scratch.absolute().parents[1] / "code"
    return {
        "run": cell.run,
        "cell": dump(cell),
        "started": environment.now(),
        "environment": here | {"source_sha256": commit.source_digest()},
        "calibration": dump(calibration),
        "params": module.model.params,
        "params_total": module.model.params_total,
        "flops_per_token": flops() if lengths is None else flops(lengths),
        "state_bytes": module.model.state_bytes(cell.gpus),
        **shards.origin(validation.folder, validation.shards)._asdict(),
        "remarks": "; ".join([*sizing.remarks(cell), *initial.remark(cell, scratch)]),
        "code": code.keep(files, kept, packages),
        "code_differs": commit.differ(files),
        "program": code.keep(registry.program_sources(cell.variants), kept),
    }


def attempts(scratch: Path) -> list[Path]:
    """The logs of the attempts of a run, in order."""
    return sorted(scratch.glob("attempt-*.jsonl"), key=lambda path: (len(path.name), path.name))


def end_row(attempt: int, update: int, status: str, message: str) -> End:
    """The last line of an attempt."""
    now = environment.now()
    return End(attempt=attempt, update=update, status=status, message=message, ended=now)


def run_record(
    text: "Text", budget: "Budget", scratch: Path, end: End, description: dict[str, Any]
) -> Run:
    """The record of a run that has ended."""
    cell, spent = budget.cell, ledger.account(ledger.entries(scratch / ledger.NAME))
    shard, identity = text.reached(end.update)
    headers = _headers(scratch)
    shared: dict[str, Any] = description | {
        name: "+".join(filter(None, dict.fromkeys(header.get(name, "") for header in headers)))
        for name in ("code", "program")
    }
    seen = {json.dumps(each["environment"]): each["environment"] for each in headers}
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
        stalled_seconds=budget.stalled,
        gpu_hours=spent.attempt_seconds * cell.gpus / 3600,
        environments=list(seen.values()),
        data={"folder": cell.data.folder, "shard": shard, "id": identity},
        ended=end.ended,
        budget_amount=budget.budget.amount,
        budget_unit=budget.budget.unit,
        **shared,
    )


def _headers(scratch: Path) -> list[dict[str, Any]]:
    """Headers of the attempts that have trained the weights of a run.

    A kill or a full disk may have left a log without its header; such an attempt trained nothing.
    """
    found: list[dict[str, Any]] = []
    for path in attempts(scratch):
        with path.open("rb") as log, suppress(ValueError, KeyError, TypeError):
            header = json.loads(log.readline())
            start, _ = header["start_update"], header["environment"]
            found = [*(each for each in found if each["start_update"] < start), header]
    return found


def publish(cell: Cell, scratch: Path, record: Path, run: Run) -> Run:
    """Join the logs of all attempts into ``log.jsonl`` beside ``record``, then write the record."""
    digest, lines = hashlib.sha256(), 0
    with replacing(record.with_name("log.jsonl")) as out:
        for path in attempts(scratch):
            data = _whole(path)
            out.write(data)
            digest.update(data)
            lines += data.count(b"\n")
    run = replace(run, log_sha256=digest.hexdigest(), log_lines=lines)
    write_record(record, asdict(run))
    _clear(cell, scratch, run.status)
    return run


def close_last(scratch: Path, end: End) -> None:
    """Say how the last attempt ended, if it was killed before it could."""
    path = attempts(scratch)[-1]
    data = _whole(path)
    if b'"record": "end"' not in data.rstrip(b"\n").rpartition(b"\n")[2]:
        path.write_bytes(data + line(end))


def _whole(path: Path) -> bytes:
    """The log of an attempt; a kill may have cut its last line."""
    data = path.read_bytes()
    return data + b"\n" if data and not data.endswith(b"\n") else data


def _clear(cell: Cell, scratch: Path, status: str) -> None:
    """Delete what only an unfinished run needs, and the checkpoint from which a branch began."""
    for pattern in ("attempt-*.jsonl", "checkpoint-*", "rank-*.json", ledger.NAME):
        for path in scratch.glob(pattern):
            path.unlink(missing_ok=True)
    if cell.branch and status in CONCLUSIVE:
        kept = scratch.with_name(cell.trunk) / branch_checkpoint(cell.branch)
        kept.unlink(missing_ok=True)


def ended(cell: Cell, scratch: Path, record: Path) -> Run | None:
    """The record of a run that has ended and stays; None if the run is to be trained.

    Raises:
        UserError: The record is damaged.
    """
    if not record.exists() or not (reason := planned.why_kept(record)):
        return None
    values = finished.read(record)
    _clear(cell, scratch, values["status"])  # a kill may have left it
    print(f"run {values['run']}: {reason}; {record} stays as it is", file=sys.stderr, flush=True)
    return Run(**schema.read(Run, values, f"run record {record}", "")[0])
