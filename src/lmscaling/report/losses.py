"""Final losses of all runs with their standard errors."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import duckdb
import numpy as np

from lmscaling.fits import final_loss
from lmscaling.report.table import Table, query_rows

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
    )
    SELECT
        source, attention, size, context, seed, status, split, loss, val_loss, bits_per_byte,
        last_losses
    FROM final LEFT JOIN ends USING (run)
    ORDER BY source, attention DESC, params, size, context, seed
"""

NOTE = (
    "Training losses are means over the last 1 % of updates, at least 20, without outliers on "
    "either side; runs of fewer than 400 updates have none, and their validation loss is their "
    "end. Unsettled: the level of the training loss changes by more than 0.05 nats within these "
    "updates and as many before, by a rank test at 1 %. ± is one standard "
    "error: with several seeds, that of their mean; with a single seed, that of its mean over the "
    "last updates from ten blocks, which excludes the variance of seeds. If several learning rates "
    "were tried, the best one is shown. Published runs have training losses without errors."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Final losses by attention, size and context, all seeds in one row."""
    found = query_rows(db, LOSSES)
    bits = ["validation loss (bits per byte)"] if any(row["bits_per_byte"] for row in found) else []
    return [
        Table(
            name="final_losses",
            section="learning",
            title="Final losses",
            note=NOTE,
            query=LOSSES,
            head=("attention", "size", "context (tokens)", "source", "runs",
                  "validation loss (nats per token)", *bits, "training loss (nats per token)",
                  "error from, remarks"),
            rows=tuple(_row(key, list(runs), bool(bits)) for key, runs in groupby(found, _key)),
            text=frozenset({0, 1, 3, 7 + len(bits)}),
        )
    ]  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["source"], row["attention"], row["size"], row["context"]


def _row(
    key: tuple[str, str, str, int], runs: list[dict[str, Any]], in_bits: bool
) -> tuple[str, ...]:
    source, attention, size, context = key
    fits = [final_loss.mean(run["last_losses"] or []) for run in runs]
    published = [run["loss"] if run["split"] == "train" else None for run in runs]
    losses = [
        loss if fit.loss is None else fit.loss for fit, loss in zip(fits, published, strict=True)
    ]
    validation = _mean([run["val_loss"] for run in runs], None)
    bits = [_mean([run["bits_per_byte"] for run in runs], None)] if in_bits else []
    training = _mean(losses, fits[0].error)
    origin = "seeds" if len(runs) > 1 else "blocks"
    remarks = [
        *([origin] if "±" in validation + training else []),
        *sorted({run["status"].replace("_", " ") for run in runs} - {"done"}),
        *sorted({fit.status for fit in fits} & {"unsettled", "spiking"}),
    ]
    return (
        attention, size, f"{context:,}", source, str(len(runs)), validation, *bits, training,
        ", ".join(remarks),
    )  # fmt: skip


def _mean(losses: Iterable[float | None], error: float | None) -> str:
    """The mean of several losses with its standard error, or a single loss with ``error``."""
    known = [loss for loss in losses if loss is not None]
    if not known:
        return ""
    if len(known) > 1:
        error = float(np.std(known, ddof=1) / np.sqrt(len(known)))
    return f"{np.mean(known):.4f}" + ("" if error is None else f" ± {error:.4f}")
