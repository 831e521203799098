"""How one device computes a cell: micro-batch, recomputation and what an attention leaves open.

These numbers change the speed and, but for rounding, nothing else, so they are no part of a cell.
They are measured once for each attention, size and context, and copied into every run's record.
"""

from dataclasses import field

from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Trial:
    """One way that was tried."""

    micro_batch: Positive
    recompute: bool
    choice: dict[str, int | str]
    repeats: int
    """How often it was timed; 0 if memory did not suffice."""
    seconds: tuple[float, float, float] | None
    """Least, median and most time of forward and backward of one micro-batch."""
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Calibration:
    """``calibration.json``: the way that is used, and how it was found."""

    of: str
    """``Cell.calibration`` of the cells that it serves."""
    device: str
    """Name of the device; runs on another refuse it."""
    versions: dict[str, str]
    """Packages that it was measured with."""
    measured: bool
    """Whether it was measured; else it is what the plan guesses from the device's memory."""
    micro_batch: Positive
    """Sequences that a device takes at once."""
    recompute: bool = False
    """Whether blocks are computed again in the backward pass instead of remembered."""
    compiled: bool = False
    """Whether blocks are compiled."""
    choice: dict[str, int | str] = field(default_factory=dict)
    """Values of ``Attention.tunable``."""
    update_seconds: float | None = None
    """Time of one update of one device, without communication: medians of all repeats."""
    update_seconds_range: tuple[float, float] | None = None
    """The same of the fastest and of the slowest repeats."""
    peak_memory_bytes: int | None = None
    """The most allocated, moments of the optimizer included; null on the CPU."""
    trials: list[Trial] = field(default_factory=list)
    """All ways that were tried, in order."""
