"""How a device computes a cell: micro-batch, recomputation and the attention's tunable values.

Except for rounding, these numbers change only the speed, so they are not part of a cell. They are
measured once for each attention, size and context, and copied into the record of every run.
"""

from dataclasses import field

from pydantic.dataclasses import dataclass

from lmscaling.types import STRICT, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Trial:
    """One combination of settings that was tried."""

    micro_batch: Positive
    recompute: bool
    choice: dict[str, int | str]
    repeats: int
    """Number of timings; 0 if the trial failed."""
    seconds: tuple[float, float, float] | None
    """Minimum, median and maximum time of forward and backward of one micro-batch."""
    peak_memory_bytes: int | None = None
    """Peak of allocated memory; null on the CPU."""
    error: str | None = None
    """Why the trial failed; null if it did not."""
    lacks_memory: bool = False
    """Whether it failed for lack of memory."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Calibration:
    """The content of ``calibration.json``: the settings of a device, and the trials behind them."""

    of: str
    """``Cell.calibration`` of the cells that use it."""
    device: str
    """Name of the device; a run on another device refuses the calibration."""
    versions: dict[str, str]
    """Versions of the packages that it was measured with."""
    measured: bool
    """Whether the settings were measured; if not, they are the plan's estimate from the memory."""
    micro_batch: Positive
    """Sequences per device in one forward pass."""
    recompute: bool = False
    """Whether the backward pass recomputes blocks instead of storing their activations."""
    compiled: bool = False
    """Whether blocks are compiled."""
    choice: dict[str, int | str] = field(default_factory=dict)
    """Values of ``Attention.tunable``."""
    nearest: str = ""
    """Calibration of another cell that the choice comes from; empty if it comes from none."""
    code: str = ""
    """Fingerprint of the source of the attention; empty if the settings were not measured."""
    update_seconds: float | None = None
    """Time of one update on one device without communication; median of all repeats."""
    update_seconds_range: tuple[float, float] | None = None
    """The same for the fastest and the slowest repeats."""
    peak_memory_bytes: int | None = None
    """Peak of allocated memory, including the optimizer's moments; null on the CPU."""
    trials: list[Trial] = field(default_factory=list)
    """All trials in order."""
