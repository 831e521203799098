"""The log of a run: JSON lines in one file per attempt, joined when the run has ended.

Until then, the logs of its attempts are ``scratch/<run>/attempt-001.jsonl`` and so on. Each line is
one write, so a kill can truncate the last line only. ``publish`` joins the files, byte for byte,
into ``runs/<run>/log.jsonl`` and then writes ``run.json``.
"""

import hashlib
import sys
from dataclasses import asdict, replace
from pathlib import Path

from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.files import replacing, write_record
from lmscaling.records import finished, schema
from lmscaling.records.run import CONCLUSIVE, End, Run, line
from lmscaling.runtime import environment, planned


def end_row(attempt: int, update: int, status: str, message: str) -> End:
    """The last line of an attempt."""
    now = environment.now()
    return End(attempt=attempt, update=update, status=status, message=message, ended=now)


def attempts(scratch: Path) -> list[Path]:
    """The attempts of a run, in order."""
    return sorted(scratch.glob("attempt-*.jsonl"), key=lambda path: (len(path.name), path.name))


def close_last(scratch: Path, end: End) -> None:
    """Say how the last attempt ended, if it was killed before it could."""
    path = attempts(scratch)[-1]
    lines = path.read_bytes().split(b"\n")
    if lines[-1]:  # a kill has cut it
        lines.append(b"")
    if len(lines) < 2 or b'"record": "end"' not in lines[-2]:
        path.write_bytes(b"\n".join(lines) + line(end))


def publish(cell: Cell, scratch: Path, record: Path, run: Run) -> Run:
    """Join the logs of all attempts into ``log.jsonl`` beside ``record``, then write the record."""
    digest, lines = hashlib.sha256(), 0
    with replacing(record.with_name("log.jsonl")) as out:
        for path in attempts(scratch):
            data = path.read_bytes()
            if data and not data.endswith(b"\n"):  # a kill has cut it
                data += b"\n"
            out.write(data)
            digest.update(data)
            lines += data.count(b"\n")
    run = replace(run, log_sha256=digest.hexdigest(), log_lines=lines)
    write_record(record, asdict(run))
    _clear(cell, scratch, run.status)
    return run


def _clear(cell: Cell, scratch: Path, status: str) -> None:
    """Delete what only an unfinished run needs, and the checkpoint from which a branch began."""
    patterns = ("attempt-*.jsonl", "checkpoint-*", "rank-*.json", "ledger.jsonl")
    for pattern in patterns:
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
