"""What each column of the store means: comments in ``store.duckdb`` for people who query it.

A column that a record class declares has the string under its field. Columns that SQL computes are
explained here, once for all views that have them.
"""

import duckdb

from lmscaling.records import schema
from lmscaling.records.checks import Numerics
from lmscaling.records.design import Design
from lmscaling.records.forecast import Sealed
from lmscaling.records.run import End, Evaluation, Gradients, Header, Run, Update, Validation
from lmscaling.records.sample import Sample
from lmscaling.records.timing import Measurement
from lmscaling.store.cells import CellRow

RECORDS: dict[str, tuple[type, ...]] = {
    "cells": (CellRow,),
    "runs": (Run,),
    "attempts": (Header, End),
    "updates": (Update,),
    "gradients": (Gradients,),
    "validations": (Validation,),
    "spikes": (Update,),
    "evaluations": (Evaluation,),
    "measurements": (Measurement,),
    "numerics": (Numerics,),
    "every": (Run, CellRow),
    "known": (Run, CellRow),
    "planned": (Run, CellRow),
    "status": (Run, CellRow),
    "training": (Update, CellRow),
    "validation": (Validation, CellRow),
    "last_validation": (Validation, CellRow),
    "final": (Validation, CellRow),
    "outcomes": (Run, CellRow),
    "chosen": (),
    "by_position": (Evaluation, CellRow),
    "endpoints": (Validation, CellRow),
    "curves": (CellRow,),
    "law_curves": (CellRow,),
    "law_points": (CellRow,),
    "gradient_noise": (Gradients, CellRow),
    "stability": (),
    "spike_rates": (CellRow,),
    "own_context": (Evaluation,),
    "own_context_samples": (Evaluation,),
    "speeds": (Measurement,),
    "ceilings": (Measurement,),
    "kernel_times": (Measurement,),
    "speed_ratios": (Measurement,),
    "crossings": (Measurement,),
    "forecasts": (Sealed,),
    "forecast_scores": (CellRow, Sealed),
    "tasks": (Run, CellRow),
    "task_validations": (Run, Validation, CellRow),
    "task_groups": (Run, Validation, CellRow),
    "task_rates": (CellRow,),
    "task_scores": (Run, Validation, CellRow),
    "unknown_fields": (),
    "designs": (Design,),
    "samples": (Sample,),
    "frontiers": (Design,),
}
"""Where the comments on the columns of each table and view come from; later classes prevail."""

COMPUTED = {
    schema.UNKNOWN: "Fields that this version does not know.",
    "run": "Cell name and hash.",
    "source": "measured, or published for runs and times of others.",
    "flops_per_token": "Forward and backward FLOPs per training token.",
    "status": "How the run ended, or its state: skipped, pending, running, interrupted or held; "
    "exploded of a run that is over and whose rise exceeds most_rise.",
    "rise": "Nats of the median loss of the last twentieth of the run above the lowest such "
    "median, of the training or the validation loss, whichever rose less; null without either.",
    "most_rise": "Nats that the loss of a run may rise: 0.1, or six standard deviations of seeds "
    "if that is more, from those of its size and context, else of the study.",
    "outcome": "failed if the run diverged or exploded, ok if it spent its budget or its text, "
    "else unfinished.",
    "has_failed": "Whether the run diverged or exploded.",
    "n_started": "Runs of the cell that have begun; they differ in their seed only.",
    "n_ok": "Those of them that have ended and have not failed.",
    "spike": "Nats of the highest spike in the interval, or of a published point that is one; null "
    "without one.",
    "message": "The reason; empty unless something went wrong.",
    "setup": "Device and versions. Times of two setups are never compared.",
    "surviving": "False if a later attempt trained this update again.",
    "params": "Parameters without embeddings.",
    "params_total": "Parameters with embeddings, without the rows that pad the vocabulary.",
    "params_positions": "Parameters of learned positions; they depend on the context.",
    "budget_hours": "What the run may spend, in hours; null of a budget in updates or tokens.",
    "is_stale": "Whether the run was trained by other code than the present.",
    "hours": "Hours of productive time.",
    "flops": "FLOPs spent until here, counted: tokens x flops_per_token.",
    "split": "Tokens that the loss was measured on: validation, or train for published runs.",
    "loss": "Mean cross-entropy, nats per token; see split where there is one.",
    "bits_per_byte": "The same validation loss in bits per UTF-8 byte of the text, by which "
    "tokenizers can be compared; null where the shards have no sidecar.",
    "updates": "Updates done; of a mean over several, their geometric mean.",
    "tokens": "Training tokens seen, over all devices.",
    "share": "Share of the budget at which the row ends, 0 to 1.",
    "unit": "What the budget counts: hours, or updates.",
    "spent": "What was spent until here, in unit.",
    "seeds": "Runs of which the row is the mean.",
    "eval_context": "Tokens of the windows into which the text was cut.",
    "position": "Middle of the bin on a logarithmic scale, in tokens that the model was given.",
    "trunk_val_loss": "Validation loss of the trunk nearest in time, nats per token.",
    "trunk_hours": "Hours at which the trunk had that loss.",
    "spikes": "Number of spikes of the training loss.",
    "spikes_per_10000_updates": "Spikes in 10,000 updates.",
    "height": "Nats above the running median of the loss, or of its difference from other runs.",
    "highest_spike": "Nats of the highest spike; null without one.",
    "recovery": "Updates until the upset that this spike begins was over, infinite if it never was;"
    " null of later spikes of an upset.",
    "median_recovery": "Updates until an upset was over; of two in the middle the lower.",
    "nonfinite_losses": "Training losses that are infinite or NaN.",
    "compared_share": "Share of the updates whose spikes were judged by the difference from at "
    "least three other runs of the same text at the same update; the others were judged by the "
    "losses of the run itself.",
    "documents": "Documents of the sample; null if counted on the text of an evaluation.",
    "signal": "Estimate of the squared norm of the true gradient, of this update alone: it may be "
    "negative.",
    "noise": "Estimate of the trace of the covariance of the gradient, times tokens, of this "
    "update alone.",
    "bits": "The validation loss in bits per target.",
    "group": "Group of targets: of recall the number of pairs of their sequence.",
    "pairs": "Key-value pairs of the sequence; null of other tasks than recall.",
    "accuracy": "Share of the targets of the group that the model predicts; they are those of the "
    "last validation.",
    "targets": "Number of targets in the group.",
    "measure": "What the score is: accuracy, bits, or loss in nats.",
    "score": "Accuracy of the hardest group, bits per pixel, or loss in nats.",
    "learned": "False if the run recalls the fewest pairs less than twice as often as by guessing, "
    "or of up to three pairs less often than halfway between guessing and always.",
    "before": "Tokens of its own document before a token.",
    "method": "How attention was computed: attention and implementation.",
    "seconds": "Median seconds of a step, of a sampled token of all sequences, or of a pass.",
    "mfu": "Share of the device's peak that a step reaches, by counted FLOPs, 0 to 1.",
    "peak_flops": "FLOP/s that the device can do at most, by its data sheet.",
    "driver_version": "Version of the NVIDIA driver; null without one.",
    "copy_bytes_per_second": "Bytes per second of the best copy, read and written.",
    "matmul_flops": "FLOP/s of the best product of square matrices.",
    "ns_per_token_head": "Nanoseconds per token and head, median.",
    "vector_bytes": "Bytes of one vector of a head.",
    "floor_bytes": "Bytes per token and head that a pass must move: q, k, v, y and one float32 "
    "once, with gradients also q, k, v, dy, dq, dk, dv and that float32.",
    "floor_fraction": "Share of the time that moving these bytes at the speed of a copy takes.",
    "ratio": "Seconds of the baseline over seconds of the challenger.",
    "challenger": "Method that may be faster.",
    "baseline": "What the challenger, or another attention, is compared with.",
    "low": "Last context before the last change.",
    "high": "First context after the last change.",
    "shortest": "Shortest context that both were measured at.",
    "longest": "Longest context that both were measured at.",
    "fused": "Softmax that was softmax fused, the fastest that stores no matrix; else null.",
    "most_batch": "Sequences at once at the context that has most.",
    "least_ratio": "Least of seconds of the baseline over seconds of the challenger.",
    "most_ratio": "Most of the same ratio.",
    "table": "Table whose records have the field.",
    "field": "Name of the field.",
    "records": "Records that have it.",
    "keeps_to": "Last update that survives: a later attempt that continued after it has lost what "
    "came later; null if all survive.",
    "in_study": "Whether the study still has the cell.",
    "final_train_loss": "Mean training loss of the last updates of a published run, nats per token;"
    " null of our runs.",
    "compared_updates": "Updates whose spikes were judged by the difference from other runs of the "
    "same text; null without updates.",
    "measured": "What the run has shown, in the unit of the quantity.",
    "lines": "Lines of the logs.",
    "damaged_lines": "Lines of logs and evaluations that are no complete record, or that "
    "contradict another line.",
    "spend": "What is spent, in the unit of price.",
    "chosen": "Half-width of the search for a design; null without an interval.",
    "random": "Median half-width of random runs of the grid; null without an interval.",
    "random_low": "Half-width below which a quarter of the random runs are.",
    "random_high": "Half-width above which a quarter of the random runs are; null without an "
    "interval.",
    "largest": "Half-width if the largest cells come first; null without an interval.",
    "superseded_rows": "Updates that a later attempt trained again.",
}
"""Columns that the records of a table or view do not have."""

OWN = {
    ("runs", "spikes"): "Spikes of a published run; those of our runs are in the table spikes.",
    ("runs", "highest_spike"): "Nats of the highest spike of a published run.",
    ("attempts", "start_update"): "Updates already done when the attempt began; without a header, "
    "those before its first update that is known.",
    (
        "outcomes",
        "loss",
    ): "Last loss, nats per token: infinite of a failed run, so that medians and "
    "ranks count it; null of an unfinished one.",
    ("curves", "loss"): "Mean training loss without spikes, nats per token.",
    ("law_curves", "budget"): "What the run may spend, in unit.",
    ("law_points", "budget"): "What the run may spend until its share, in unit.",
    ("by_position", "dataset"): "Row under datasets: whose validation text was used.",
    ("own_context", "share"): "Share of the tokens with at least so many before them, 0 to 1.",
    ("own_context_samples", "share"): "Share of the tokens with at least so many before them.",
    ("ceilings", "started"): "When the first of them was measured, UTC, ISO 8601.",
    ("endpoints", "trunk"): "Run that the branch starts from.",
    ("kernel_times", "kind"): "Attention whose layer was measured.",
    ("crossings", "context"): "Tokens at which both take the same time in the last change; null if "
    "the faster one never changes.",
    ("crossings", "status"): "When the challenger is faster: always, never, from or until the one "
    "change, or several changes.",
    ("law_points", "schedule"): "decayed at the end of a branch or of a run whose rate decays, "
    "constant where a trunk passes a share, unknown of published runs.",
    (
        "forecast_scores",
        "started",
    ): "When the first attempt of the run began: UTC, ISO 8601; null if none has.",
    (
        "forecast_scores",
        "state",
    ): "scored, or why not: changed of a file whose hash differs, begun of "
    "a run that began before the seal, not predicted, waiting, or failed of a run without the "
    "quantity.",
    ("law_points", "loss"): "Mean cross-entropy, nats per token, between validations on a straight "
    "line in ln spent.",
}
"""Columns of one table or view that mean something of their own."""


def comment(db: duckdb.DuckDBPyConnection) -> None:
    """Add the comments; ``SELECT column_name, comment FROM duckdb_columns()`` shows them."""
    query = "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'store'"
    statements = ["BEGIN"]  # one transaction: each would write to the disk
    for table, column in db.sql(query).fetchall():
        text = meaning(table, column).replace("'", "''")
        statements.append(f'COMMENT ON COLUMN "{table}"."{column}" IS \'{text}\'')
    db.execute("; ".join([*statements, "COMMIT"]))


def meaning(table: str, column: str) -> str:
    """What a column of a table or view means, with its unit."""
    if (table, column) in OWN:
        return OWN[table, column]
    known = schema.columns(*RECORDS[table])
    return known[column].meaning if column in known else COMPUTED[column]
