"""The record of a finished run: ``runs/<run>/run.json``, or its copy ``runs/<run>.json``.

A damaged record is not a result, and it keeps nobody from reading the others: the copy is used in
its place, and without one the run counts as ``damaged`` until ``reset`` moves its record away. So
does a run whose log is not the one that its record states.
"""

import gzip
import hashlib
import sys
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records import schema
from lmscaling.records.run import Run

DAMAGED = "damaged"
"""Status of a run whose record cannot be read."""


def read(path: Path) -> dict[str, Any]:
    """The values of a record, or of its copy if the record is damaged.

    Raises:
        UserError: The record is missing, or it is damaged and has no intact copy.
    """
    copy = Path(f"{path.parent}.json")
    try:
        return _values(path)
    except UserError as error:
        with suppress(UserError):
            values = _values(copy)
            print(f"{error}; {copy} is used in its place", file=sys.stderr, flush=True)
            return values
        raise


def look(path: Path) -> dict[str, Any]:
    """As ``read``; a record that cannot be read, lies in the folder of another run, or has lost its
    log has the status ``damaged`` and says why."""
    try:
        values = read(path)
        if values["run"] != path.parent.name:
            found = f"run record {path} is of run {values['run']}"
            raise UserError(f"{found}; move it into the folder of that run")
        log, stated = log_of(path), values.get("log_sha256")
        if stated and log_digest(log) != stated:
            raise UserError(
                f"{log} is not the log that its record {path.name} states; copy it again, or type "
                f"lmscaling reset {path.parent.name}"
            )
        return values
    except UserError as error:
        return {
            "run": path.parent.name,
            "name": path.parent.name.rpartition("-")[0],
            "status": DAMAGED,
            "message": str(error),
            "updates": 0,
            "train_seconds": 0.0,
        }


def _values(path: Path) -> dict[str, Any]:
    remedy = f"to train it again: lmscaling reset {path.parent.name}"
    try:
        values = read_json(path, "run record")
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from None
    schema.read(Run, values, f"run record {path}", remedy)
    return values


def log_of(record: Path) -> Path:
    """The log beside a record: ``log.jsonl``, or in its place ``log.jsonl.gz`` of gzip."""
    log, packed = (record.with_name(name) for name in ("log.jsonl", "log.jsonl.gz"))
    return log if log.is_file() or not packed.is_file() else packed


def log_digest(log: Path) -> str:
    """SHA-256 of the lines of a log; empty where they cannot be read."""
    with suppress(OSError, EOFError, zlib.error):
        stat = log.stat()
        return _digest(log, stat.st_mtime_ns, stat.st_size)
    return ""


@lru_cache(maxsize=4096)
def _digest(log: Path, changed: int, size: int) -> str:
    with opened(log) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def opened(log: Path) -> BinaryIO:
    """A log, compressed or not, as bytes of its lines."""
    return cast(BinaryIO, gzip.open(log)) if log.suffix == ".gz" else log.open("rb")
