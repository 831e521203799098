"""The store: the logs and records of a study as tables, rebuilt each time and exported as Parquet.

The logs are the truth and the store a cache: it can be deleted at any time. Figures and the report
read the exports through an in-memory database; ``store.duckdb`` is for people. Columns, their types
and their comments come from the record classes (``records/schema.py``).
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
from pandas import DataFrame

from lmscaling import registry
from lmscaling.config import grid, study_file
from lmscaling.errors import UserError
from lmscaling.files import new_folder, parse_json, read_json, read_lines, sha256_of, write_record
from lmscaling.records import finished, forecast, schema
from lmscaling.records.floor import Floor
from lmscaling.records.run import Evaluation, Run
from lmscaling.records.sample import Sample
from lmscaling.records.timing import Measurement
from lmscaling.store import EXPORTS, FITTED, cells, logs, meanings, published

TABLES = ("evaluations", "measurements", "runs", "series")
"""Files of SQL that fill tables from records and from what ``logs`` has read, in order."""

STORAGE = "v1.2.0"
"""The oldest version of DuckDB whose format holds the store: others can open the file, too."""

MEMORY = "1GB"
"""What DuckDB may use of the memory of a login node; NumPy and Python need as much again."""

THREADS = 1
"""Each has buffers of its own, and reading is seldom limited by the processor."""

SMALL = 2_000_000
"""Bytes of an export below which it is read once for all queries."""

DISK_FAULTS = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.FatalException,
    duckdb.OutOfMemoryException,
)
"""What DuckDB raises when a write, a commit or a checkpoint fails."""

VIEWS = ("cells", "losses", "tasks", "laws", "speed", "forecasts")
"""Files of SQL that create views over the tables, in order."""

LONG: dict[str, str] = dict.fromkeys(
    ("updates", "gradients", "validations"), "run, attempt, update, tokens"
)
"""Columns that order the rows of long tables completely; sorting by all takes longer. Published
rows have no attempt and no update."""

RECORDS: dict[str, tuple[type, str, str]] = {
    "run": (Run, "runs/*/run.json", ""),
    "measurement": (Measurement, "speed/*/*/*.json", "delete it and measure again"),
    "sample": (Sample, "samples/*.json", "delete it and run snakemake again"),
    "floor": (Floor, "floors/*.jsonl", "delete it and build the store again"),
    "evaluation": (Evaluation, "evaluations/*/*.jsonl", "delete it and run snakemake again"),
}
"""Files of records by kind: class, pattern, and what to do with a damaged one. Each becomes a
temporary table ``<kind>_rows``; of evaluations the lines that are whole."""

CONTENTS = "contents.json"
"""File of the store with the SHA-256 of its exports, of what they came from and of the code."""

SOURCES = (*(pattern for _, pattern, _ in RECORDS.values()), "study.json", "forecasts/*.json",
           "runs/*.json", "runs/*/log.jsonl*", "scratch/*/attempt-*.jsonl")  # fmt: skip
"""Files of a study that a store is built from."""


def build(study: Path, store: Path | None = None) -> dict[str, int]:
    """Read all records, logs and evaluations of ``results/<study>/`` into ``store/`` there, or into
    another folder.

    Runs with a record count by their record, other runs as far as their logs go. Published numbers
    are added if the study asks for them; ``results/published/`` has nothing else. A build needs
    less than 2 GB of memory and spills more to the disk. Where every file that a store was built
    from, its exports and the code have the digests of ``CONTENTS``, it stays.

    Returns:
        The number of rows of each export.

    Raises:
        UserError: There is no such study, a record or a published file is damaged, or the disk is
            full.
    """
    laid_out, numbers = _contents(study)
    out = store or study / "store"
    made_from = _sources(study, numbers)
    if counts := _unchanged(out, made_from):
        return counts
    try:
        with new_folder(out / "build") as work:
            with duckdb.connect() as db:
                db.execute(f"SET memory_limit = '{MEMORY}'; SET threads = {THREADS}")
                db.execute(f"SET temp_directory = {logs.quoted(work / 'spilled')}")
                file = logs.quoted(work / "store.duckdb")
                db.execute(f"ATTACH {file} AS store (STORAGE_VERSION '{STORAGE}'); USE store")
                _fill_tables(db, study, laid_out, work)
                if numbers:  # after the spikes: thinned curves have none to find
                    published.add(db, numbers)
                _create_views(db)
                _fill_fits(db)
                meanings.comment(db)
                counts = {name: _export(db, name, work) for name in EXPORTS}
                for name in FITTED:
                    _export(db, name, work)
                _report_unknown(db)
                db.execute("CHECKPOINT store")  # closing would hide that the disk is full
            write_record(work / CONTENTS, {"exports": exports(work), **made_from})
            last = work / "store.duckdb", work / CONTENTS
            for path in [*work.glob("*.parquet"), *work.glob("*.csv"), *last]:
                path.replace(out / path.name)
    except (*DISK_FAULTS, OSError) as error:
        remedy = f"make room in {out}"
        if isinstance(error, PermissionError):  # another user's umask
            remedy = f"its owner types chmod -R g+rwX {study}"
        raise UserError(
            f"the store of {study} cannot be built: {str(error).splitlines()[0]}; the one before "
            f"is unchanged; {remedy}, then type lmscaling build-store {study}"
        ) from error
    return counts


@contextmanager
def connect(store: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory database with a table or view for each export, and the views of ``VIEWS``.

    Raises:
        UserError: The exports are not there, or another version wrote them.
    """
    with duckdb.connect() as db:
        for name in (*EXPORTS, *FITTED):
            path = store / f"{name}.parquet"
            if not path.is_file():
                raise UserError(f"{path} does not exist; run snakemake figures to build it")
            rows = db.read_parquet(str(path))
            # Each query would read the file again.
            rows.create(name) if path.stat().st_size < SMALL else rows.create_view(name)
        try:
            _create_views(db)
        except duckdb.BinderException as error:
            problem = str(error).splitlines()[0]
            raise UserError(
                f"{store} was built by another version ({problem}); run lmscaling "
                f"build-store {store.parent}"
            ) from None
        yield db


def _fill_tables(
    db: duckdb.DuckDBPyConnection, study: Path, laid_out: grid.Grid | None, work: Path
) -> None:
    from lmscaling.store import spikes  # SciPy takes longer to load than an unchanged store

    rows = cells.rows(laid_out) if laid_out else ()
    _fill(db, "cell_rows", {"cell": "JSON"}, ({"cell": row} for row in rows), work)
    _fill(db, "sealed_rows", schema.types(forecast.Sealed), forecast.rows(study), work)
    for kind, (record, _, _) in RECORDS.items():
        if kind == "evaluation":
            continue
        types = schema.types(record) | {schema.UNKNOWN: "JSON"}
        _fill(db, f"{kind}_rows", types, _records(study, kind), work)
    _run_sql(db, "grid")
    logs.fill(db, study, work)
    spikes.fill(db, laid_out)
    evaluations = [logs.readable(path, work) for path in _whole(study, "evaluation")]
    logs.view(db, "evaluation_rows", (Evaluation,), evaluations, work)
    _run_sql(db, *TABLES)


def _contents(study: Path) -> tuple[grid.Grid | None, Path | None]:
    """The study's cells, and the folder of published numbers to add or to read alone."""
    if published.is_folder(study):
        if study.parent == Path("results"):
            published.lay_out(study.parent)
        return None, study
    laid_out = study_file.read_record(study / "study.json").grid
    return laid_out, published.beside(study) if laid_out.study.published else None


def _records(study: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The records of a kind, of any version, with the fields that this version does not know."""
    for path in paths(study, kind):
        if kind == "run":
            yield _run_record(path)
            continue
        try:
            found = read_file(path, kind)
        except UserError as error:
            print(f"{error}; it is left out", file=sys.stderr)
            continue
        for known, unknown in found:
            yield known | {schema.UNKNOWN: unknown or None}


def _whole(study: Path, kind: str) -> Iterator[Path]:
    """The files of lines of a kind that agree with their digest."""
    for path in paths(study, kind):
        try:
            read_lines(path, f"{kind} record")
            yield path
        except UserError as error:
            print(f"{error}; it is left out", file=sys.stderr)


def paths(study: Path, kind: str) -> list[Path]:
    """The files of a kind of record, sorted."""
    return sorted(path for path in study.glob(RECORDS[kind][1]) if path.name != "sweep.json")


def read_file(path: Path, kind: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The records in a file of a kind, each as ``schema.read``.

    Raises:
        UserError: One is damaged, or belongs elsewhere.
    """
    record, _, remedy = RECORDS[kind]
    where = f"{kind} record {path}"
    if path.suffix == ".json":
        values = [read_json(path, f"{kind} record")]
    else:
        values = [parse_json(line, where) for line in read_lines(path, f"{kind} record")]
    found = [schema.read(record, row, where, remedy) for row in values]
    for known, _ in found:
        own, here = known.get("run"), path.parent.name if kind == "evaluation" else path.stem
        if kind == "measurement":
            own, here = f"{known['kind']}/{known['sweep']}", "/".join(path.parts[-3:-1])
        if own not in (None, here):
            raise UserError(f"{where} is of {own}; {remedy}")
    return found


def exports(store: Path) -> dict[str, str]:
    """SHA-256 of the exports in a store, by file."""
    found = sorted(path for kind in ("parquet", "csv") for path in store.glob(f"*.{kind}"))
    return {path.name: sha256_of(path) for path in found}


def digests(study: Path) -> dict[str, str]:
    """SHA-256 of the files of ``SOURCES``, by path; empty for one that cannot be read."""
    found = dict.fromkeys(sorted(path for pattern in SOURCES for path in study.glob(pattern)), "")
    for path in found:
        with suppress(OSError):
            found[path] = sha256_of(path)
    return {str(path.relative_to(study)): value for path, value in found.items()}


def _sources(study: Path, numbers: Path | None) -> dict[str, dict[str, str]]:
    """What a store is built from. It is read before the build: what changes meanwhile is then
    another file than the one in ``CONTENTS``."""
    code = {name: version(name) for name in ("duckdb", "numpy", "scipy", "pandas")}
    for folder in filter(None, (registry.PACKAGE, numbers)):
        for path in sorted(p for kind in ("py", "sql", "csv") for p in folder.rglob(f"*.{kind}")):
            code[str(path.relative_to(folder.parent))] = sha256_of(path)
    return {"sources": digests(study), "code": code}


def _unchanged(store: Path, made_from: dict[str, dict[str, str]]) -> dict[str, int]:
    """Rows of each export, if a build would write what is there; else nothing."""
    with suppress(UserError):
        built = read_json(store / CONTENTS, "list")
        if built == {"exports": exports(store), **made_from} and (store / "store.duckdb").is_file():
            with connect(store) as db:
                return {name: len(db.table(name)) for name in EXPORTS}
    return {}


def _run_record(path: Path) -> dict[str, Any]:
    """The record of a run; of a damaged one, status and reason."""
    values = finished.look(path)
    if values["status"] == finished.DAMAGED:
        print(values["message"], file=sys.stderr)
        return {key: values[key] for key in ("run", "name", "status", "message")}
    known, unknown = schema.read(RECORDS["run"][0], values, "run record", "")
    return known | {schema.UNKNOWN: unknown or None}


def _fill(
    db: duckdb.DuckDBPyConnection,
    table: str,
    types: dict[str, str],
    rows: Iterable[dict[str, Any]],
    work: Path,
) -> None:
    """A temporary table with columns of these types."""
    path = work / f"{table}.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    db.execute(
        f"CREATE TEMP TABLE {table} AS "
        f"FROM read_json(?, format = 'newline_delimited', columns = {types})",
        [str(path)],
    )


def _create_views(db: duckdb.DuckDBPyConnection) -> None:
    samples = str(files("lmscaling.store").joinpath("own_context.csv"))
    db.execute("SET VARIABLE own_context_samples = ?", [samples])
    _run_sql(db, *VIEWS)


def _fill_fits(db: duckdb.DuckDBPyConnection) -> None:
    from lmscaling.fits import tables  # loads SciPy

    _run_sql(db, "fits")
    for name, rows in tables.compute(db).items():
        if rows:
            db.register("computed", DataFrame(rows))
            db.execute(f"INSERT INTO {name} BY NAME FROM computed")


def _run_sql(db: duckdb.DuckDBPyConnection, *names: str) -> None:
    for name in names:
        db.execute(files("lmscaling.store").joinpath(f"{name}.sql").read_text())


def _export(db: duckdb.DuckDBPyConnection, name: str, folder: Path) -> int:
    """One table as Parquet, ordered, so that equal tables make equal bytes. Fitted numbers have an
    order of their own, and are written as CSV, too."""
    path = logs.quoted(folder / f"{name}.parquet")
    if name in FITTED:
        db.execute(f"COPY {name} TO {path} ({logs.PARQUET})")
        db.execute(f"COPY {name} TO {logs.quoted(folder / f'{name}.csv')}")
    else:
        order = LONG.get(name, "ALL")
        db.execute(f"COPY (FROM {name} ORDER BY {order}) TO {path} ({logs.PARQUET})")
    return len(db.table(name))


def _report_unknown(db: duckdb.DuckDBPyConnection) -> None:
    """Report on standard error what other versions wrote and this one does not use."""
    for table, field, count in db.sql("FROM unknown_fields ORDER BY ALL").fetchall():
        print(
            f"store: {count} records of {table} have the field {field!r} of another version; it is "
            f"kept in {schema.UNKNOWN}",
            file=sys.stderr,
        )
