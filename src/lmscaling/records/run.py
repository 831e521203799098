"""What is written down: the lines of a run's log and the record that closes a run.

Training writes these, the store reads them, and neither imports the other. A column exists
because it is a field here; its unit is in its name or in its docstring.

A log is JSON lines, one file an attempt: a ``Header``, then ``Update`` and ``Validation`` rows,
then an ``End``. A run has one attempt unless it was killed; an attempt continues behind update
``start_update``, and what an earlier attempt wrote beyond that update was lost with it.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

FORMAT = 1
"""Version of the log; raised when a reader of old logs would misread new ones."""

STATUSES = {
    "done": "spent its budget",
    "diverged": "the loss became infinite or no number",
    "oom": "a device ran out of memory",
    "out_of_tokens": "the stream ended before the budget",
    "crashed": "attempt after attempt ended without a checkpoint",
    "no_trunk": "the trunk has left no checkpoint for this branch",
}
"""How a run can end; each is a result. A run without a record is running, failed or not begun."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of an attempt."""

    record: ClassVar[str] = "header"
    attempt: int
    """Number of the attempt, from 1."""
    start_update: int
    """Updates already done when the attempt began."""
    run: str
    """Cell name and hash."""
    cell: dict[str, Any]
    """The cell, whole."""
    started: str
    """UTC, ISO 8601."""
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    calibration: dict[str, Any]
    """Micro-batch and the like of this attempt, with the device they were measured on."""
    params: int
    """Parameters without embeddings."""
    params_total: int
    """Parameters with embeddings, without the rows that pad the vocabulary."""
    flops_per_token: float
    """Forward and backward FLOPs per training token."""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer update."""

    record: ClassVar[str] = "update"
    attempt: int
    update: int
    """Updates done, from 1."""
    epoch: int
    """Pass over the data that the update belongs to, from 1."""
    tokens: int
    """Training tokens seen, over all devices."""
    train_seconds: float
    """Productive time: wall clock less validation, on the surviving trajectory."""
    train_loss: float | None
    """Mean cross-entropy of this update, nats per token; null if no number."""
    lr: float
    budget_fraction: float
    """Share of the budget that is spent, 0 to 1."""
    grad_norm: float | None
    """Norm of the whole gradient before clipping; null if no number."""
    tokens_per_second: float
    """Over all devices, in productive time."""
    mfu: float | None
    """Model FLOP utilization, 0 to 1, of ``peak_flops`` in the environment; null without one."""
    peak_memory_bytes: int | None
    """The most allocated on rank 0's device so far; null on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One pass over the fixed validation tokens."""

    record: ClassVar[str] = "validation"
    attempt: int
    update: int
    epoch: int
    tokens: int
    train_seconds: float
    lr: float
    budget_fraction: float
    val_loss: float | None
    """Mean cross-entropy on the validation tokens, nats per token; null if no number."""
    val_tokens: int
    """Validation tokens predicted."""


@dataclass(frozen=True, kw_only=True)
class End:
    """Last line of an attempt that was not killed."""

    record: ClassVar[str] = "end"
    attempt: int
    update: int
    status: str
    """A key of ``STATUSES``, or ``interrupted``: the attempt was asked to stop."""
    message: str
    """What happened, in words; empty if all went well."""
    ended: str
    """UTC, ISO 8601."""


Row = Header | Update | Validation | End


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Loss of a run's final weights on the targets whose position lies in one bin.

    A target's position is that of the token before it, the last that the model was given, counted
    from 0 at the first token of the window or at the separator that begins the document.
    """

    record: ClassVar[str] = "evaluation"
    run: str
    """Cell name and hash."""
    dataset: str
    """Row under ``datasets:`` whose validation text it is."""
    context: int
    """Length of the windows into which the text was cut, tokens; at most the trained context."""
    axis: str
    """``sequence``: position in the window; ``document``: in the document, which may have begun
    before the window."""
    start: int
    """First position of the bin."""
    stop: int
    """First position behind it."""
    tokens: int
    """Targets in the bin; their sum over the bins of an axis is the same at every context."""
    loss: float | None
    """Mean cross-entropy of these targets, nats per token; null if no number."""
    loss_se: float | None
    """Standard error of the mean, from contiguous blocks of text; null if fewer than two blocks
    have such a target."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """``run.json``: written last, so its presence means that the run is over."""

    run: str
    name: str
    """Name of the cell, for people."""
    cell: dict[str, Any]
    status: str
    """A key of ``STATUSES``."""
    message: str
    attempts: int
    updates: int
    """Updates done."""
    tokens: int
    """Training tokens seen, over all devices."""
    train_seconds: float
    """Productive time."""
    attempt_seconds: float
    """Wall clock of all attempts from their first update on."""
    lost_seconds: float
    """Productive time that had to be trained again."""
    gpu_hours: float
    """Hours of all devices in all attempts."""
    params: int
    """Parameters without embeddings."""
    params_total: int
    """Parameters with embeddings, without the rows that pad the vocabulary."""
    flops_per_token: float
    """Forward and backward FLOPs per training token."""
    data: dict[str, Any]
    """Folder of the tokens, and number and chain id of the last shard read."""
    calibration: dict[str, Any]
    """See ``Header``; that of the last attempt."""
    environment: dict[str, Any]
    started: str
    ended: str


def line(row: Any) -> bytes:
    """A row, an evaluation or a time as one line of JSON."""
    return (json.dumps({"record": row.record, **asdict(row)}, allow_nan=False) + "\n").encode()


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or no number: JSON has neither."""
    return value if math.isfinite(value) else None


SQL_TYPES = {
    "int": "BIGINT",
    "float": "DOUBLE",
    "float | None": "DOUBLE",
    "int | None": "BIGINT",
    "str": "VARCHAR",
    "bool": "BOOLEAN",
}


def log_columns() -> dict[str, str]:
    """Every column that a line of a log can have, with its SQL type."""
    columns = {"record": "VARCHAR"}
    for kind in (Header, Update, Validation, End):
        columns |= columns_of(kind)
    return columns


def evaluation_columns() -> dict[str, str]:
    """Every column of a line of an evaluation, with its SQL type."""
    return {"record": "VARCHAR", **columns_of(Evaluation)}


def columns_of(kind: type) -> dict[str, str]:
    """The fields of a kind of line that are no mapping."""
    columns = {}
    for column in fields(kind):
        text = getattr(column.type, "__name__", str(column.type))
        if "dict" not in text:
            columns[column.name] = SQL_TYPES[text if text in SQL_TYPES else str(column.type)]
    return columns


def run_columns() -> dict[str, str]:
    """Every column of ``run.json``, with its SQL type; nested values stay JSON."""
    return {c.name: SQL_TYPES.get(getattr(c.type, "__name__", ""), "JSON") for c in fields(Run)}


_RUN = {"params_millions": "BIGINT", "attention": "VARCHAR", "context": "BIGINT"}
_TIME = {"params_millions": "BIGINT", "implementation": "VARCHAR", "context": "BIGINT"}

PUBLISHED = {
    "step_time": {**_TIME, "milliseconds": "DOUBLE"},
    "decode_time": {**_TIME, "milliseconds_per_token": "DOUBLE"},
    "final_loss": {**_RUN, "final_train_loss": "DOUBLE"},
    "curves": {**_RUN, "update": "DOUBLE", "hours": "DOUBLE", "train_loss": "DOUBLE"},
    "runs": {
        **_RUN, "last_update": "DOUBLE", "hours": "DOUBLE", "points": "BIGINT",
        "points_without_loss": "BIGINT", "spikes": "BIGINT", "highest_spike": "DOUBLE",
    },
}  # fmt: skip
"""Files of ``results/published/`` by stem, with their columns; what they mean is in its README."""

EXPORTS = (
    "cells", "runs", "attempts", "updates", "validations", "spikes", "evaluations", "measurements",
    "ceilings", "kernel_times", "checks", "numerics",
)  # fmt: skip
"""Tables of the store that are exported as Parquet; what figures read."""
