"""The loss at the end of every run, with what is known of its error."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import duckdb
import numpy as np

from lmscaling.fits import final_loss
from lmscaling.formatting import Table
from lmscaling.report import queries

# As final_loss has it: the last percent of a run, and 20 updates at least. Losses of published runs
# are thinned means here, and their ends are already averaged.
LOSSES = """
    WITH lengths AS (
        SELECT run, max("update") AS length
        FROM updates JOIN runs USING (run) WHERE surviving AND source = 'measured' GROUP BY run
    ),
    ends AS (
        SELECT run, list(coalesce(train_loss, 'nan'::DOUBLE) ORDER BY "update") AS last_losses
        FROM updates JOIN lengths USING (run)
        WHERE surviving AND "update" > length - greatest(20, length // 100) GROUP BY run
    )
    SELECT source, attention, size, context, seed, status, split, loss, val_loss, last_losses
    FROM final LEFT JOIN ends USING (run)
    ORDER BY source, attention DESC, params, size, context, seed
"""

NOTE = (
    "Losses of training are means of the last percent of updates, spikes left out. Behind ± stands "
    "one standard error: with several seeds, that of their mean; with one, that of its last "
    "training losses by ten blocks, which says nothing of other seeds. Where several learning "
    "rates were tried, the best counts. Published losses are those of training, given without an "
    "error."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Final losses by attention, size and context, seeds in one row."""
    groups = groupby(queries.rows(db, LOSSES), _key)
    return [
        Table(
            name="final_losses",
            section="learning",
            title="Final losses",
            note=NOTE,
            query=LOSSES,
            head=("attention", "size", "context (tokens)", "source", "runs",
                  "validation loss (nats per token)", "training loss (nats per token)",
                  "error from"),
            rows=tuple(_row(key, list(runs)) for key, runs in groups),
            text=frozenset({0, 1, 3, 7}),
        )
    ]  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["source"], row["attention"], row["size"], row["context"]


def _row(key: tuple[str, str, str, int], runs: list[dict[str, Any]]) -> tuple[str, ...]:
    source, attention, size, context = key
    ends = [final_loss.mean(run["last_losses"] or []) for run in runs]
    cited = [run["loss"] if run["split"] == "train" else None for run in runs]
    training = [
        loss if end.loss is None else end.loss for end, loss in zip(ends, cited, strict=True)
    ]
    validation = _mean([run["val_loss"] for run in runs], None)
    trained = _mean(training, ends[0].error)
    origin = "seeds" if len(runs) > 1 else "blocks"
    said = [
        *([origin] if "±" in validation + trained else []),
        *sorted({run["status"].replace("_", " ") for run in runs} - {"done"}),
        *(["spiking"] if any(end.status == "spiking" for end in ends) else []),
    ]
    return (
        attention, size, f"{context:,}", source, str(len(runs)), validation, trained,
        ", ".join(said),
    )  # fmt: skip


def _mean(losses: Iterable[float | None], error: float | None) -> str:
    """The mean with the standard error of several losses, or of one with its own error."""
    known = [loss for loss in losses if loss is not None]
    if not known:
        return ""
    if len(known) > 1:
        error = float(np.std(known, ddof=1) / np.sqrt(len(known)))
    return f"{np.mean(known):.4f}" + ("" if error is None else f" ± {error:.4f}")
