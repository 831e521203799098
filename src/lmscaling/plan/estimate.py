"""Forecasts what one cell needs: micro-batch, memory, time, tokens, GPU-hours and disk space.

If a calibration exists, its measured numbers are used. Otherwise memory is estimated from the shape
of the model and the time of an update by ``throughput``, and the forecast is marked as not
measured. Parameters and FLOPs come from the model as a ``Shape``, so this module does not load
torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lmscaling.config.budget import parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.formatting import short
from lmscaling.plan.throughput import coefficients
from lmscaling.plan.throughput.model import TRAINED, Coefficients, Prediction, Timing, vector
from lmscaling.plan.throughput.terms import Work

GUESSED_TOKENS = 2**14
"""Tokens in an estimated micro-batch; larger ones are hardly faster on an H100."""
FILL = 0.9
"""Share of a device's memory that a plan or a calibration fills. The rest is for the CUDA context,
the buffers of NCCL and fragments, which PyTorch's allocator does not count."""

STATE_BYTES = 18
"""Per parameter: float32 weight (4), gradient (4) and two moments (8); autocast's bf16 copy (2).
Among several ranks the gradient is a view of the buckets in which it is sent."""
ACTIVATION_BYTES = 37
"""Per token, layer and unit of width, without dropout and T x T matrices. Autograd saves 36.1: in
float32 both inputs of norms (8); in bf16 the inputs of qkv, out and up (6), q, k, v (6), and the
input and output of GELU (16). A compiled block saves 34.1. Without autocast's float32 residual
stream it would be 34 (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, less dropout). The
kernels of linear attention keep 2.1 more where their backward pass is one kernel."""
ACTIVATION_SD = 0.10
"""Standard deviation of the logarithm of an estimate of the activations' bytes; the published
longest contexts of flash, tiled and chunked attention that fit 80 GB agree with it."""
MEASURED_MEMORY_SD = 0.02
"""The same of all memory once a calibration has measured a trial of the same layout."""
RESIDUAL_BYTES = 4
"""The same if blocks are recomputed; the residual stream is float32 under autocast."""
HEAD_BYTES = 2 * 2**28
"""Logits in memory at one time in bf16; their gradient takes their place."""
HEAD_GRADIENT_BYTES = 6
"""Per weight of the head: a gradient in float32 from the forward pass on, a part of it in bf16."""
CHECKPOINT_BYTES = 12
"""Per parameter on disk: weight and two moments."""


@dataclass(frozen=True)
class Shape:
    """Parameters of a cell's model, its training FLOPs per token, and remarks on it."""

    params_total: int
    flops_per_token: float
    remarks: tuple[str, ...] = ()
    """What a reader should know about its attentions, one sentence each without a full stop."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Layers by the way in which their attention is computed, one of ``terms.KINDS``."""


@dataclass(frozen=True)
class Layout:
    """How a device computes its share of an update."""

    micro_batch: int
    recompute: bool
    memory_bytes: float
    """Per device."""
    memory_sd: float = 0.0
    """Standard deviation of its logarithm."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one cell needs; None for unknown values."""

    name: str
    gpus: int
    micro_batch: int | None = None
    accumulation: int | None = None
    recompute: bool = False
    memory_bytes: float | None = None
    """Per device."""
    memory_sd: float | None = None
    """Standard deviation of its logarithm; None if it is unknown."""
    measured: bool = False
    """Whether the numbers come from a calibration."""
    update_seconds: float | None = None
    update_seconds_range: tuple[float, float] | None = None
    """80 % interval of the mean update of a run; None if the time is unknown."""
    update_sd: float | None = None
    """Standard deviation of the logarithm of that mean; None if the time is unknown."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of each term in the time of an update, as predicted."""
    updates: int | None = None
    tokens: int | None = None
    """Training tokens until the budget or the data is exhausted."""
    epochs: float | None = None
    """Passes over the data that the complete budget allows."""
    gpu_hours: float | None = None
    branch_gpu_hours: float | None = None
    disk_bytes: float = 0.0
    """Size of the final weights and of the checkpoints for branches."""
    notes: list[str] = field(default_factory=list)
    cannot: str = ""
    """Why the cell cannot run; empty if it can."""


def sequences(cell: Cell) -> int:
    """Sequences per update and device."""
    return cell.update_tokens // cell.context // max(1, cell.gpus)


def memory_bytes(cell: Cell, params_total: int, micro_batch: int, recompute: bool) -> float:
    """Training memory of one device in bytes (bf16-mixed), without kernels' own buffers."""
    shape, tokens = cell.model, micro_batch * cell.context
    per_layer = RESIDUAL_BYTES if recompute else ACTIVATION_BYTES
    units = shape.n_layer * per_layer + (ACTIVATION_BYTES if recompute else 0)
    head = min(HEAD_BYTES, 2 * tokens * shape.vocab_size)
    head += HEAD_GRADIENT_BYTES * shape.vocab_size * shape.d_model
    return STATE_BYTES * params_total + tokens * shape.d_model * units + head


def guess(cell: Cell, params_total: int, memory: float | None) -> Layout | None:
    """The largest micro-batch, up to a typical size, that fits; None if one sequence does not.

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        memory: Memory of a device in bytes; None for no limit.
    """
    fitting = max(1, GUESSED_TOKENS // cell.context)
    sizes = [d for d in range(1, fitting + 1) if sequences(cell) % d == 0]
    ways = [(size, False) for size in reversed(sizes)] + [(1, True)]
    for size, recompute in ways:
        needed = memory_bytes(cell, params_total, size, recompute)
        if memory is None or needed <= FILL * memory:
            activations = needed - STATE_BYTES * params_total
            return Layout(size, recompute, needed, ACTIVATION_SD * activations / needed)
    return None


def work(cell: Cell, shape: Shape, micro_batch: int, recompute: bool, gpus: int) -> Work:
    """What one of several devices computes in an update of a cell."""
    model = cell.model
    return Work(
        kinds=shape.kinds or {"flash": model.n_layer},
        heads=model.n_head,
        width=model.d_model,
        context=cell.context,
        tokens=cell.update_tokens // max(1, cell.gpus),
        micro_tokens=micro_batch * cell.context,
        vocabulary=model.vocab_size,
        params=shape.params_total,
        gpus=gpus,
        recompute=float(recompute),
    )


def predict(
    cell: Cell, shape: Shape, layout: Layout, device: Device, known: Coefficients
) -> Prediction:
    """The mean time of an update of a run on all its devices."""
    of_cell = work(cell, shape, layout.micro_batch, layout.recompute, cell.gpus)
    return known.predict(vector(of_cell, device), TRAINED)


def measured(cell: Cell, shape: Shape, device: Device, calibration: Calibration) -> Timing | None:
    """What a calibration says of the throughput model; None if it measured nothing. It was made on
    one device, which reduces no gradient."""
    if not calibration.update_seconds:
        return None
    of_cell = work(cell, shape, calibration.micro_batch, calibration.recompute, 1)
    return Timing(vector(of_cell, device), calibration.update_seconds)


def budget_updates(cell: Cell, update_seconds: float | None) -> int | None:
    """Updates within a cell's budget; None if the budget is a time and the speed is unknown."""
    budget = parse_budget(cell.budget)
    if budget.seconds:
        return int(budget.seconds / update_seconds) if update_seconds else None
    return math.ceil(budget.amount / (cell.update_tokens if budget.unit == "tokens" else 1))


def expected_seconds(cell: Cell, update_seconds: float | None) -> float | None:
    """Productive time of a run whose budget is no time; None if the speed is unknown."""
    updates = budget_updates(cell, update_seconds)
    share = (1 - BRANCH_AT) * cell.branch if cell.branch else 1.0
    return updates * update_seconds * share if updates and update_seconds else None


def exhausts(cell: Cell, updates: int | None, tokens: float | None) -> str:
    """A note on a cell whose budget exceeds its data; empty if it does not."""
    if updates is None or not tokens:
        return ""
    passes = updates * cell.update_tokens / tokens
    if passes <= cell.epochs:
        return ""
    spent = cell.epochs / passes
    return (
        f"its {short(tokens)} tokens end at {spent:.0%} of the budget (out_of_tokens); "
        f"write epochs: {math.ceil(passes)} to use all of it"
    )


def forecast(
    cell: Cell,
    shape: Shape,
    device: Device | None,
    calibration: Calibration | None,
    tokens: float | None,
    known: Coefficients | None = None,
) -> Forecast:
    """Forecast of a cell.

    Args:
        cell: A trunk.
        shape: Size of its model.
        device: Its kind of device; None for the CPU.
        calibration: Its calibration, if there is one.
        tokens: Training tokens of its data; None if unknown.
        known: Coefficients of the throughput model; the shipped ones by default.
    """
    common: dict[str, Any] = {"name": cell.name, "gpus": cell.gpus}
    predicted = None
    if calibration:
        needed = calibration.peak_memory_bytes
        layout = Layout(
            calibration.micro_batch, calibration.recompute, needed or 0.0, MEASURED_MEMORY_SD
        )
        if calibration.update_seconds:
            predicted = Prediction(calibration.update_seconds, TRAINED, {})
    else:
        layout = guess(cell, shape.params_total, device and device.memory_bytes)
        if device and layout:
            predicted = predict(cell, shape, layout, device, known or coefficients.shipped())
    seconds = predicted and predicted.seconds
    if layout is None:
        assert device
        least = memory_bytes(cell, shape.params_total, 1, recompute=True)
        has = device.memory_bytes / 1e9
        cannot = (
            f"one sequence takes {least / 1e9:.0f} GB, a device has {has:.0f} GB, of which a run "
            f"fills at most {FILL:.0%}"
        )
        return Forecast(**common, cannot=cannot)
    updates = budget_updates(cell, seconds)
    wanted = None if updates is None else updates * cell.update_tokens
    budget_seconds = parse_budget(cell.budget).seconds
    total = budget_seconds or (updates * seconds if updates and seconds else None)
    # A run ends when it has read all its data; it does not use the rest of a budget in hours.
    read = min(1.0, cell.epochs * tokens / wanted) if wanted and tokens else 1.0
    hours = None if total is None else total * read * cell.gpus / 3600
    notes = [
        exhausts(cell, updates, tokens), _early_branch(cell, updates), *_blocks(cell),
        *shape.remarks,
    ]  # fmt: skip
    return Forecast(
        **common,
        micro_batch=layout.micro_batch,
        accumulation=sequences(cell) // layout.micro_batch,
        recompute=layout.recompute,
        memory_bytes=layout.memory_bytes or None,
        memory_sd=layout.memory_sd if layout.memory_bytes else None,
        measured=calibration is not None,
        update_seconds=seconds,
        update_seconds_range=predicted and predicted.interval(),
        update_sd=predicted and predicted.sd,
        shares=predicted.shares if predicted else {},
        updates=updates,
        tokens=None if wanted is None else int(wanted * read),
        epochs=wanted / tokens if wanted and tokens else None,
        gpu_hours=hours,
        branch_gpu_hours=None if hours is None else hours * (1 - BRANCH_AT) * sum(cell.keep),
        disk_bytes=shape.params_total * (4 + len(cell.keep) * (CHECKPOINT_BYTES + 4)),
        notes=[note for note in notes if note],
    )


def _blocks(cell: Cell) -> Iterator[str]:
    """Notes on blocks of text that are too long for the updates of a cell, or too short for it."""
    block, update = cell.block_tokens, cell.update_tokens
    shorter = max(cell.context, update // 4)
    if block and update < 2 * block and shorter < block:
        yield (
            f"an update of {update:,} tokens has less than two blocks of {block:,}, so it is "
            f"neighbouring text; write block_tokens: {shorter} in the row of dataset "
            f"{cell.data.dataset}"
        )
    if block and cell.context > block:
        yield (
            f"a context of {cell.context:,} tokens joins several blocks of {block:,}; write "
            f"block_tokens: {cell.context} in the row of dataset {cell.data.dataset}"
        )


def _early_branch(cell: Cell, updates: int | None) -> str:
    warmup = cell.optimizer.warmup_updates
    early = [s for s in cell.keep if updates and BRANCH_AT * s * updates < warmup]
    if not early:
        return ""
    shares = ", ".join(f"{share:g}" for share in early)
    return f"branch {shares} starts within the warm-up of {warmup} updates"
