"""Forecasts what one cell needs: micro-batch, memory, time, tokens, GPU-hours, price, disk space.

What is measured is used: the mean update of a finished run, else a calibration. Otherwise memory is
estimated from the shape of the model and the time of an update by ``throughput``, and the forecast
is marked as not measured. Parameters and FLOPs come from the model as a ``Shape``, so this module
does not load torch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lmscaling.config.budget import parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.formatting import short
from lmscaling.plan.throughput import coefficients
from lmscaling.plan.throughput.model import (
    NAMES,
    QUANTILES,
    REDUCTION,
    TRAINED,
    Coefficients,
    Prediction,
    vector,
)
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
SCORE_BYTES = {"softmax_scores": 9, "linear_scores": 5}
"""Per head and pair of tokens of one layer, where attention is no kernel; likewise from the longest
published contexts. The other kinds take nothing that shows beside the activations, except"""
STATES_BYTES = 8
"""per token and element of 64 x width, if the states of all tokens are there at once."""
DOCUMENT_TOKENS = 512
"""Mean length of masked documents; those of C4 have 480 tokens of GPT-2."""
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
    params: int = 0
    """Without embeddings; 0 if it is not known."""


@dataclass(frozen=True)
class Layout:
    """How a device computes its share of an update."""

    micro_batch: int
    recompute: bool
    memory_bytes: float
    """Per device."""
    memory_sd: float = 0.0
    """Standard deviation of its logarithm."""

    def fits(self, memory: float) -> str:
        """Whether it fits into so many bytes: for sure within the interval of 80 %, likely, or
        not."""
        if self.memory_bytes > FILL * memory:
            return "does not fit"
        most = self.memory_bytes * math.exp(QUANTILES[0.8] * self.memory_sd)
        return "fits" if most <= FILL * memory else "likely fits"


SMALLEST = Layout(1, True, 0.0)
"""The layout that needs the least memory."""

Range = tuple[float, float]


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
    source: str = ""
    """Where the time comes from: ``published`` times, ``predicted`` from them and what the study
    has measured, ``calibrated``, or a finished ``run``; empty if it is unknown."""
    fits: str = ""
    """Whether the memory of the device is enough: ``fits``, ``likely fits`` or ``does not fit``;
    empty if it is unknown."""
    update_seconds: float | None = None
    update_sd: float | None = None
    """Standard deviation of the logarithm of the mean update of a run; None if it is unknown."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of each term in the time of an update, of what of it is predicted."""
    updates: int | None = None
    tokens: int | None = None
    """Training tokens until the budget or the data is exhausted."""
    epochs: float | None = None
    """Passes over the data that the complete budget allows."""
    gpu_hours: float | None = None
    branch_gpu_hours: float | None = None
    dollars: float | None = None
    """Price of run and branches."""
    kwh: float | None = None
    """Energy of run and branches if their boards take their largest power."""
    range_80: dict[str, Range] = field(default_factory=dict)
    """Intervals of the numbers above by their name, with a probability of 80 %."""
    range_95: dict[str, Range] = field(default_factory=dict)
    """The same of 95 %."""
    disk_bytes: float = 0.0
    """Size of the final weights and of the checkpoints for branches."""
    notes: list[str] = field(default_factory=list)
    cannot: str = ""
    """Why the cell cannot run; empty if it can."""


def sequences(cell: Cell) -> int:
    """Sequences per update and device."""
    return cell.update_tokens // cell.context // max(1, cell.gpus)


def memory_bytes(
    cell: Cell,
    params_total: int,
    micro_batch: int,
    recompute: bool,
    kinds: Iterable[str] = (),
    scale: float = 1.0,
) -> float:
    """Training memory of one device in bytes (bf16-mixed).

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        micro_batch: Sequences at once.
        recompute: Whether blocks are recomputed.
        kinds: How its attentions are computed, of ``terms.KINDS``.
        scale: Factor on what the parameters do not take, from a measured peak.
    """
    shape, tokens = cell.model, micro_batch * cell.context
    per_layer = RESIDUAL_BYTES if recompute else ACTIVATION_BYTES
    units = shape.n_layer * per_layer + (ACTIVATION_BYTES if recompute else 0)
    head = min(HEAD_BYTES, 2 * tokens * shape.vocab_size)
    head += HEAD_GRADIENT_BYTES * shape.vocab_size * shape.d_model
    pairs = shape.n_head * tokens * cell.context
    own = [SCORE_BYTES[kind] * pairs for kind in kinds if kind in SCORE_BYTES]
    own += [STATES_BYTES * 64 * tokens * shape.d_model for kind in kinds if kind == "states"]
    others = tokens * shape.d_model * units + head + max(own, default=0)
    return STATE_BYTES * params_total + scale * others


def memory_scale(cell: Cell, shape: Shape, calibration: Calibration) -> float:
    """What the measured peak of a cell makes of ``memory_bytes`` without the parameters."""
    if not calibration.peak_memory_bytes:
        return 1.0
    states = STATE_BYTES * shape.params_total
    layout = calibration.micro_batch, calibration.recompute
    guessed = memory_bytes(cell, shape.params_total, *layout, shape.kinds) - states
    found = max(calibration.peak_memory_bytes - states, guessed / 2)
    unsure = MEASURED_MEMORY_SD * calibration.peak_memory_bytes / guessed
    return (found / guessed) ** (ACTIVATION_SD**2 / (ACTIVATION_SD**2 + unsure**2))


def guess(
    cell: Cell,
    params_total: int,
    memory: float | None,
    kinds: Iterable[str] = (),
    scale: float = 1.0,
) -> Layout | None:
    """The largest micro-batch, up to a typical size, that fits for sure, else the smallest one that
    likely fits; None if one sequence does not.

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        memory: Memory of a device in bytes; None for no limit.
        kinds: As in ``memory_bytes``.
        scale: As in ``memory_bytes``.
    """
    fitting = max(1, GUESSED_TOKENS // cell.context)
    sizes = [d for d in range(1, fitting + 1) if sequences(cell) % d == 0]
    layout = None
    for size, recompute in [(size, False) for size in reversed(sizes)] + [(1, True)]:
        needed = memory_bytes(cell, params_total, size, recompute, kinds, scale)
        activations = needed - STATE_BYTES * params_total
        layout = Layout(size, recompute, needed, ACTIVATION_SD * activations / needed)
        if memory is None or layout.fits(memory) == "fits":
            return layout
    return layout if layout and memory and layout.fits(memory) == "likely fits" else None


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
        attended=min(DOCUMENT_TOKENS, cell.context) if cell.is_masked else 0.0,
    )


def predict(
    cell: Cell, shape: Shape, layout: Layout, device: Device, known: Coefficients
) -> Prediction:
    """The mean time of an update of a run on all its devices."""
    of_cell = work(cell, shape, layout.micro_batch, layout.recompute, cell.gpus)
    return known.predict(vector(of_cell, device), TRAINED)


def reduced(
    cell: Cell, shape: Shape, device: Device | None, calibration: Calibration, known: Coefficients
) -> Prediction:
    """The mean time of an update from a calibration, which was made on one device and reduces no
    gradient."""
    seconds, share, sd = calibration.update_seconds or 0.0, 0.0, 0.0
    if device and cell.gpus > 1:
        layout = calibration.micro_batch, calibration.recompute
        x_K = vector(work(cell, shape, *layout, cell.gpus), device)
        x_K = np.where(np.array(NAMES) == REDUCTION, x_K, 0.0)
        reduction = known.predict(x_K, 0.0)
        share = reduction.seconds / (seconds + reduction.seconds)
        seconds, sd = seconds + reduction.seconds, share * reduction.sd
    return Prediction(seconds, math.hypot(TRAINED, sd), {REDUCTION: share} if share else {})


def budget_updates(cell: Cell, update_seconds: float | None) -> int | None:
    """Updates within a cell's budget; None if the budget is a time and the speed is unknown."""
    budget = parse_budget(cell.budget)
    if budget.seconds:
        return int(budget.seconds / update_seconds) if update_seconds else None
    return math.ceil(budget.amount / (cell.update_tokens if budget.unit == "tokens" else 1))


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
    *,
    run: Mapping[str, Any] | None = None,
    is_refitted: bool = False,
    scale: float = 1.0,
    price: float | None = None,
) -> Forecast:
    """Forecast of a cell.

    Args:
        cell: A trunk.
        shape: Size of its model.
        device: Its kind of device; None for the CPU.
        calibration: Its calibration, if there is one.
        tokens: Training tokens of its data; None if unknown.
        known: Coefficients of the throughput model; the shipped ones by default.
        run: Its record, if it has ended after at least one update.
        is_refitted: Whether the coefficients have seen an update of the study.
        scale: As in ``memory_bytes``.
        price: Dollars of a GPU-hour.
    """
    predicted, source = None, ""
    known = known or coefficients.shipped()
    if calibration:
        needed = calibration.peak_memory_bytes
        layout = Layout(
            calibration.micro_batch, calibration.recompute, needed or 0.0, MEASURED_MEMORY_SD
        )
        if calibration.update_seconds:
            source, predicted = "calibrated", reduced(cell, shape, device, calibration, known)
    else:
        memory = device and device.memory_bytes
        layout = guess(cell, shape.params_total, memory, shape.kinds, scale)
        if device and layout:
            source = "predicted" if is_refitted else "published"
            predicted = predict(cell, shape, layout, device, known)
    if run:
        source, predicted = "run", Prediction(run["train_seconds"] / run["updates"], 0.0, {})
    if layout is None:
        assert device
        least = memory_bytes(cell, shape.params_total, 1, True, shape.kinds, scale)
        has = device.memory_bytes / 1e9
        cannot = (
            f"one sequence takes {least / 1e9:.0f} GB, a device has {has:.0f} GB, of which a run "
            f"fills at most {FILL:.0%}"
        )
        return Forecast(name=cell.name, gpus=cell.gpus, fits="does not fit", cannot=cannot)
    amounts = partial(
        _amounts, cell, tokens=tokens, run=run, price=price, power=device and device.power
    )
    found = amounts(predicted and predicted.seconds)
    updates = found.get("updates")
    notes = [
        exhausts(cell, updates, tokens), _early_branch(cell, updates), *_blocks(cell),
        *shape.remarks,
    ]  # fmt: skip
    return Forecast(
        name=cell.name,
        gpus=cell.gpus,
        micro_batch=layout.micro_batch,
        accumulation=sequences(cell) // layout.micro_batch,
        recompute=layout.recompute,
        memory_bytes=layout.memory_bytes or None,
        memory_sd=layout.memory_sd if layout.memory_bytes else None,
        measured=bool(calibration or run),
        source=source,
        fits=layout.fits(device.memory_bytes) if device and layout.memory_bytes else "",
        update_sd=predicted and predicted.sd,
        shares=predicted.shares if predicted else {},
        **found,
        range_80=_ranges(amounts, layout, predicted, 0.8),
        range_95=_ranges(amounts, layout, predicted, 0.95),
        disk_bytes=shape.params_total * (4 + len(cell.keep) * (CHECKPOINT_BYTES + 4)),
        notes=[note for note in notes if note],
    )


def _amounts(
    cell: Cell,
    seconds: float | None,
    *,
    tokens: float | None,
    run: Mapping[str, Any] | None,
    price: float | None,
    power: float | None,
) -> dict[str, Any]:
    """The numbers of a forecast that depend on the time of an update, by name, if they are known.

    Args:
        cell: The cell.
        seconds: Time of an update.
        tokens: Training tokens of its data.
        run: Its record, if it has ended.
        price: Dollars of a GPU-hour.
        power: Watts of a board.
    """
    updates = budget_updates(cell, seconds)
    wanted = None if updates is None else updates * cell.update_tokens
    budget_seconds = parse_budget(cell.budget).seconds
    total = budget_seconds or (updates * seconds if updates and seconds else None)
    # A run ends when it has read all its data; it does not use the rest of a budget in hours.
    read = min(1.0, cell.epochs * tokens / wanted) if wanted and tokens else 1.0
    hours = None if total is None else total * read * cell.gpus / 3600
    if run:  # it may have ended for another reason
        hours = run["train_seconds"] * cell.gpus / 3600
    branches = None if hours is None else hours * (1 - BRANCH_AT) * sum(cell.keep)
    every = (hours or 0.0) + (branches or 0.0)
    found = {
        "update_seconds": seconds,
        "updates": updates,
        "tokens": run["tokens"] if run else None if wanted is None else int(wanted * read),
        "epochs": wanted / tokens if wanted and tokens else None,
        "gpu_hours": hours,
        "branch_gpu_hours": branches,
        "dollars": every * price if hours is not None and price else None,
        "kwh": every * power / 1000 if hours is not None and power else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ranges(
    amounts: Callable[[float], dict[str, Any]],
    layout: Layout,
    predicted: Prediction | None,
    level: float,
) -> dict[str, Range]:
    """The interval of each number: all depend on one unknown, the time of an update, and none rises
    and falls with it."""
    found = {}
    if predicted:
        fast, slow = map(amounts, predicted.interval(level))
        found = {n: (min(fast[n], slow[n]), max(fast[n], slow[n])) for n in fast}
    if layout.memory_bytes:
        factor = math.exp(QUANTILES[level] * layout.memory_sd)
        found["memory_bytes"] = layout.memory_bytes / factor, layout.memory_bytes * factor
    return found


def _blocks(cell: Cell) -> Iterator[str]:
    """Notes on blocks of text that are too long for the updates of a cell, or too short for it."""
    block, update = cell.block_tokens, cell.update_tokens
    shorter = max(cell.context, update // 4)
    if block and update < 2 * block and shorter < block:
        yield (
            f"an update of {update:,} tokens has less than two blocks of {block:,}, so it is "
            f"neighbouring text; write update_tokens: {2 * block}, or, if no context is longer, "
            f"block_tokens: {shorter} in the row of dataset {cell.data.dataset}"
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
