"""Logs as rows: read in batches that fit into memory, and of a finished run only once.

The rows of finished runs are kept in ``logs/`` of the store, a Parquet file for each batch. It
lists the runs whose rows it has, each with the SHA-256 of its log: a log that has changed is read
again. The name of a file is the version of this conversion and the SHA-256 of the file, so that a
damaged file or one of another version is not used. All of them can be deleted at any time.
"""

import hashlib
import json
import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import duckdb

from lmscaling.files import sha256_of
from lmscaling.records import schema
from lmscaling.records.run import End, Gradients, Header, Update, Validation

T = TypeVar("T")

KINDS = (Header, Update, Gradients, Validation, End)
"""Classes of the lines of a log."""

FILLED = ("attempts", "headers", "updates", "gradients", "validations", "logged")
"""Tables that get the rows of each batch, from the views ``batch_<table>``, in this order."""

KEPT = "logs"
"""Folder of the store with the rows of finished runs."""

BATCH_BYTES = 128 << 20
"""Bytes of the logs of a batch, some 400,000 lines, if it has more than one run."""

DENSER = 20
"""The least number of bytes of logs in a byte of Parquet."""

PARQUET = "FORMAT parquet, COMPRESSION zstd, DICTIONARY_SIZE_LIMIT 1000"
"""Numbers that differ from row to row are written faster and smaller without a dictionary."""

LONGEST = 1 << 20
"""Bytes. No record is as long; DuckDB refuses a file with a line of more than 16 MiB."""

DAMAGED = b"damaged\n"
"""Stands in for a line that is too long."""


@dataclass(frozen=True)
class Log:
    """The log of one run, in one file or one for each attempt."""

    run: str
    paths: tuple[Path, ...]
    is_finished: bool
    sha256: str
    size: int
    """Bytes."""


def fill(db: duckdb.DuckDBPyConnection, study: Path, work: Path) -> None:
    """Fill the tables of ``FILLED`` from all logs of a study, and keep the rows of finished runs.

    Args:
        db: Database in which ``logs.sql`` has not been run yet.
        study: ``results/<study>``.
        work: Folder for temporary files, in the folder of the store.
    """
    kept = work.parent / KEPT
    kept.mkdir(exist_ok=True)
    logs = list(_find(study, work))
    columns = ", ".join(f"{name} {sql}" for name, sql in _columns().items())
    db.execute(f"CREATE TEMP TABLE lines ({columns}, damaged BOOLEAN, repeated BOOLEAN)")
    for record in KINDS:
        names = list(schema.columns(record))
        db.execute(f"SET VARIABLE {record.__name__.lower()}_columns = ?", [names])
    db.execute(_sql("logs"))
    places = _places(db, kept, logs, work)
    _read_kept(db, places)
    used = {path.name for path in places.values()}
    for is_finished in (True, False):
        new = [log for log in logs if log.is_finished == is_finished and log.run not in places]
        for batch in batches(new, lambda log: log.size, BATCH_BYTES):
            _read(db, [path for log in batch for path in log.paths])
            if is_finished:
                used.add(_keep(db, kept, batch, work))
            _insert(db)
    for path in kept.glob("*.parquet"):
        if path.name not in used:
            path.unlink(missing_ok=True)
    db.execute("DROP TABLE lines CASCADE")


def readable(path: Path, work: Path) -> tuple[Path, str, int]:
    """A file of lines that DuckDB reads, the SHA-256 of the original and its size in bytes.

    This is the file itself, or if it has a line that is too long or a byte order mark, a copy in a
    folder of the same name, in which a short line that is damaged, too, stands for each long one.
    Zeros at the end of a file, as a power failure leaves them, are such a line.
    """
    digest, is_plain, size = hashlib.sha256(), True, 0
    with path.open("rb") as file:
        while block := file.read(LONGEST):
            digest.update(block)
            is_plain &= len(block) < LONGEST or b"\n" in block
            is_plain &= size > 0 or not block.startswith(BOM_UTF8)
            size += len(block)
    if is_plain:
        return path, digest.hexdigest(), size
    copy = work / digest.hexdigest() / path.parent.name / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as file, copy.open("wb") as out:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        while line := file.readline(LONGEST):
            is_long = len(line) == LONGEST and not line.endswith(b"\n")
            out.write(DAMAGED if is_long else line)
            while is_long and line and not line.endswith(b"\n"):
                line = file.readline(LONGEST)
    return copy, digest.hexdigest(), size


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


def _find(study: Path, work: Path) -> Iterator[Log]:
    """All logs; of a run without a record those of its attempts."""
    records = study.glob("runs/*/run.json")
    finished = {path.parent.name: [path.with_name("log.jsonl")] for path in records}
    running: dict[str, list[Path]] = {}
    for path in sorted(study.glob("scratch/*/attempt-*.jsonl")):
        if path.parent.name not in finished:
            running.setdefault(path.parent.name, []).append(_held(path, work))
    for run, paths in sorted({**finished, **running}.items()):
        found = [readable(path, work) for path in paths if path.is_file()]
        if found:
            names, digests, sizes = zip(*found, strict=True)
            yield Log(run, names, run in finished, "".join(digests), sum(sizes))


def _held(path: Path, work: Path) -> Path:
    """A link to the log of an attempt, whose run deletes it when it ends, or a copy."""
    link = work / path.parent.name / path.name
    link.parent.mkdir(exist_ok=True)
    for hold in (os.link, shutil.copyfile):  # the store may be on another file system
        with suppress(OSError):
            hold(path, link)
            return link
    return path  # it has just been deleted


def _columns() -> dict[str, str]:
    """The columns of a line: the run by its folder, and the fields of all classes."""
    return {"run": "VARCHAR"} | schema.sql_types(*KINDS)


def _places(
    db: duckdb.DuckDBPyConnection, kept: Path, logs: list[Log], work: Path
) -> dict[str, Path]:
    """Of each finished run whose rows have been kept, the file that has them, linked to ``work``.

    Another build may delete a file that this one still reads.
    """
    links = []
    for path in sorted(kept.glob(f"{_version()}-*.parquet")):
        link = work / path.name
        with suppress(OSError):
            os.link(path, link)
            if path.stem.endswith(f"-{sha256_of(link)}"):
                links.append(str(link))
    if not links:
        return {}
    query = "SELECT file_name, decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'logs'"
    digests = {log.run: log.sha256 for log in logs if log.is_finished}
    return {
        run: Path(name)
        for name, text in sorted(db.execute(query, [links]).fetchall(), reverse=True)
        for run, digest in json.loads(text).items()
        if digests.get(run) == digest
    }


def _read_kept(db: duckdb.DuckDBPyConnection, places: dict[str, Path]) -> None:
    """Add the rows that have been kept."""
    db.execute(
        "CREATE TEMP TABLE places AS SELECT unnest(?) AS run, unnest(?) AS filename",
        [list(places), list(map(str, places.values()))],
    )
    for batch in batches(sorted(set(places.values())), _bytes_of_logs, BATCH_BYTES):
        db.execute(
            "INSERT INTO lines BY NAME SELECT * EXCLUDE (filename) "
            "FROM read_parquet(?, filename = true) SEMI JOIN places USING (run, filename)",
            [list(map(str, batch))],
        )
        _insert(db)


def _bytes_of_logs(kept: Path) -> int:
    return DENSER * kept.stat().st_size


def _read(db: duckdb.DuckDBPyConnection, paths: list[Path]) -> None:
    """Fill ``lines`` with the lines of files."""
    db.execute("SET VARIABLE log_files = ?", [list(map(str, paths))])
    db.execute(f"CREATE OR REPLACE TEMP VIEW log_rows AS {select(KINDS, 'log_files')}")
    db.execute(_sql("lines"))


def _keep(db: duckdb.DuckDBPyConnection, kept: Path, batch: list[Log], work: Path) -> str:
    """Write the rows of finished runs; the name of the file."""
    path = work / "kept.parquet"
    logs = json.dumps({log.run: log.sha256 for log in batch})
    db.execute(f"COPY lines TO {quoted(path)} ({PARQUET}, KV_METADATA {{logs: {quoted(logs)}}})")
    name = f"{_version()}-{sha256_of(path)}.parquet"
    path.replace(kept / name)
    return name


def _insert(db: duckdb.DuckDBPyConnection) -> None:
    """Add the rows of a batch to the tables, and empty ``lines``."""
    for table in FILLED:
        db.execute(f"INSERT INTO {table} FROM batch_{table}")
    db.execute("TRUNCATE lines")


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


def _version() -> str:
    """Digest of what the rows of a log depend on besides the log."""
    text = select(KINDS, "") + str(_columns()) + _sql("lines")
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def quoted(text: object) -> str:
    """A string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _sql(name: str) -> str:
    return files("lmscaling.store").joinpath(f"{name}.sql").read_text()
