"""Logs as rows, read in batches that fit into memory."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING
from importlib.resources import files
from itertools import accumulate, groupby
from pathlib import Path
from tempfile import mkdtemp

import duckdb

from lmscaling.records import finished, schema
from lmscaling.records.run import End, Gradients, Header, Update, Validation

KINDS = (Header, Update, Gradients, Validation, End)
"""Classes of the lines of a log."""

FILLED = ("attempts", "headers", "updates", "gradients", "validations", "logged")
"""Tables that get the rows of each batch, from the views ``batch_<table>``, in this order."""

BATCH_BYTES = 128 << 20
"""Bytes of the logs of a batch, some 400,000 lines; the log of a run is in one batch."""

PARQUET = "FORMAT parquet, COMPRESSION zstd, DICTIONARY_SIZE_LIMIT 1000"
"""Numbers that differ from row to row are written faster and smaller without a dictionary."""

LONGEST = 1 << 20
"""Bytes. No record is as long; DuckDB refuses a file with a line of more than 16 MiB."""

DAMAGED = b"damaged\n"
"""Stands in for a line that is too long."""


def fill(db: duckdb.DuckDBPyConnection, study: Path, work: Path) -> None:
    """Fill the tables of ``FILLED`` from the logs of a study, but those of damaged runs.

    Args:
        db: Database that has ``run_rows``, and in which ``logs.sql`` has not been run yet.
        study: ``results/<study>``.
        work: Folder for temporary files, in the folder of the store.
    """
    types = {"run": "VARCHAR", "record": "VARCHAR"} | schema.types(*KINDS)
    defined = ", ".join(f"{name} {sql}" for name, sql in types.items())
    db.execute(f"CREATE TEMP TABLE lines ({defined}, damaged BOOLEAN, repeated BOOLEAN)")
    for record in KINDS:
        names = list(schema.columns(record))
        db.execute(f"SET VARIABLE {record.__name__.lower()}_columns = ?", [names])
    db.execute(_sql("logs"))
    damaged = db.sql(f"SELECT run FROM run_rows WHERE status = '{finished.DAMAGED}'").fetchall()
    logs = _find(study, work, {run for (run,) in damaged})
    ends = accumulate(sum(path.stat().st_size for path in log) for log in logs)
    for _, batch in groupby(zip(logs, ends, strict=True), lambda log: log[1] // BATCH_BYTES):
        view(db, "log_rows", KINDS, [path for log, _ in batch for path in log], work)
        db.execute(_sql("lines"))
        for table in FILLED:
            db.execute(f"INSERT INTO {table} FROM batch_{table}")
        db.execute("TRUNCATE lines")
    db.execute("DROP TABLE lines CASCADE")


def view(
    db: duckdb.DuckDBPyConnection,
    name: str,
    kinds: tuple[type, ...],
    paths: Iterable[Path],
    work: Path,
) -> None:
    """A view of the lines of files with the columns of some classes.

    A field that a line lacks has its default; a line that is no record is NULL.
    """
    nothing = work / "nothing.jsonl"  # read_json refuses an empty list
    nothing.touch()
    db.execute(f"SET VARIABLE {name}_files = ?", [[str(path) for path in paths] or [str(nothing)]])
    defaults = ", ".join(
        f"coalesce({field}, $${column.default}$$::{column.sql}) AS {field}"
        for field, column in schema.columns(*kinds).items()
        if column.default is not MISSING and column.default is not None
    )
    types = {"record": "VARCHAR"} | schema.types(*kinds)
    db.execute(f"""
        CREATE OR REPLACE TEMP VIEW {name} AS
        SELECT * {f"REPLACE ({defaults})" if defaults else ""}
        FROM read_json(
            getvariable('{name}_files'),
            format = 'newline_delimited',
            columns = {types},
            ignore_errors = true,
            filename = true
        )
    """)


def readable(path: Path, work: Path) -> Path:
    """A file of lines that DuckDB reads.

    This is the file itself, or if it is compressed or has a line that is too long, a copy in a
    folder of the same name, in which a short line that is damaged, too, stands for each long one.
    Zeros at the end of a file, as a power failure leaves them, are such a line.
    """
    is_plain = path.suffix != ".gz"
    with path.open("rb") as file:
        while is_plain and len(block := file.read(LONGEST)) == LONGEST:
            is_plain = b"\n" in block
    if is_plain:
        return path
    copy = Path(mkdtemp(dir=work)) / path.parent.name / "log.jsonl"
    copy.parent.mkdir()
    with finished.opened(path) as file, copy.open("wb") as out:
        while line := file.readline(LONGEST):
            is_long = len(line) == LONGEST and not line.endswith(b"\n")
            out.write(DAMAGED if is_long else line)
            while is_long and line and not line.endswith(b"\n"):
                line = file.readline(LONGEST)
    return copy


def _find(study: Path, work: Path, damaged: set[str]) -> list[list[Path]]:
    """The files of each log, without those of damaged runs: of a run without a record one for each
    attempt.

    A run deletes those when it ends, so links hold them, or copies on another file system.
    """
    logs = {path.parent.name: [finished.log_of(path)] for path in study.glob("runs/*/run.json")}
    ended = frozenset(logs)
    for path in sorted(study.glob("scratch/*/attempt-*.jsonl")):
        run = path.parent.name
        if run in ended:
            continue
        link = work / run / path.name
        link.parent.mkdir(exist_ok=True)
        for hold in (os.link, shutil.copyfile):
            with suppress(OSError):
                hold(path, link)
                break
        logs.setdefault(run, []).append(link)
    whole = (paths for run, paths in sorted(logs.items()) if run not in damaged)
    held = ([path for path in paths if path.is_file()] for paths in whole)
    return [[readable(path, work) for path in paths] for paths in held if paths]


def quoted(text: object) -> str:
    """A string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _sql(name: str) -> str:
    return files("lmscaling.store").joinpath(f"{name}.sql").read_text()
