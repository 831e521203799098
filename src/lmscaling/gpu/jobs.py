"""What is measured, in the order of what it tells.

A job is a process that goes from short contexts to long ones, until a task fails.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lmscaling import registry
from lmscaling.bench import layer, sweep
from lmscaling.bench.checks import record, timed
from lmscaling.config import devices, sweeps
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.speed import Sweep
from lmscaling.files import write_record
from lmscaling.gpu import PARTS
from lmscaling.model import sizing
from lmscaling.plan import footprint
from lmscaling.records.timing import Point
from lmscaling.types import dump

CHECK_SECONDS = 150.0
"""Time limit for the checks of a kernel; most of it is compiling."""

FULL = 0.97
"""Share of the memory that a step may need by our own estimate."""

SAVE_SECONDS = 20.0
"""Time for a run to save itself before a call ends."""

Lines = dict[str, dict[str, Any]]
"""Lines of ``records.jsonl`` by their key."""


class Task(NamedTuple):
    """One measurement: a line of ``records.jsonl``."""

    key: str
    call: Callable[[], Any]
    """Its value is JSON; None if another call must go on."""


class Job(NamedTuple):
    """Tasks of one process."""

    part: str
    name: str
    tasks: list[Task]
    limit_seconds: float = math.inf
    """Of each task."""
    size: str = ""
    """Row under ``sizes:``, if it is of one."""


def jobs(grid: Grid, out: Path, device: str, lines: Lines, end: float) -> Iterator[Job]:
    """The jobs of a study in order.

    Args:
        grid: The study.
        out: Folder of tokens and runs.
        device: Its name.
        lines: What is known when training begins.
        end: When a run must have saved itself, as ``time.monotonic`` counts.
    """
    planned = list(sweeps.expand(grid.study).values())
    models = timed.models(planned)
    ways = {
        registry.checked_by(p.way): None for one in planned for p in one.points if p.implementation
    }
    names = {"right": [way for way in ways if "peer/" not in way], "peer": []}
    names["right"] += [timed.LOSS] if grid.study.gpus else []  # of a CPU it is plain PyTorch
    names["peer"] += [way for way in ways if way.removeprefix("peer/") in layer.peers()]
    for part in PARTS:
        for name in names.get(part, ()) if models else ():
            call = partial(_checked, name, models, device)
            yield Job(part, name, [Task(f"right/{name}", call)], CHECK_SECONDS)
        kind = "time_layer" if names["peer"] and part == "peer" else f"time_{part}"
        for one in planned:
            if one.kind == kind:
                yield from _series(one, part, device)
        if part == "train":
            yield Job("train", "tokens", [Task("train/tokens", partial(_tokens, grid, out))])
            for cell in sorted(grid.cells.values(), key=lambda x: (x.model.d_model, x.context)):
                call = partial(_train, cell, grid, out, planned, lines, end)
                yield Job(part, cell.name, [Task(f"train/{cell.run}", call)], size=cell.size)


def _series(one: Sweep, part: str, device: str) -> Iterator[Job]:
    """A job for each implementation of a sweep, at all contexts."""
    shapes = {(point.context, point.batch): point for point in one.points}
    fitting = {
        shape
        for shape, point in shapes.items()
        if part != "step" or fits(one.cell_of(point), point.batch, device)
    }
    series: dict[tuple[str, int | None, int], list[Task]] = {}
    for point in one.points:
        if (point.attention == "peer") == (part == "peer"):
            key = point.way, point.chunk, sweep.batch_of_series(one, point)
            tasks = series.setdefault(key, [])
            if (point.context, point.batch) in fitting:
                tasks.append(Task(key_of(one, point), partial(_timed, one, point)))
    for (way, *_), tasks in series.items():
        yield Job(
            part, f"{one.name} {way}", tasks, one.timeout_seconds, one.name if one.cell else ""
        )


def key_of(one: Sweep, point: Point) -> str:
    """The key of a point of a sweep."""
    return f"{one.folder}/{point.name}"


def fits(cell: Cell, batch: int, device: str) -> bool:
    """Whether a step fits into the memory of a device by our own estimate, if that is known."""
    if not (known := devices.find(device)):
        return True
    needed = footprint.memory_bytes(cell, sizing.shape(cell).params_total, batch, False)
    return needed <= FULL * known.memory_bytes


def _checked(name: str, models: list[Sweep], device: str) -> dict[str, Any]:
    key = {"part": name, "device": device}
    return asdict(record.examine(key, name, partial(timed.fault, name, models)))


def fault_of(point: Point, lines: Lines) -> str:
    """What is wrong with a point's kernel, or how its check ended; empty if nothing is known."""
    line = lines.get(f"right/{registry.checked_by(point.way)}")
    return line["message"] or line["value"]["message"] if line else ""


def _timed(one: Sweep, point: Point) -> dict[str, Any]:
    torch.compiler.reset()  # graphs of other shapes would count against the limit of compilations
    gc.collect()
    if one.gpus:
        torch.cuda.empty_cache()
    return sweep.outcome(one, point)


def _tokens(grid: Grid, out: Path) -> dict[str, int]:
    from lmscaling.data import shards
    from lmscaling.data.tokenize import tokenize_all

    folder, counts = out / "tokens" / grid.tokens, {}
    for split in ("train", "validation"):
        counts[split] = grid.n_shards(grid.tokens, split)
        missing = {
            i for i in range(counts[split]) if not (folder / f"{split}-{i:05d}.json").exists()
        }
        tokenize_all(grid.corpora[grid.tokens], split, missing, folder, missing.__contains__)
    shards.write_manifest(folder / "manifest.json", counts)
    return counts


def _train(
    cell: Cell, grid: Grid, out: Path, planned: list[Sweep], lines: Lines, end: float
) -> dict[str, Any] | None:
    """Train a cell as the workflow does, with the implementation whose step was the fastest."""
    from lmscaling.train import run, settings

    calibration = out / "calibrations" / f"{cell.run}.json"
    if not calibration.is_file():
        wanted = "time_step", cell.size, cell.attention, cell.context
        times = [
            (line["value"]["median_seconds"], point.implementation)
            for one in planned
            for point in one.points
            if (one.kind, one.name, point.attention, point.context) == wanted
            and not fault_of(point, lines)
            and (line := lines.get(key_of(one, point), {})).get("status") == "done"
        ]
        choice = {"implementation": min(times)[1]} if times else {}
        write_record(calibration, dump(replace(settings.guessed(cell), choice=choice)))
    try:
        made = run.train(
            out / "cells" / f"{cell.run}.json", out / "tokens" / grid.tokens / "manifest.json",
            out / "scratch" / cell.run, out / "runs" / cell.run / "run.json", calibration,
            stop_after=end - time.monotonic() - SAVE_SECONDS,
        )  # fmt: skip
    except SystemExit:  # saved
        return None
    assert made
    return {key: asdict(made)[key] for key in ("status", "updates", "last_val_loss")}
