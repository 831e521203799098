"""What is written down of times: the rows of a kernel bench and the points of the speed study.

As in ``records.py``, a column exists because it is a field here; its unit is in its name or in its
docstring.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from lmscaling.records.run import FORMAT, columns_of


@dataclass(frozen=True, kw_only=True)
class Bench:
    """First line of a file of ``KernelTime``: where and how they were measured."""

    record: ClassVar[str] = "bench"
    command: str
    started: str
    """UTC, ISO 8601."""
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    driver: dict[str, str]
    """What ``nvidia-smi`` says: driver, clocks, power limit; empty on the CPU."""
    preset: dict[str, Any]
    """What was to be measured."""
    copy_bytes_per_second: float
    """Bytes read plus bytes written of a large copy, median."""
    matmul_flops: float
    """FLOP/s of a large square product in the dtype of the measurement, median."""
    format: int = FORMAT


KERNEL_STATUSES = {
    "done": "measured",
    "wrong": "differs from the exact result; not timed",
    "failed": "raised an error",
    "oom": "a device ran out of memory; longer contexts were not tried",
    "slow": "the context before took so long that this one was not tried",
}
"""How a measurement of an implementation can end; each is a result."""


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """Time of one implementation of attention at one shape; numbers are null unless ``done``."""

    record: ClassVar[str] = "kernel_time"
    device: str
    versions: dict[str, str]
    kind: str
    """``linear``, ``softmax``, or ``peer``: another library's linear attention."""
    implementation: str
    passes: str
    """``forward``, or ``forward+backward`` with gradients of q, k and v."""
    dtype: str
    batch: int
    """Sequences at once."""
    n_head: int
    context: int
    """Tokens of a sequence."""
    d_head: int
    repeats: int
    """Measurements behind the median."""
    captured: bool
    """Whether launches were replayed from a CUDA graph."""
    median_seconds: float | None
    least_seconds: float | None
    most_seconds: float | None
    ns_per_token_head: float | None
    """Median over batch x context x heads, nanoseconds."""
    floor_fraction: float | None
    """Share of the median that moving every input and output once would take, 0 to 1."""
    peak_memory_bytes: int | None
    """See ``Measurement``; inputs counted."""
    status: str
    """A key of ``KERNEL_STATUSES``."""
    message: str
    """What happened, in words; empty if all went well."""


MEASUREMENT_STATUSES = {
    "done": "measured",
    "oom": "memory did not suffice; longer contexts were not tried",
    "slow": "had not ended after the time limit; longer contexts were not tried",
    "failed": "raised an error; longer contexts were not tried",
    "wrong": "did not pass its checks on this device; not timed",
}
"""How a point of the speed study can end; each is a result."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """``<point>.json``: one point of the speed study; numbers are null unless ``done``."""

    record: ClassVar[str] = "measurement"
    kind: str
    """Rule that measured it: ``time_step``, ``time_throughput``, ``tune_chunk``, ``time_decode``,
    ``time_layer`` or ``copy_task``."""
    sweep: str
    """Size or preset, with a hash of the model's numbers."""
    size: str
    """Row under ``sizes:``, or name of the preset."""
    attention: str
    implementation: str
    """File stem in ``kernels/<attention>/``; empty is what the attention uses itself."""
    n_layer: int | None
    """Null of a layer alone, as is ``params``."""
    n_head: int
    d_head: int
    params: int | None
    """Parameters without embeddings."""
    context: int
    """Tokens of a sequence; of ``time_decode`` those before the one that is sampled."""
    batch: int
    """Sequences at once."""
    chunk: int | None
    """Tokens per chunk, where that was chosen."""
    passes: str
    """``forward`` or ``forward+backward`` of a layer; empty elsewhere."""
    dtype: str
    """Of the products."""
    compiled: bool
    """Whether blocks were compiled."""
    captured: bool
    """Whether launches were replayed from a CUDA graph."""
    warm_up: int
    """Repeats that were not counted."""
    repeats: int
    """Repeats that were counted, the device waited for in each."""
    least_seconds: float | None
    """Of one repeat: a step, a sampled token of all sequences, or a pass of a layer."""
    lower_seconds: float | None
    """First quartile."""
    median_seconds: float | None
    upper_seconds: float | None
    """Third quartile."""
    most_seconds: float | None
    mean_seconds: float | None
    sd_seconds: float | None
    """Standard deviation of the repeats, not of their mean."""
    peak_memory_bytes: int | None
    """The most allocated on the GPU, or resident on the CPU, less what was before; null where the
    system does not say."""
    updates: int
    """Updates of the copy task that were learned before; 0 elsewhere."""
    loss: float | None
    """Mean cross-entropy of the copy after learning, nats per token."""
    accuracy: float | None
    """Share of the copy's tokens that are predicted after learning, 0 to 1."""
    status: str
    """A key of ``MEASUREMENT_STATUSES``."""
    message: str
    """What happened, in words; empty if all went well."""
    started: str
    """UTC, ISO 8601."""
    device: str
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    flops_per_token: float | None = None
    """Forward and backward FLOPs per token of a step, counted; null elsewhere."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        # A time without warm-up, repeats and spread is no measurement.
        assert self.status != "done" or (self.warm_up >= 1 and self.repeats >= 3), self
        assert self.status == "done" or self.median_seconds is None, self


def bench_columns() -> dict[str, str]:
    """Every column of a line of a bench, header or time, with its SQL type."""
    nested = {"environment": "JSON", "driver": "JSON", "versions": "JSON"}
    return {"record": "VARCHAR", **columns_of(Bench), **columns_of(KernelTime), **nested}


def measurement_columns() -> dict[str, str]:
    """Every column of a measurement, with its SQL type; nested values stay JSON."""
    return {"record": "VARCHAR", **columns_of(Measurement), "environment": "JSON"}
