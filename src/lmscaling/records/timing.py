"""One measured point of the speed study, from the plan of its sweep to the store.

A ``Point`` is what a sweep plans, an ``Outcome`` adds what a process measured, and a
``Measurement`` adds how the point ended and on what device: each column is declared once.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from lmscaling.records.run import FORMAT

MEASUREMENT_STATUSES = {
    "done": "measured",
    "oom": "ran out of memory; longer contexts were not tried",
    "slow": "did not end within the time limit; longer contexts were not tried",
    "failed": "raised an error; longer contexts were not tried",
    "wrong": "did not pass its checks on this device; not timed",
}
"""How a point of the speed study can end; each is a result."""

BUSY = 1.2
"""Wall time over CPU time from which the first screen of a report does not quote a point."""

UNMASKED = "unmasked forward"
"""A pass of a layer in which each token sees all others."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One thing to measure."""

    attention: str
    """File stem in ``attention/``; ``peer`` is another library; of a ceiling, what is measured."""
    implementation: str = ""
    """File stem in ``kernels/<attention>/``; empty if the attention uses its own choice."""
    context: int
    """Tokens of a sequence; of ``time_decode`` those before the sampled one; of a ceiling its
    size."""
    batch: int = 1
    """Sequences at once."""
    chunk: int | None = None
    """Tokens per chunk; null where there is no choice."""
    passes: str = ""
    """``forward``, ``forward+backward`` or ``UNMASKED`` of a layer; empty elsewhere."""

    @property
    def way(self) -> str:
        """What is measured, as checks name it: ``linear/chunked``, or an attention alone."""
        return "/".join(filter(None, (self.attention, self.implementation)))

    @property
    def series(self) -> str:
        """Name of the points that differ from this one in their context (and batch) only."""
        parts = [self.way.replace("/", ".")]
        parts += [f"c{self.chunk}"] if self.chunk else []
        parts += [re.sub(r"\W", "_", self.passes)] if self.passes else []
        return "-".join(parts)

    @property
    def name(self) -> str:
        """File stem of its record."""
        return f"{self.series}-b{self.batch}-ctx{self.context}"


@dataclass(frozen=True, kw_only=True)
class Outcome(Point):
    """What one process measured of a point; numbers are null unless the point is ``done``."""

    dtype: str = ""
    """Data type of the products."""
    compiled: bool = False
    """Whether blocks were compiled."""
    captured: bool = False
    """Whether launches were replayed from a CUDA graph."""
    warm_up: int = 0
    """Repeats that were not counted."""
    repeats: int = 0
    """Repeats that were counted, each with a wait for the device."""
    least_seconds: float | None = None
    """Seconds of one repeat: a step, a sampled token of all sequences, or a pass of a layer. On a
    CPU they are CPU seconds of one thread; records without ``wall_over_cpu`` have wall time."""
    lower_seconds: float | None = None
    """First quartile of the repeats."""
    median_seconds: float | None = None
    """Median of the repeats."""
    upper_seconds: float | None = None
    """Third quartile of the repeats."""
    most_seconds: float | None = None
    """Slowest repeat."""
    mean_seconds: float | None = None
    """Mean of the repeats."""
    sd_seconds: float | None = None
    """Standard deviation of the repeats, not of their mean."""
    optimizer_seconds: float | None = None
    """Median seconds of clipping and AdamW, which are part of a step; null elsewhere."""
    captured_seconds: float | None = None
    """Median seconds of the same step replayed from a CUDA graph, without its launches; null where
    it was not captured. ``captured`` is of the other times."""
    peak_memory_bytes: int | None = None
    """The most allocated on the GPU, or resident on the CPU, minus what was in use before; null
    where the system does not report it."""
    wall_over_cpu: float | None = None
    """Wall time over CPU time of the repeats; far above 1 other programs had the core. Null on a
    GPU."""
    params: int | None = None
    """Parameters without embeddings; null of a layer alone."""
    flops_per_token: float | None = None
    """Forward and backward FLOPs per token of a step, counted; null elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Measurement(Outcome):
    """``<point>.json``: one point of the speed study."""

    record: ClassVar[str] = "measurement"
    kind: str
    """Section of ``speed:``, and rule that measured the point; in ``speeds`` steps of the
    size ``copy`` are of the kind ``copy_task``."""
    sweep: str
    """Size or preset, with a hash of the model's numbers."""
    size: str
    """Row under ``sizes:``, or name of the preset."""
    n_layer: int | None
    """Blocks of the model; null of a layer alone."""
    n_head: int | None
    """Heads of one layer; null of a ceiling."""
    d_head: int | None
    """Width of a head; null of a ceiling."""
    status: str
    """How the point ended: ``done``, ``oom``, ``slow``, ``failed`` or ``wrong``."""
    message: str
    """The reason; empty unless something went wrong."""
    started: str
    """UTC, ISO 8601."""
    device: str
    """Name of the GPU or the CPU."""
    environment: dict[str, Any]
    """Host, device, driver, versions, git commit."""
    format: int = FORMAT
    """Version of the record's format."""

    def __post_init__(self) -> None:
        # A time without warm-up, repeats and spread is no measurement.
        assert self.status != "done" or (self.warm_up >= 1 and self.repeats >= 3), self
        assert self.status == "done" or self.median_seconds is None, self
