"""Logs as rows, read in batches that fit into memory."""

import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

import duckdb

from lmscaling.records import schema
from lmscaling.records.run import End, Gradients, Header, Update, Validation

T = TypeVar("T")

KINDS = (Header, Update, Gradients, Validation, End)
"""Classes of the lines of a log."""

FILLED = ("attempts", "headers", "updates", "gradients", "validations", "logged")
"""Tables that get the rows of each batch, from the views ``batch_<table>``, in this order."""

BATCH_BYTES = 128 << 20
"""Bytes of the logs of a batch, some 400,000 lines, if it has more than one run."""

PARQUET = "FORMAT parquet, COMPRESSION zstd, DICTIONARY_SIZE_LIMIT 1000"
"""Numbers that differ from row to row are written faster and smaller without a dictionary."""

LONGEST = 1 << 20
"""Bytes. No record is as long; DuckDB refuses a file with a line of more than 16 MiB."""

DAMAGED = b"damaged\n"
"""Stands in for a line that is too long."""


def fill(db: duckdb.DuckDBPyConnection, study: Path, work: Path) -> None:
    """Fill the tables of ``FILLED`` from all logs of a study.

    Args:
        db: Database in which ``logs.sql`` has not been run yet.
        study: ``results/<study>``.
        work: Folder for temporary files, in the folder of the store.
    """
    columns = {"run": "VARCHAR"} | schema.sql_types(*KINDS)
    defined = ", ".join(f"{name} {sql}" for name, sql in columns.items())
    db.execute(f"CREATE TEMP TABLE lines ({defined}, damaged BOOLEAN, repeated BOOLEAN)")
    for record in KINDS:
        names = list(schema.columns(record))
        db.execute(f"SET VARIABLE {record.__name__.lower()}_columns = ?", [names])
    db.execute(_sql("logs"))
    for batch in batches(_find(study, work), _bytes, BATCH_BYTES):
        db.execute("SET VARIABLE log_files = ?", [[str(path) for log in batch for path in log]])
        db.execute(f"CREATE OR REPLACE TEMP VIEW log_rows AS {select(KINDS, 'log_files')}")
        db.execute(_sql("lines"))
        for table in FILLED:
            db.execute(f"INSERT INTO {table} FROM batch_{table}")
        db.execute("TRUNCATE lines")
    db.execute("DROP TABLE lines CASCADE")


def readable(path: Path, work: Path) -> Path:
    """A file of lines that DuckDB reads.

    This is the file itself, or if it has a line that is too long or a byte order mark, a copy in a
    folder of the same name, in which a short line that is damaged, too, stands for each long one.
    Zeros at the end of a file, as a power failure leaves them, are such a line.
    """
    with path.open("rb") as file:
        block = file.read(LONGEST)
        is_plain = not block.startswith(BOM_UTF8)
        while is_plain and len(block) == LONGEST:
            is_plain = b"\n" in block
            block = file.read(LONGEST)
    if is_plain:
        return path
    copy = Path(mkdtemp(dir=work)) / path.parent.name / path.name
    copy.parent.mkdir()
    with path.open("rb") as file, copy.open("wb") as out:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        while line := file.readline(LONGEST):
            is_long = len(line) == LONGEST and not line.endswith(b"\n")
            out.write(DAMAGED if is_long else line)
            while is_long and line and not line.endswith(b"\n"):
                line = file.readline(LONGEST)
    return copy


def select(kinds: tuple[type, ...], variable: str) -> str:
    """A query of the lines of files, whose names a variable has, with the columns of classes.

    A field that a line lacks has its default; a line that is no record is NULL.
    """
    defaults = ", ".join(
        f"coalesce({name}, $${column.default}$$::{column.sql}) AS {name}"
        for name, column in schema.columns(*kinds).items()
        if column.default is not MISSING and column.default is not None
    )
    return f"""
        SELECT * {f"REPLACE ({defaults})" if defaults else ""}
        FROM read_json(
            getvariable('{variable}'),
            format = 'newline_delimited',
            columns = {schema.sql_types(*kinds)},
            ignore_errors = true,
            filename = true
        )
    """


def _find(study: Path, work: Path) -> Iterator[list[Path]]:
    """The files of each log: of a run without a record one for each attempt."""
    logs = {
        path.parent.name: [path.with_name("log.jsonl")] for path in study.glob("runs/*/run.json")
    }
    finished = frozenset(logs)
    for path in sorted(study.glob("scratch/*/attempt-*.jsonl")):
        if path.parent.name not in finished:
            logs.setdefault(path.parent.name, []).append(_held(path, work))
    for _, paths in sorted(logs.items()):
        if found := [readable(path, work) for path in paths if path.is_file()]:
            yield found


def _held(path: Path, work: Path) -> Path:
    """A link to the log of an attempt, whose run deletes it when it ends, or a copy."""
    link = work / path.parent.name / path.name
    link.parent.mkdir(exist_ok=True)
    for hold in (os.link, shutil.copyfile):  # the store may be on another file system
        with suppress(OSError):
            hold(path, link)
            return link
    return path  # it has just been deleted


def _bytes(log: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in log)


def batches(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Lists of successive items that are not larger than ``most`` together, or are one item."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and total + size(item) > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def quoted(text: object) -> str:
    """A string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _sql(name: str) -> str:
    return files("lmscaling.store").joinpath(f"{name}.sql").read_text()
