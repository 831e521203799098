"""One sweep of the speed study, point by point, each in a process of its own.

A series goes through growing contexts and ends where memory, patience or the code does: that end is
a record like any other. A point with a record is not measured again.
"""

import signal
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.bench.checks.passed_checks import faults
from lmscaling.bench.isolation import Ended, isolated
from lmscaling.bench.result import Outcome
from lmscaling.config.cell import Cell
from lmscaling.config.sweeps import Point, Sweep
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_json
from lmscaling.formatting import aligned
from lmscaling.records.timing import Measurement
from lmscaling.runtime import environment, gpus, lock

MEASURES = {
    "time_step": "training_step",
    "time_throughput": "training_step",
    "tune_chunk": "training_step",
    "time_decode": "decode",
    "time_layer": "layer",
    "copy_task": "copy_task",
}
"""The module of this package whose ``measure(sweep, point) -> Outcome`` measures a kind."""

SETUP_SECONDS = 120.0
"""For the first process to find its device, which may have to wake up."""

NOT_TRIED = "not_tried"
"""Status, in ``sweep.json``, of a point whose series has ended before it."""


def measure(
    path: Path, kind: str, out: Path, chunks: Path | None, checks: Path | None = None
) -> str:
    """Measure what a sweep lacks in the folder ``out``; a table of all that is there.

    Args:
        path: ``<sweep>.json``.
        kind: What the sweep must be.
        out: Gets ``<point>.json`` for each point and ``sweep.json`` at the end.
        chunks: ``sweep.json`` of a ``tune_chunk``, whose fastest chunks are used.
        checks: Folder of checks; what has not passed them on this device is not measured.

    Raises:
        UserError: There is no such sweep, it is of another kind, another process measures it, or
            the machine has no GPU for it.
    """
    sweep = checked(Sweep, read_json(path, "sweep"), str(path))
    if sweep.kind != kind:
        raise UserError(f"sweep {path} is for {sweep.kind}; run python -m lmscaling {sweep.kind}")
    fastest = read_json(chunks, "record of a sweep")["fastest"] if chunks else {}
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lock.hold(out, f"{out} is being measured"), gpus.reserved(sweep.gpus):
        found = _points(sweep, out, fastest, checks)
    write_json(out / "sweep.json", _summary(sweep, found))
    return table(sweep, found)


def _points(
    sweep: Sweep, out: Path, fastest: dict[str, Any], checks: Path | None
) -> dict[str, dict[str, Any]]:
    """Every point's record by its name; a point that was not tried has none."""
    here = isolated(partial(environment.complete, sweep.gpus), SETUP_SECONDS).value
    load = import_module(f"{__package__}.{MEASURES[sweep.kind]}").measure
    found: dict[str, dict[str, Any]] = {}
    ended: set[tuple[str, int]] = set()
    for point in sweep.points:
        series = (point.series, point.batch if sweep.kind == "time_decode" else 0)
        refused = faults(checks, _way(point), here) if checks else ""
        if series in ended:
            continue
        file = out / f"{point.name}.json"
        if file.is_file():
            found[point.name] = read_json(file, "measurement")
        else:
            if refused:
                wrong = Ended(status="wrong", message=refused, value=None)
                row = _row(sweep, point, wrong, environment.now(), here)
            else:
                row = _measure(sweep, _with_chunk(point, fastest), load, here)
            found[point.name] = {"record": row.record, **asdict(row)}
            write_json(file, found[point.name])
            print(f"{sweep.kind}: {sweep.name} {_line(found[point.name])}", flush=True)
        if found[point.name]["status"] != "done":
            ended.add(series)
    return found


def _with_chunk(point: Point, fastest: dict[str, Any]) -> Point:
    """The point with the chunk that was fastest at its context, or at the longest that fitted."""
    tuned = fastest.get(f"{point.attention}/{point.implementation}", {})
    if point.chunk or not tuned:
        return point
    contexts = [int(c) for c in tuned]
    nearest = max([c for c in contexts if c <= point.context] or [min(contexts)])
    return replace(point, chunk=tuned[str(nearest)])


def _measure(
    sweep: Sweep, point: Point, load: Callable[[Sweep, Point], Outcome], here: dict[str, Any]
) -> Measurement:
    started = environment.now()
    ended = isolated(lambda: asdict(load(sweep, point)), sweep.limit_seconds)
    return _row(sweep, point, ended, started, here)


def _row(
    sweep: Sweep, point: Point, ended: Ended, started: str, here: dict[str, Any]
) -> Measurement:
    outcome = Outcome(**ended.value) if ended.value else None
    return Measurement(
        kind=sweep.kind,
        sweep=sweep.folder.partition("/")[2],
        size=sweep.name,
        attention=point.attention,
        implementation=point.implementation,
        **_shape(sweep),
        params=outcome and outcome.params,
        flops_per_token=outcome and outcome.flops_per_token,
        context=point.context,
        batch=point.batch,
        chunk=(outcome and outcome.chunk) or point.chunk,
        passes=point.passes,
        dtype=outcome.dtype if outcome else "",
        compiled=bool(outcome and outcome.compiled),
        captured=bool(outcome and outcome.captured),
        warm_up=outcome.warm_up if outcome else 0,
        **_spread(outcome.seconds if outcome else []),
        peak_memory_bytes=outcome and outcome.peak_memory_bytes,
        updates=point.updates,
        loss=outcome and outcome.loss,
        accuracy=outcome and outcome.accuracy,
        status=ended.status,
        message=ended.message,
        started=started,
        device=here["device"],
        environment=here,
    )


def _shape(sweep: Sweep) -> dict[str, int | None]:
    if sweep.layer:
        return {"n_layer": None, "n_head": sweep.layer.n_head, "d_head": sweep.layer.d_head}
    assert isinstance(sweep.cell, Cell)
    model = sweep.cell.model
    return {
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "d_head": model.d_model // model.n_head,
    }


def _spread(seconds: list[float]) -> dict[str, Any]:
    names = ("least_seconds", "lower_seconds", "median_seconds", "upper_seconds", "most_seconds")
    quartiles = np.quantile(seconds, (0, 0.25, 0.5, 0.75, 1)).tolist() if seconds else [None] * 5
    return {
        "repeats": len(seconds),
        **dict(zip(names, quartiles, strict=True)),
        "mean_seconds": statistics.fmean(seconds) if seconds else None,
        "sd_seconds": statistics.stdev(seconds) if seconds else None,
    }


def _summary(sweep: Sweep, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """``sweep.json``: the sweep, how every point ended, and the fastest chunks."""
    statuses = {
        p.name: found[p.name]["status"] if p.name in found else NOT_TRIED for p in sweep.points
    }
    return {"sweep": dump(sweep), "statuses": statuses, "fastest": _fastest(sweep, found)}


def _fastest(sweep: Sweep, found: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By implementation and context, the chunk of the fastest point."""
    best: dict[str, dict[str, tuple[float, int]]] = {}
    for point in sweep.points:
        row = found.get(point.name, {})
        if point.chunk and row.get("status") == "done":
            name = f"{point.attention}/{point.implementation}"
            contexts = best.setdefault(name, {})
            chosen = (row["median_seconds"], point.chunk)
            key = str(point.context)
            contexts[key] = min(contexts.get(key, chosen), chosen)
    return {
        name: {context: chunk for context, (_, chunk) in contexts.items()}
        for name, contexts in best.items()
    }


def _way(point: Point) -> str:
    """What is measured as checks name it."""
    return "/".join(filter(None, (point.attention, point.implementation)))


def _line(row: dict[str, Any]) -> str:
    way = "/".join(filter(None, (row["attention"], row["implementation"])))
    said = f"{row['status']}: {row['message']}"
    if row["status"] == "done":
        spread = f"{row['lower_seconds'] * 1e3:.4g} to {row['upper_seconds'] * 1e3:.4g}"
        said = f"{row['median_seconds'] * 1e3:.4g} ms ({spread}, {row['repeats']} repeats)"
    chunk = f" chunk {row['chunk']}" if row["chunk"] else ""
    passes = f" {row['passes']}" if row["passes"] else ""
    return f"{way}{passes}{chunk} at {row['context']:,} x {row['batch']}: {said}"


def table(sweep: Sweep, found: dict[str, dict[str, Any]]) -> str:
    """Median milliseconds; a line a series, a column a context."""
    contexts = sorted({point.context for point in sweep.points})
    lines: dict[str, dict[int, str]] = {}
    for point in sweep.points:
        batch = f" x {point.batch}" if sweep.kind == "time_decode" else ""
        row = found.get(point.name)
        text = "" if row is None else row["status"]
        if row and row["status"] == "done":
            text = f"{row['median_seconds'] * 1e3:.4g}"
        lines.setdefault(point.series + batch, {})[point.context] = text
    head = [f"{sweep.kind} {sweep.name}, ms", *(f"{context:,}" for context in contexts)]
    body = [[name, *(cells.get(c, "") for c in contexts)] for name, cells in lines.items()]
    return "\n".join(aligned([head, *body], left={0}))
