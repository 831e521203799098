"""The table of spikes: every run is judged, with other runs of its text where there are any.

And whether its loss has risen for good: how far the median of its last twentieth lies above the
lowest median of a twentieth, which no spike moves and which ends high only after an explosion.
"""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.store import logs, others, spikes

PARTS = 20
"""Twentieths of a run, as in ``runs.sql`` for validations."""

ALONE_ROWS = 4_000_000
"""Losses in memory at once of runs that are compared with no other; 12 bytes each."""


def fill(db: duckdb.DuckDBPyConnection, laid_out: Grid | None) -> None:
    """Fill ``spikes``, and ``compared`` with the number of updates that were judged by differences
    and the rise of the loss.

    Losses that are not finite have no height, and a view counts them.
    """
    db.execute(files("lmscaling.store").joinpath("spikes.sql").read_text())
    for runs, trunks in _groups(db, laid_out):
        found, compared = [], []
        losses = _losses(db, runs)
        differences = others.differences(losses, trunks) if trunks else [None] * len(runs)
        for run, (update, loss), difference in zip(runs, losses, differences, strict=True):
            at, heights, n = spikes.judge(loss, difference)
            first, lasted = spikes.recoveries(loss, at)
            over = dict(zip(first.tolist(), lasted.tolist(), strict=True))
            values = (update[at].tolist(), loss[at].tolist(), heights.tolist(), at.tolist())
            found += [(run, *row, over.get(i)) for *row, i in zip(*values, strict=True)]
            compared.append((run, n, rise(loss)))
        _insert(db, "spikes", found)
        _insert(db, "compared", compared)


def rise(loss: NDArray[np.float64]) -> float | None:
    """Nats of the median of the last twentieth of a run above the lowest such median; None of fewer
    than 20 losses."""
    size = len(loss) // PARTS
    if not size:
        return None
    medians = np.median(loss[len(loss) - PARTS * size :].reshape(PARTS, size), axis=1)
    return float(medians[-1] - medians.min())


def _insert(db: duckdb.DuckDBPyConnection, table: str, rows: list[tuple]) -> None:
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        places = ", ".join(["unnest(?)"] * len(columns))
        db.execute(f"INSERT INTO {table} SELECT {places}", columns)


def _groups(
    db: duckdb.DuckDBPyConnection, laid_out: Grid | None
) -> Iterator[tuple[list[str], list[int | None]]]:
    """Runs that are compared, with the place of the trunk of each branch (``others.differences``).

    The second list is empty for runs that are not compared: those with too few others, and those
    that left the study, whose cells are unknown.
    """
    cells = laid_out.cells | laid_out.branches | laid_out.tasks if laid_out else {}
    texts: dict[Any, list[str]] = {}
    rows = dict(db.sql("SELECT run, count(*) FROM updates GROUP BY run ORDER BY run").fetchall())
    for run in rows:
        texts.setdefault(_text(cells[run]) if run in cells else None, []).append(run)
    alone = texts.pop(None, [])
    for runs in texts.values():
        places = {run: i for i, run in enumerate(runs)}
        of = [cells[run].trunk for run in runs]
        trunks = [None if t == run else places.get(t, -1) for run, t in zip(runs, of, strict=True)]
        if trunks.count(None) < others.FEWEST:
            alone += runs
        else:
            yield runs, trunks
    for batch in logs.batches(sorted(alone), rows.__getitem__, ALONE_ROWS):
        yield batch, []


def _text(cell: Cell) -> tuple[Any, ...]:
    """What says which tokens a run reads in which update; the seed only if it draws their order."""
    seed = cell.seed if cell.block_tokens else None
    return cell.data.folder, cell.update_tokens, cell.epochs, cell.block_tokens, seed


def _losses(db: duckdb.DuckDBPyConnection, runs: list[str]) -> list[others.Losses]:
    """The surviving finite losses of some runs, whose names are in order."""
    known = """
        FROM updates
        WHERE surviving AND isfinite(train_loss) AND run IN (SELECT unnest(?))
    """
    counts = dict(db.execute(f"SELECT run, count(*) {known} GROUP BY run", [runs]).fetchall())
    ends = np.cumsum([counts.get(run, 0) for run in runs])[:-1]
    query = f"SELECT update::INTEGER AS update, train_loss {known} ORDER BY run, update"
    columns = db.execute(query, [runs]).fetchnumpy()
    parts = [np.split(np.asarray(columns[name]), ends) for name in ("update", "train_loss")]
    return [others.Losses(*part) for part in zip(*parts, strict=True)]
