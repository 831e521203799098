"""What training writes: the lines of a run's log and the record that closes a run.

Training writes these, the store reads them, and neither imports the other. What a field here
implies for files, tables and comments is in ``schema.py``.

A log is JSON lines, one file per attempt: a ``Header``, then ``Update``, ``Gradients`` and
``Validation`` rows, then an ``End``. A run has one attempt unless it was killed. An attempt
continues after update ``start_update``; what an earlier attempt wrote after that update was lost
with it.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

FORMAT = 1
"""Version of the log; raised when a reader of old logs would misread new ones."""

STATUSES = {
    "done": "spent its budget",
    "diverged": "the loss became infinite or NaN",
    "oom": "the model does not fit into the memory of a device",
    "out_of_tokens": "the stream ended before the budget",
    "no_trunk": "the trunk kept no checkpoint for this branch",
}
"""How a run can end; each is a result. A run without a record is running, held or not begun."""

CONCLUSIVE = ("done", "diverged", "out_of_tokens")
"""Statuses of runs that nothing could continue."""

HELD = "held"
"""Status of an attempt that failed: no result, for another attempt may go on."""


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
    """All values of the cell."""
    started: str
    """UTC, ISO 8601."""
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    calibration: dict[str, Any]
    """Micro-batch and other settings of this attempt, with the device they were measured on."""
    params: int
    """Parameters without embeddings."""
    params_total: int
    """Parameters with embeddings, without the rows that pad the vocabulary."""
    flops_per_token: float
    """Forward and backward FLOPs per training token."""
    state_bytes: int | None = None
    """Bytes of the states of one sequence after as many tokens as the context has."""
    remarks: str = ""
    """What a reader should know about the attention, sentences joined by semicolons."""
    code: str = ""
    """Fingerprint of the source of the attention, a file in ``code/``."""
    code_differs: bool | None = None
    """Whether this source differs from the git commit; null if it is not in git."""
    program: str = ""
    """Fingerprint of the model, of the training module and of what they and the attention import;
    empty in older logs, of which only the attention is known."""
    ranks_sha256: str | None = None
    """SHA-256 of the tokenizer's ranks, or of its file; null if the shards have no sidecar."""
    bytes_per_token: float | None = None
    """UTF-8 bytes of the documents per token, of all validation text; end-of-text is a token and no
    byte. Null if a sidecar of the shards is missing or belongs to other tokens."""
    format: int = FORMAT
    """Version of the log's format."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer update."""

    record: ClassVar[str] = "update"
    attempt: int
    """Number of the attempt, from 1."""
    update: int
    """Updates done, from 1."""
    epoch: int
    """Pass over the data, from 1."""
    tokens: int
    """Training tokens seen, over all devices."""
    train_seconds: float
    """Seconds of productive time: wall clock without validation, on the surviving trajectory."""
    train_loss: float | None
    """Mean cross-entropy of this update, nats per target that counts; null if not finite."""
    lr: float
    """Learning rate."""
    budget_fraction: float
    """Share of the budget that is spent, 0 to 1."""
    grad_norm: float | None
    """Norm of the gradient of all parameters before clipping; null if not finite."""
    tokens_per_second: float
    """Training tokens per second of productive time, over all devices."""
    mfu: float | None
    """Model FLOPs utilization, 0 to 1, see ``config/devices.py``; null without a known peak."""
    peak_memory_bytes: int | None
    """Bytes: the most allocated on rank 0's device so far; null on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Norms of gradients and weights at one of every ten updates."""

    record: ClassVar[str] = "gradients"
    attempt: int
    """Number of the attempt, from 1."""
    update: int
    """The update, from 1, that this gradient has changed the weights at."""
    tokens: int
    """Training tokens seen, over all devices."""
    layer_grad_norms: list[float | None]
    """Norms of the gradient before clipping: of the embeddings, of each block from the first to the
    last, and of the final norm. Null if not finite."""
    layer_weight_norms: list[float | None]
    """Norms of the weights before the update, of the same layers."""
    smallest_divisor: float | None = None
    """Smallest sum of weights that an output of the last micro-batch of the first device is divided
    by, of attentions that say it; null if none does, or not finite."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One pass over the fixed validation tokens."""

    record: ClassVar[str] = "validation"
    attempt: int
    """Number of the attempt, from 1."""
    update: int
    """Updates done."""
    epoch: int
    """Pass over the training data, from 1."""
    tokens: int
    """Training tokens seen, over all devices."""
    train_seconds: float
    """Seconds of productive time, see ``updates``."""
    lr: float
    """Learning rate of the last update."""
    budget_fraction: float
    """Share of the budget that is spent, 0 to 1."""
    val_loss: float | None
    """Mean cross-entropy on the validation tokens, nats per target that counts; null if not
    finite."""
    val_tokens: int
    """Validation tokens predicted."""
    groups: dict[str, Any] | None = None
    """Of a task, by group of targets: their number, their loss in nats and the share that the model
    predicts; null of text."""


@dataclass(frozen=True, kw_only=True)
class End:
    """Last line of an attempt that was not killed."""

    record: ClassVar[str] = "end"
    attempt: int
    """Number of the attempt, from 1."""
    update: int
    """Updates done."""
    status: str
    """How the attempt ended: a status of a run, ``interrupted`` if it was asked to stop, or
    ``held`` if it failed and the run is to go on."""
    message: str
    """The reason; empty unless something went wrong."""
    ended: str
    """UTC, ISO 8601."""


Row = Header | Update | Gradients | Validation | End


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
    """Row under ``datasets:`` whose validation text was used."""
    context: int
    """Tokens of a window into which the text was cut; at most the context of training."""
    axis: str
    """``sequence``: position in the window; ``document``: in the document, which may have begun
    before the window."""
    start: int
    """First position of the bin."""
    stop: int
    """First position after the bin."""
    tokens: int
    """Targets in the bin; their sum over the bins of an axis is the same at every context."""
    loss: float | None
    """Mean cross-entropy of these targets, nats per token; null if not finite."""
    loss_se: float | None
    """Standard error of the mean, from contiguous blocks of text, nats per token; null if fewer
    than two blocks have such a target."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """``run.json``: written last, so its presence means that the run is over."""

    run: str
    """Cell name and hash."""
    name: str
    """Name of the cell, for people."""
    cell: dict[str, Any]
    """All values of the cell."""
    status: str
    """How the run ended: ``done``, ``diverged``, ``oom``, ``out_of_tokens`` or
    ``no_trunk``; in the store also ``running``, ``interrupted`` and ``held``."""
    message: str
    """The reason; empty unless something went wrong."""
    attempts: int
    """Number of attempts."""
    updates: int
    """Updates done."""
    tokens: int
    """Training tokens seen, over all devices."""
    train_seconds: float
    """Seconds of productive time: wall clock without validation, on the surviving trajectory."""
    attempt_seconds: float
    """Seconds of wall clock of all attempts from their first update on."""
    lost_seconds: float
    """Seconds of productive time whose updates had to be trained again."""
    gpu_hours: float
    """Hours of all GPUs in all attempts."""
    params: int
    """Parameters without embeddings."""
    params_total: int
    """Parameters with embeddings, without the rows that pad the vocabulary."""
    flops_per_token: float
    """Forward and backward FLOPs per training token."""
    data: dict[str, Any]
    """Folder of the tokens, and number and chain id of the last shard read."""
    calibration: dict[str, Any]
    """Micro-batch and other settings of the last attempt."""
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    started: str
    """UTC, ISO 8601."""
    ended: str
    """UTC, ISO 8601."""
    budget_amount: float | None = None
    """What the run may spend, in ``budget_unit``."""
    budget_unit: str | None = None
    """``hours``, ``minutes`` or ``seconds`` of productive time, ``updates`` or ``tokens``."""
    kernels: str = ""
    """Of a run of before 27 November 2026: which kernels failed their check, why, and what stood in
    for them. Today a run begins only if they pass."""
    state_bytes: int | None = None
    """Bytes of the states of one sequence after as many tokens as the context has."""
    remarks: str = ""
    """What a reader should know about the attention, sentences joined by semicolons."""
    code: str = ""
    """Fingerprint of the source of the attention, a file in ``code/``, or those of several attempts
    joined by ``+``."""
    code_differs: bool | None = None
    """Whether this source differs from the git commit; null if it is not in git."""
    ranks_sha256: str | None = None
    """SHA-256 of the tokenizer's ranks, or of its file; null if the shards have no sidecar."""
    bytes_per_token: float | None = None
    """UTF-8 bytes of the documents per token, of all validation text; end-of-text is a token and no
    byte. Null if a sidecar of the shards is missing or belongs to other tokens."""
    last_val_loss: float | None = None
    """Loss of the last validation, nats per token; null if it is not finite, or if the last attempt
    had none."""
    stalled_seconds: float = 0.0
    """Seconds that updates took beyond the median, of those that took more than thirty seconds and
    twenty medians, as after a suspension: no productive time."""
    environments: list[dict[str, Any]] | None = None
    """Environments of the attempts whose updates survive, each once; null in older records."""
    program: str = ""
    """Fingerprint of the model, of the training module and of what they and the attention import;
    empty in older records, of which only the attention is known."""
    log_sha256: str | None = None
    """SHA-256 of ``log.jsonl`` beside the record."""
    log_lines: int | None = None
    """Lines of ``log.jsonl``."""


def line(row: Any) -> bytes:
    """A record as one line of JSON."""
    return (json.dumps({"record": row.record, **asdict(row)}, allow_nan=False) + "\n").encode()


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or NaN, which JSON cannot express."""
    return value if math.isfinite(value) else None
