"""One sweep of the speed study, point by point, each in its own process.

A series goes through growing contexts and ends where memory, time or the code fails: that end is a
record like any other. A point with a record is not measured again.
"""

import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.bench.isolation import Ended, Refused, isolated
from lmscaling.config.kinds import MODULES
from lmscaling.config.speed import PEERS, Sweep
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_json, write_text
from lmscaling.formatting import aligned
from lmscaling.records.timing import Measurement, Outcome, Point
from lmscaling.runtime import environment, gpus, lock

SETUP_SECONDS = 120.0
"""For the first process to find its device, which may have to wake up."""

NOT_TRIED = "not_tried"
"""Status, in ``sweep.json``, of a point whose series has ended before it."""

Records = dict[str, dict[str, Any]]
"""The records of a sweep by the name of their point."""


def measure(
    path: Path, kind: str, out: Path, chunks: Path | None, checks: Path | None = None
) -> str:
    """Measure what a sweep lacks in the folder ``out``; a table of all its times.

    Args:
        path: ``<sweep>.json``.
        kind: What the sweep must be.
        out: Gets ``<point>.json`` for each point and ``sweep.json`` at the end.
        chunks: ``sweep.json`` of a ``tune_chunk``, whose fastest chunks are used.
        checks: What is wrong with each kernel, see ``checks/timed.py``; it is not measured.

    Raises:
        UserError: There is no such sweep, it is of another kind, another process measures it, or
            the machine has no GPU for it.
    """
    sweep = checked(Sweep, read_json(path, "sweep"), str(path))
    if sweep.kind != kind:
        raise UserError(f"sweep {path} is for {sweep.kind}; run lmscaling {sweep.kind}")
    fastest = read_json(chunks, "record of a sweep")["fastest"] if chunks else {}
    faults = read_json(checks, "check of kernels") if checks else {}
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lock.hold(out, f"{out} is being measured"), gpus.reserved(sweep.gpus):
        records, refused = _measure_points(sweep, out, fastest, faults)
        text = json.dumps(_summary(sweep, records, refused), indent=2) + "\n"
        path = out / "sweep.json"
        if not path.is_file() or path.read_text() != text:  # another job may have ended the sweep
            write_text(path, text)
    return table(sweep, records)


def _measure_points(
    sweep: Sweep, out: Path, fastest: dict[str, Any], faults: dict[str, str]
) -> tuple[Records, dict[str, str]]:
    """Every point's record by its name, and why series were refused; a point that was not tried
    has no record.

    Raises:
        UserError: Nothing could be measured.
    """
    here = isolated(partial(environment.complete, sweep.gpus), SETUP_SECONDS).value
    if any(point.attention == "peer" for point in sweep.points):
        here["versions"] |= environment.versions_if_installed(tuple(PEERS.values()))
    records: Records = {}
    refused: dict[str, str] = {}
    ended: set[tuple[str, int]] = set()
    for point in sweep.points:
        series = point.series, batch_of_series(sweep, point)
        if series in ended:
            continue
        file = out / f"{point.name}.json"
        record = _measured(file)
        if record is None:
            try:
                if fault := faults.get(registry.checked_by(point.way)):
                    raise Refused(f"the kernel {point.way} is wrong: {fault}")
                row = _measure_point(sweep, _with_chunk(point, fastest), here)
            except Refused as error:  # it has no record, so the next snakemake tries it again
                refused[point.series] = str(error)
                ended.add(series)
                print(f"{sweep.kind}: {sweep.name} without {point.way}: {error}", flush=True)
                continue
            record = {"record": row.record, **asdict(row)}
            write_json(file, record)
            print(f"{sweep.kind}: {sweep.name} {line_of(record)}", flush=True)
        records[point.name] = record
        if record["status"] != "done":
            ended.add(series)
    if refused and not records:
        raise UserError("; ".join(refused.values()))
    return records, refused


def _measured(path: Path) -> dict[str, Any] | None:
    """The record of a point; None if there is none, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        return read_json(path, "measurement")
    except UserError as error:
        print(f"{error}; it is measured again", flush=True)
        return None


def batch_of_series(sweep: Sweep, point: Point) -> int:
    """The batch of a point where one context has several batches, each a series; else 0."""
    contexts = {(other.series, other.context) for other in sweep.points}
    return point.batch if len(contexts) < len(sweep.points) else 0


def _with_chunk(point: Point, fastest: dict[str, Any]) -> Point:
    """The point with the chunk that was fastest at its context, or at the longest that fitted."""
    tuned = fastest.get(f"{point.attention}/{point.implementation}", {})
    if point.chunk or not tuned:
        return point
    contexts = [int(c) for c in tuned]
    nearest = max([c for c in contexts if c <= point.context] or [min(contexts)])
    return replace(point, chunk=tuned[str(nearest)])


def _measure_point(sweep: Sweep, point: Point, here: dict[str, Any]) -> Measurement:
    started = environment.now()
    ended = isolated(partial(outcome, sweep, point), sweep.timeout_seconds)
    return record_of(sweep, point, ended, started, here)


def outcome(sweep: Sweep, point: Point) -> dict[str, Any]:
    """What this process measures of a point, as JSON values."""
    return asdict(MODULES[sweep.kind].measure(sweep, point))


def record_of(
    sweep: Sweep, point: Point, ended: Ended, started: str, here: dict[str, Any]
) -> Measurement:
    """The record of a point whose measurement has ended; ``here`` is ``environment.complete``."""
    return Measurement(
        **ended.value or asdict(Outcome(**asdict(point))),
        **_shape(sweep),
        kind=sweep.kind,
        sweep=sweep.folder.partition("/")[2],
        size=sweep.name,
        status=ended.status,
        message=ended.message,
        started=started,
        device=here["device"],
        environment=here,
    )


def _shape(sweep: Sweep) -> dict[str, Any]:
    """Blocks and heads of a sweep's model or layer; null where there is neither."""
    if sweep.cell:
        model = sweep.cell.model
        d_head = model.d_model // model.n_head
        return {"n_layer": model.n_layer, "n_head": model.n_head, "d_head": d_head}
    heads = dump(sweep.layer) if sweep.layer else {"n_head": None, "d_head": None}
    return {"n_layer": None, **heads}


def _summary(sweep: Sweep, records: Records, refused: Iterable[str]) -> dict[str, Any]:
    """``sweep.json``: the sweep, how every point ended, and the fastest chunks. A point that was
    refused has not ended."""
    statuses = {
        p.name: records[p.name]["status"] if p.name in records else NOT_TRIED
        for p in sweep.points
        if p.name in records or p.series not in refused
    }
    return {"sweep": dump(sweep), "statuses": statuses, "fastest": _fastest(sweep, records)}


def _fastest(sweep: Sweep, records: Records) -> dict[str, dict[str, int]]:
    """By implementation and context, the chunk of the fastest point."""
    best: dict[str, dict[str, tuple[float, int]]] = {}
    for point in sweep.points:
        row = records.get(point.name, {})
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


def line_of(row: dict[str, Any]) -> str:
    """A measurement's record in a line."""
    way = "/".join(filter(None, (row["attention"], row["implementation"])))
    result = f"{row['status']}: {row['message']}"
    if row["status"] == "done":
        spread = f"{row['lower_seconds'] * 1e3:.4g} to {row['upper_seconds'] * 1e3:.4g}"
        result = f"{row['median_seconds'] * 1e3:.4g} ms ({spread}, {row['repeats']} repeats)"
    chunk = f" chunk {row['chunk']}" if row["chunk"] else ""
    passes = f" {row['passes']}" if row["passes"] else ""
    return f"{way}{passes}{chunk} at {row['context']:,} x {row['batch']}: {result}"


def table(sweep: Sweep, records: Records) -> str:
    """Median milliseconds: one line per series, one column per context."""
    contexts = sorted({point.context for point in sweep.points})
    lines: dict[str, dict[int, str]] = {}
    for point in sweep.points:
        batch = f" x {b}" if (b := batch_of_series(sweep, point)) else ""
        row = records.get(point.name)
        text = "" if row is None else row["status"]
        if row and row["status"] == "done":
            text = f"{row['median_seconds'] * 1e3:.4g}"
        lines.setdefault(point.series + batch, {})[point.context] = text
    head = [f"{sweep.kind} {sweep.name}, ms", *(f"{context:,}" for context in contexts)]
    body = [[name, *(cells.get(c, "") for c in contexts)] for name, cells in lines.items()]
    return "\n".join(aligned([head, *body], left={0}))
