"""The log of a run: JSON lines in one file per attempt, joined when the run has ended.

Until then, the logs of its attempts are ``scratch/<run>/attempt-001.jsonl`` and so on. Each line is
one write, so a kill can truncate the last line only. ``publish`` joins the files, byte for byte,
into ``runs/<run>/log.jsonl`` and then writes ``run.json``. A copy of the record stays in scratch,
because Snakemake deletes the outputs of a job that it counts as failed, for example one that
reached its time limit while it wrote them.
"""

import hashlib
import sys
from dataclasses import asdict, replace
from pathlib import Path

from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.errors import UserError
from lmscaling.files import read_json, replacing, write_record
from lmscaling.records import finished, schema
from lmscaling.records.run import CONCLUSIVE, End, Run, line
from lmscaling.runtime import environment


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
    write_record(scratch / record.name, asdict(run))
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
    """The record of a run that has ended; None if the run has not.

    A record that exists stays as it is. One that is gone or damaged is written again from its copy
    in scratch.

    Raises:
        UserError: The record is damaged and has no copy.
    """
    copy = scratch / record.name
    if record.exists():
        values, intact = finished.read(record), _is_intact(record)
    elif copy.is_file() and record.with_name("log.jsonl").is_file():
        values, intact = read_json(copy, "run record"), False
    else:
        return None
    if not intact:
        if values["run"] != cell.run:
            return None
        write_record(record, values)
    if values["run"] == cell.run:  # a kill may have come before
        _clear(cell, scratch, values["status"])
    done = "stays as it is" if intact else "is written again"
    print(f"run {cell.run} had ended: {record} {done}", file=sys.stderr, flush=True)
    remedy = "move it away to train the cell again"
    return Run(**schema.read(Run, values, f"run record {record}", remedy)[0])


def _is_intact(record: Path) -> bool:
    try:
        read_json(record, "run record")
    except UserError:
        return False
    return True
