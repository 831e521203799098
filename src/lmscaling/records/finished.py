"""The record of a finished run: ``runs/<run>/run.json``, or its copy ``runs/<run>.json``.

A damaged record is not a result, and it keeps nobody from reading the others: the copy is used in
its place, and without one the run counts as ``damaged`` until ``reset`` moves its record away.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    """As ``read``; a record that cannot be read, or lies in the folder of another run, has the
    status ``damaged`` and says why."""
    try:
        values = read(path)
        if values["run"] == path.parent.name:
            return values
        found = f"run record {path} is of run {values['run']}"
        raise UserError(f"{found}; move it into the folder of that run")
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
