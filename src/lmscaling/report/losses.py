"""Final losses of all cells with what their seeds say of them."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np

from lmscaling.fits import final_loss
from lmscaling.fits.noise import Noise, Place
from lmscaling.report.table import Table, query_rows, with_interval

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
    "%. Brackets contain 95 % intervals of the expected loss (98 to 99 % if all cells scatter "
    "alike) by a moderated t: the variance of a cell's seeds, shrunk to that of all cells with "
    "seeds; for a single seed, that of these cells. Where no cell near enough has seeds, "
    "brackets contain the range that an assumed scatter gives, which is no confidence interval. "
    "If several learning rates were tried, the best one is shown."
)

Row = dict[str, Any]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Final losses by attention, size and context, all seeds in one row."""
    cells: dict[tuple, list[Row]] = defaultdict(list)
    for row in query_rows(db, LOSSES):
        cells[row["source"], row["attention"], row["size"], row["context"]].append(row)
    bits = any(row["bits_per_byte"] for runs in cells.values() for row in runs)
    ends = {
        name: {key: _finite(value, runs) for key, runs in cells.items()}
        for name, value in (("validation", _validation), ("training", _training))
    }
    noise = {name: _noise(losses, cells) for name, losses in ends.items()}
    rows = []
    for key, runs in cells.items():
        source, attention, size, context = key
        done = [run for run in runs if run["status"] == "done"]
        texts, origin = {}, ""
        for name, losses in ends.items():
            known = losses[key]
            mean = float(np.mean(known)) if known else None
            spread = noise[name].at(key) if known and done else None
            interval = None if mean is None or spread is None else spread.interval(mean)
            texts[name] = with_interval(mean, interval, "{:.4f}".format)
            origin = origin or ("" if spread is None else f"{spread.sd:.2g}, {spread.said}")
        in_bits = _finite(lambda run: run["bits_per_byte"], runs)
        fits = [final_loss.mean(run["last_losses"] or []) for run in runs]
        failed = runs[0]["failed"]
        none = "" if failed else "no loss"
        remarks = [
            *([f"{failed} failed"] if failed else []),
            *sorted({(run["status"] or none).replace("_", " ") for run in runs} - {"done", ""}),
            *sorted({fit.status for fit in fits} & {"unsettled", "spiking"}),
        ]
        rows.append(
            (
                attention, size, f"{context:,}", source, f"{len(done)} / {runs[0]['started']}",
                texts["validation"],
                *([f"{np.mean(in_bits):.4f}" if in_bits else ""] if bits else []),
                texts["training"], origin, ", ".join(remarks),
            )
        )  # fmt: skip
    return [
        Table(
            name="final_losses",
            section="learning",
            title="Final losses",
            note=NOTE,
            query=LOSSES,
            head=("attention", "size", "context (tokens)", "source", "done / started (seeds)",
                  "validation loss (nats per token)",
                  *(["validation loss (bits per byte)"] if bits else []),
                  "training loss (nats per token)", "sd between seeds (nats)", "remarks"),
            rows=tuple(rows),
            text=frozenset({0, 1, 3, 7 + bits, 8 + bits}),
        ),
    ]  # fmt: skip


def _finite(value: Callable[[Row], float | None], runs: list[Row]) -> list[float]:
    """The losses of runs that are done, or of all if none is; a run without one is left out."""
    done = [run for run in runs if run["status"] == "done"]
    losses = (value(run) for run in done or runs)
    return [loss for loss in losses if loss is not None and np.isfinite(loss)]


def _validation(run: Row) -> float | None:
    return run["val_loss"]


def _training(run: Row) -> float | None:
    fit = final_loss.mean(run["last_losses"] or [])
    return (run["loss"] if run["split"] == "train" else None) if fit.loss is None else fit.loss


def _noise(losses: dict[tuple, list[float]], cells: dict[tuple, list[Row]]) -> Noise:
    """The noise of the losses of runs that are done."""
    samples = {
        key: known
        for key, known in losses.items()
        if known and any(run["status"] == "done" for run in cells[key])
    }
    places = {key: Place(cells[key][0]["params"], key[3], key[1]) for key in samples}
    return Noise.measure(samples, places)
