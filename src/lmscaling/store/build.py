"""The store: the logs of a study as tables, rebuilt whole and exported as Parquet.

The logs are the truth and the store a cache: it can be deleted at any time. Figures and the
report read the exports through an in-memory database; ``store.duckdb`` is for people.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from lmscaling.config import grid, study_file
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records import checks, timing
from lmscaling.records import run as records
from lmscaling.store import published, spikes

CELL_COLUMNS = {
    "source": "VARCHAR",
    "run": "VARCHAR",
    "name": "VARCHAR",
    "attention": "VARCHAR",
    "size": "VARCHAR",
    "context": "BIGINT",
    "seed": "BIGINT",
    "lr_scale": "DOUBLE",
    "lr": "DOUBLE",
    "branch": "DOUBLE",
    "trunk": "VARCHAR",
    "d_model": "BIGINT",
    "n_layer": "BIGINT",
    "positions": "VARCHAR",
    "dataset": "VARCHAR",
    "encoding": "VARCHAR",
    "schedule": "VARCHAR",
    "update_tokens": "BIGINT",
    "budget": "VARCHAR",
    "skipped": "VARCHAR",
    "place": "BIGINT",
}
"""Columns of ``cells``; ``source`` is ``measured``, or ``published`` of a run that others trained;
``positions`` is how they are told (``learned``, ...); ``dataset`` and ``encoding`` say what its
tokens are; ``skipped`` is the reason, ``place`` stands
in the study's order; a branch is a cell of its own, and a trunk's ``trunk`` is its own run."""


DEVICE_FILES = {
    "kernel": "kernels/*.jsonl",
    "check": "checks/*.jsonl",
    "numerics": "numerics/*.jsonl",
}
"""What only the study of a device has, by kind."""

COLUMNS = {
    "run": records.run_columns,
    "log": records.log_columns,
    "evaluation": records.evaluation_columns,
    "measurement": timing.measurement_columns,
    "bench": timing.bench_columns,
    "check": checks.check_columns,
    "numerics": checks.numerics_columns,
}
"""What each kind of file has in its lines."""


def build(study: Path) -> dict[str, int]:
    """Read all records, logs and evaluations of ``results/<study>/`` into ``store/`` there.

    Records count when they are there, and logs of runs without one as far as they go. Published
    numbers stand beside them if the study asks for that, and alone in ``results/published/``.

    Returns:
        The number of rows of each export.

    Raises:
        UserError: There is no such study, or a record or a published file is not whole.
    """
    cells, others = _contents(study)
    found = _files(study)
    for path in found["run"]:
        _check_record(path)
    out = study / "store"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as folder:
        work = Path(folder)
        nothing = work / "nothing.jsonl"  # read_json refuses an empty list
        nothing.touch()
        with duckdb.connect(work / "store.duckdb") as db:
            _fill_cells(db, cells)
            for kind, paths in found.items():
                names = [str(path) for path in paths or [nothing]]
                db.execute(f"SET VARIABLE {kind}_files = ?", [names])
            for kind, columns in COLUMNS.items():
                db.execute(f"SET VARIABLE {kind}_columns = ?", [columns()])
            db.execute(_sql("tables.sql"))
            _fill_spikes(db)
            if others:  # behind the spikes: curves that were thinned have none to find
                published.add(db, others)
            db.execute(_sql("views.sql"))
            counts = {name: _export(db, name, work) for name in records.EXPORTS}
        for name in [*(f"{name}.parquet" for name in records.EXPORTS), "store.duckdb"]:
            (work / name).replace(out / name)
    return counts


def _files(study: Path) -> dict[str, list[Path]]:
    """What there is to read, by kind; of a run that is not over the logs of its attempts."""
    runs = sorted(study.glob("runs/*/run.json"))
    over = {path.parent.name for path in runs}
    attempts = sorted(study.glob("scratch/*/attempt-*.jsonl"))
    logs = [path.with_name("log.jsonl") for path in runs]
    logs += [path for path in attempts if path.parent.name not in over]
    points = sorted(study.glob("speed/*/*/*.json"))
    return {
        "run": runs,
        "log": [path for path in logs if path.is_file()],
        "evaluation": sorted(study.glob("evaluations/*/*.jsonl")),
        "measurement": [path for path in points if path.name != "sweep.json"],
        **{kind: sorted(study.glob(glob)) for kind, glob in DEVICE_FILES.items()},
    }


@contextmanager
def connect(store: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory database with a view for each export and the views of ``views.sql``.

    Raises:
        UserError: The exports are not there.
    """
    with duckdb.connect() as db:
        for name in records.EXPORTS:
            path = store / f"{name}.parquet"
            if not path.is_file():
                raise UserError(f"{path} does not exist; run snakemake figures to build it")
            db.read_parquet(str(path)).create_view(name)
        db.execute(_sql("views.sql"))
        yield db


def _contents(study: Path) -> tuple[grid.Grid | None, Path | None]:
    """The study's cells, and the folder of published numbers that stand beside or for them."""
    if published.is_folder(study):
        return None, study
    laid_out = study_file.read_record(study / "study.json").grid
    return laid_out, published.beside(study) if laid_out.study.published else None


def _sql(name: str) -> str:
    return files("lmscaling.store").joinpath(name).read_text()


def _export(db: duckdb.DuckDBPyConnection, name: str, folder: Path) -> int:
    """One table as Parquet, ordered, so that equal tables make equal bytes."""
    table = db.table(name)
    table.order("ALL").write_parquet(str(folder / f"{name}.parquet"), compression="zstd")
    return len(table)


def _fill_cells(db: duckdb.DuckDBPyConnection, cells: grid.Grid | None) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in CELL_COLUMNS.items())
    db.execute(f"CREATE TABLE cells ({columns})")
    if cells is None:
        return
    rows = [_row(cell, None) for cell in cells.cells.values()]
    rows += [_row(cell, None) for cell in cells.branches.values()]
    rows += [_row(cell, reason) for cell, reason in cells.skipped]
    marks = ", ".join("?" for _ in CELL_COLUMNS)
    numbered = [(*row.values(), i) for i, row in enumerate(rows)]
    db.executemany(f"INSERT INTO cells VALUES ({marks})", numbered)


def _fill_spikes(db: duckdb.DuckDBPyConnection) -> None:
    """Losses that are no number have no height and are left out; a view counts them."""
    losses = """
        SELECT update, train_loss FROM updates
        WHERE run = ? AND surviving AND train_loss IS NOT NULL ORDER BY update
    """
    insert = """
        INSERT INTO spikes SELECT ?, unnest(?::BIGINT[]), unnest(?::DOUBLE[]), unnest(?::DOUBLE[]),
            unnest(?::DOUBLE[])
    """
    for (run,) in db.execute("SELECT DISTINCT run FROM updates ORDER BY run").fetchall():
        columns = db.execute(losses, [run]).fetchnumpy()
        update, loss = columns["update"], columns["train_loss"]
        found, heights = spikes.find(np.asarray(loss))
        begin, lasted = spikes.recoveries(np.asarray(loss), found)
        over = dict(zip(begin.tolist(), lasted.tolist(), strict=True))
        recovery = [over.get(i) for i in found.tolist()]
        values = [update[found].tolist(), loss[found].tolist(), heights.tolist(), recovery]
        db.execute(insert, [run, *values])


def _row(cell: Cell, skipped: str | None) -> dict[str, Any]:
    return {
        "source": "measured",
        "run": cell.run,
        "name": cell.name,
        "attention": cell.attention,
        "size": cell.size,
        "context": cell.context,
        "seed": cell.seed,
        "lr_scale": cell.lr_scale,
        "lr": cell.lr,
        "branch": cell.branch,
        "trunk": cell.trunk,
        "d_model": cell.model.d_model,
        "n_layer": cell.model.n_layer,
        "positions": cell.position,
        "dataset": cell.data.dataset,
        "encoding": cell.data.encoding,
        "schedule": cell.schedule.kind,
        "update_tokens": cell.update_tokens,
        "budget": cell.budget,
        "skipped": skipped,
    }


def _check_record(path: Path) -> None:
    record = read_json(path, "run record")
    missing = (
        [c for c in records.run_columns() if c not in record] if isinstance(record, dict) else []
    )
    if missing or not isinstance(record, dict):
        raise UserError(
            f"run record {path} is not whole: {', '.join(missing) or json.dumps(record)[:40]} "
            f"missing; to train it again: python -m lmscaling reset {path.parent.name}"
        )
