"""Final losses of all cells with what their seeds say of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import duckdb
import numpy as np

from lmscaling.fits import final_loss
from lmscaling.fits import tables as numbers
from lmscaling.fits.noise import Noise, Place
from lmscaling.report.table import Column, Row, Table, of_numbers, query_rows

# The rule of final_loss: the last 1 % of a run, at least 20 updates, and as many before them, of
# runs with 400 updates. The final losses of published runs are already means over last updates.
LOSSES = """
    WITH lengths AS (
        SELECT run, max("update") AS length
        FROM updates JOIN runs USING (run) WHERE surviving AND source = 'measured' GROUP BY run
        HAVING length >= 400
    ),
    ends AS (
        SELECT run, list(coalesce(train_loss, 'nan'::DOUBLE) ORDER BY "update") AS last_losses
        FROM updates JOIN lengths USING (run)
        WHERE surviving AND "update" > length - 2 * greatest(20, length // 100) GROUP BY run
    ),
    begun AS (
        SELECT source, attention, size, context, count(DISTINCT seed) AS started,
            count(DISTINCT seed) FILTER (run IN (SELECT run FROM chosen WHERE has_failed)) AS failed
        FROM outcomes WHERE branch IS NULL GROUP BY ALL
    )
    SELECT
        source, attention, size, context, seed, status, params, started, failed, split, loss,
        val_loss, bits_per_byte, last_losses
    FROM begun LEFT JOIN final USING (source, attention, size, context) LEFT JOIN ends USING (run)
    ORDER BY
        source, attention DESC, min(params) OVER (PARTITION BY source, size), size, context, seed
"""

NOTE = (
    "Means over the seeds whose runs are done, of all whose runs have started; a failed run has "
    "no loss. Training losses are means over the last 1 % of updates, at least 20, without "
    "outliers on either side; a run of fewer than 400 updates has none. Unsettled: its level "
    "changes by more than 0.05 nats within these updates and as many before, by a rank test at 1 "
    "%. Brackets contain 95 % intervals of the loss of a run that does not fail (98 to 99 % if "
    "all cells scatter alike) by a moderated t: the variance of a cell's seeds, raised towards "
    "that of all cells with seeds where it is below it; for a single seed, that of these cells. "
    "Where no cell near enough has seeds, brackets contain the range that an assumed scatter "
    "gives, which is no confidence interval. If several learning rates were tried, the best one "
    "is shown."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Final losses by attention, size and context."""
    rows = [*_rows(db)]
    has_bits = any(row["bits"] for row in rows)
    columns = [column for column in COLUMNS if has_bits or column.of != "bits"]
    return [
        of_numbers(
            columns, rows, query=LOSSES, name="final_losses", section="learning",
            title="Final losses", note=NOTE,
        ),
    ]  # fmt: skip


COLUMNS = (
    Column("attention", "attention"),
    Column("size", "size"),
    Column("context (tokens)", "context", "{:,}".format),
    Column("source", "source"),
    Column("done / started (seeds)", "counts", str),
    Column("validation loss (nats per token)", "validation", "{:.4f}".format),
    Column("validation loss (bits per byte)", "bits", "{:.4f}".format),
    Column("training loss (nats per token)", "training", "{:.4f}".format),
    Column("sd between seeds (nats)", "sd"),
    Column("remarks", "remarks"),
)


def _rows(db: duckdb.DuckDBPyConnection) -> Iterator[Row]:
    """The means over the seeds of each cell, and how much they vary."""
    cells: dict[tuple, list[Row]] = defaultdict(list)
    for row in query_rows(db, LOSSES):
        cells[row["source"], row["attention"], row["size"], row["context"]].append(row)
    ends = {
        name: {key: _finite(value, runs) for key, runs in cells.items()}
        for name, value in (("validation", _validation), ("training", _training))
    }
    noise = {name: _noise(losses, cells) for name, losses in ends.items()}
    for key, runs in cells.items():
        first, done = runs[0], [run for run in runs if run["status"] == "done"]
        bits = _finite(lambda run: run["bits_per_byte"], runs)
        row = first | {"counts": f"{len(done)} / {first['started']}", "sd": ""}
        row |= {"bits": np.mean(list(bits.values())) if bits else None, "remarks": _remarks(runs)}
        for name, losses in ends.items():
            known = losses[key]
            mean = float(np.mean(list(known.values()))) if known else None
            spread = noise[name].at(key) if known and done else None
            row |= numbers.number(name, mean, spread and spread.interval(mean or 0.0))
            row["sd"] = row["sd"] or (spread and f"{spread.sd:.2g}, {spread.said}") or ""
        yield row


def _remarks(runs: list[Row]) -> str:
    failed = runs[0]["failed"]
    states = {(run["status"] or "no loss").replace("_", " ") for run in runs} - {"done"}
    fits = {final_loss.mean(run["last_losses"] or []).status for run in runs}
    return ", ".join([
        *([f"{failed} failed"] if failed else []),
        *sorted(states - {"no loss"} if failed else states),
        *sorted(fits & {"unsettled", "spiking"}),
    ])  # fmt: skip


def _finite(value: Callable[[Row], float | None], runs: list[Row]) -> dict[int, float]:
    """By seed the losses of runs that are done, or of all if none is, without missing ones."""
    done = [run for run in runs if run["status"] == "done"]
    losses = {run["seed"]: value(run) for run in done or runs}
    return {s: loss for s, loss in losses.items() if loss is not None and np.isfinite(loss)}


def _validation(run: Row) -> float | None:
    return run["val_loss"]


def _training(run: Row) -> float | None:
    fit = final_loss.mean(run["last_losses"] or [])
    return (run["loss"] if run["split"] == "train" else None) if fit.loss is None else fit.loss


def _noise(losses: dict[tuple, dict[int, float]], cells: dict[tuple, list[Row]]) -> Noise:
    """The noise of the losses of runs that are done."""
    samples = {
        key: known
        for key, known in losses.items()
        if known and any(run["status"] == "done" for run in cells[key])
    }
    places = {key: Place(cells[key][0]["params"], key[3], key[1]) for key in samples}
    return Noise.measure(samples, places)
