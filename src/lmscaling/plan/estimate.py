"""Forecasts what one cell needs: micro-batch, memory, time, tokens, GPU-hours, price, disk space.

What is measured is used: the mean update of a finished run, else a calibration. Otherwise memory is
estimated from the shape of the model and the time of an update by ``throughput``, and the forecast
is marked as not measured. Parameters and FLOPs come from the model as a ``Shape``, so this module
does not load torch.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lmscaling.config.budget import parse_budget
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell, Parts
from lmscaling.config.devices import Device
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.formatting import short
from lmscaling.plan import footprint
from lmscaling.plan.footprint import FILL, MEASURED_MEMORY_SD, Layout, Shape
from lmscaling.plan.throughput.model import (
    NAMES,
    QUANTILES,
    REDUCTION,
    Coefficients,
    Prediction,
    shipped,
    vector,
)
from lmscaling.plan.throughput.terms import Work

DOCUMENT_TOKENS = 512
"""Mean length of masked documents; those of C4 have 480 tokens of GPT-2."""
CHECKPOINT_BYTES = 12
"""Per parameter on disk: weight and two moments."""


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
    lasts: float = 1.0
    """Share of the budget for which the data lasts."""
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
        block_params=0 if cell.block == Parts() else shape.params,
        params=shape.params_total,
        gpus=gpus,
        recompute=float(recompute),
        attended=min(DOCUMENT_TOKENS, cell.context) if cell.is_masked else 0.0,
    )


def _layout(
    cell: Cell, shape: Shape, device: Device | None, calibration: Calibration | None, scale: float
) -> Layout | None:
    """How a device computes a cell, as calibrated or guessed; None if it has too little memory."""
    if calibration:
        settings = calibration.micro_batch, calibration.recompute
        return Layout(*settings, calibration.peak_memory_bytes or 0.0, MEASURED_MEMORY_SD)
    memory = device and device.memory_bytes
    return footprint.guess(cell, shape.params_total, memory, shape.kinds, scale)


def _time(
    cell: Cell,
    shape: Shape,
    layout: Layout,
    device: Device | None,
    calibration: Calibration | None,
    known: Coefficients,
) -> Prediction | None:
    """The mean time of an update of a run, if it is known: predicted, or that of a calibration,
    which was made on one device, with a predicted reduction of the gradient."""
    seconds = calibration.update_seconds if calibration else None
    if not device or (calibration and (not seconds or cell.gpus < 2)):
        return Prediction(seconds, known.trained, {}) if seconds else None
    x_K = vector(work(cell, shape, layout.micro_batch, layout.recompute, cell.gpus), device)
    if not seconds:
        return known.predict(x_K, known.trained)
    reduction = known.predict(np.where(np.array(NAMES) == REDUCTION, x_K, 0.0), 0.0)
    share = reduction.seconds / (seconds + reduction.seconds)
    sd = math.hypot(known.trained, share * reduction.sd)
    return Prediction(seconds + reduction.seconds, sd, {REDUCTION: share})


def budget_updates(cell: Cell, update_seconds: float | None) -> int | None:
    """Updates within a cell's budget; None if the budget is a time and the speed is unknown."""
    budget = parse_budget(cell.budget)
    if budget.seconds:
        return int(budget.seconds / update_seconds) if update_seconds else None
    return math.ceil(budget.updates(cell.update_tokens))


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
        scale: As in ``footprint.memory_bytes``.
        price: Dollars of a GPU-hour.
    """
    layout = _layout(cell, shape, device, calibration, scale)
    if layout is None:
        assert device
        return _too_large(cell, shape, device, scale)
    predicted = _time(cell, shape, layout, device, calibration, known or shipped())
    if run:
        predicted = Prediction(run["train_seconds"] / run["updates"], 0.0, {})
    guessed = "predicted" if is_refitted else "published"
    source = "run" if run else "calibrated" if calibration else guessed
    amounts = partial(_amounts, cell, tokens, run, price, device and device.power)
    found = amounts(predicted and predicted.seconds)
    notes = _notes(cell, found.get("updates"))
    return Forecast(
        name=cell.name,
        gpus=cell.gpus,
        micro_batch=layout.micro_batch,
        accumulation=footprint.sequences(cell) // layout.micro_batch,
        recompute=layout.recompute,
        memory_bytes=layout.memory_bytes or None,
        memory_sd=layout.memory_sd if layout.memory_bytes else None,
        measured=bool(calibration or run),
        source=source if predicted else "",
        fits=layout.fits(device.memory_bytes) if device and layout.memory_bytes else "",
        update_sd=predicted and predicted.sd,
        shares=predicted.shares if predicted else {},
        **found,
        range_80=_ranges(amounts, layout, predicted, 0.8),
        range_95=_ranges(amounts, layout, predicted, 0.95),
        disk_bytes=shape.params_total * (4 + len(cell.keep) * (CHECKPOINT_BYTES + 4)),
        notes=[note for note in (*notes, *shape.remarks) if note],
    )


def _too_large(cell: Cell, shape: Shape, device: Device, scale: float) -> Forecast:
    """The forecast of a cell of which not even one sequence fits."""
    least = footprint.memory_bytes(cell, shape.params_total, 1, True, shape.kinds, scale)
    cannot = (
        f"one sequence takes {least / 1e9:.0f} GB, a device has {device.memory_bytes / 1e9:.0f} "
        f"GB, of which a run fills at most {FILL:.0%}"
    )
    return Forecast(name=cell.name, gpus=cell.gpus, fits="does not fit", cannot=cannot)


def _amounts(
    cell: Cell,
    tokens: float | None,
    run: Mapping[str, Any] | None,
    price: float | None,
    power: float | None,
    seconds: float | None,
) -> dict[str, Any]:
    """The known numbers of a forecast, by name, if an update takes so many seconds. ``power`` is
    that of a board in watts; the others are those of ``forecast``."""
    updates = budget_updates(cell, seconds)
    wanted = None if updates is None else updates * cell.update_tokens
    budget_seconds = parse_budget(cell.budget).seconds
    total = budget_seconds or (updates * seconds if updates and seconds else None)
    # A run ends when it has read all its data; it does not use the rest of a budget in hours.
    read = min(1.0, cell.epochs * tokens / wanted) if wanted and tokens else 1.0
    found: dict[str, Any] = {"update_seconds": seconds, "updates": updates}
    if wanted is not None:
        found |= {"tokens": int(wanted * read), "epochs": wanted / tokens if tokens else None}
        found["lasts"] = read
    seconds_used = None if total is None else total * read
    if run:  # it may have ended for another reason
        seconds_used, found["tokens"] = run["train_seconds"], run["tokens"]
    if seconds_used is not None:
        hours = seconds_used * cell.gpus / 3600
        branches = hours * (1 - BRANCH_AT) * sum(cell.keep)
        found |= {"gpu_hours": hours, "branch_gpu_hours": branches}
        found["dollars"] = (hours + branches) * price if price else None
        found["kwh"] = (hours + branches) * power / 1000 if power else None
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


def exhausts(cell: Cell, updates: int | None, tokens: float | None) -> str:
    """A note on a cell whose budget exceeds its data; empty if it does not."""
    passes = (updates or 0) * cell.update_tokens / (tokens or math.inf)
    if passes <= cell.epochs:
        return ""
    return (
        f"its {short(tokens or 0)} tokens end at {cell.epochs / passes:.0%} of the budget "
        f"(out_of_tokens); write epochs: {math.ceil(passes)} to use all of it"
    )


def _notes(cell: Cell, updates: int | None) -> Iterator[str]:
    """Notes on branches that start within the warm-up, and on blocks of text that are too long for
    the updates of a cell, or too short for its context."""
    warmup = cell.optimizer.warmup_updates
    early = [f"{s:g}" for s in cell.keep if updates and BRANCH_AT * s * updates < warmup]
    if early:
        yield f"branch {', '.join(early)} starts within the warm-up of {warmup} updates"
    block, update, context = cell.block_tokens or 0, cell.update_tokens, cell.context
    row = f"block_tokens: {{}} in the row of dataset {cell.data.dataset}"
    shorter = max(context, update // 4)
    if update < 2 * block and shorter < block:
        yield (
            f"an update of {update:,} tokens has less than two blocks of {block:,}, so it is "
            f"neighbouring text; write update_tokens: {2 * block}, or, if no context is longer, "
            f"{row.format(shorter)}"
        )
    if 0 < block < context:
        yield (
            f"a context of {context:,} tokens joins several blocks of {block:,}; write "
            f"{row.format(context)}"
        )
