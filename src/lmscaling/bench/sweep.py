"""One sweep of the speed study, point by point, each in its own process.

A series goes through growing contexts and ends where memory, time or the code fails: that end is a
record like any other. A point with a record is not measured again.
"""

import json
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.bench.isolation import Ended, Refused, isolated
from lmscaling.config.speed import PEERS, Sweep
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record, write_text
from lmscaling.records.checks import findings
from lmscaling.records.timing import BUSY, Measurement, Outcome, Point
from lmscaling.runtime import environment, gpus, lock
from lmscaling.types import dump

SETUP_SECONDS = 120.0
"""For the first process to find its device, which may have to wake up."""

NOT_TRIED = "not_tried"
"""Status, in ``sweep.json``, of a point whose series has ended before it."""

Records = dict[str, dict[str, Any]]
"""The records of a sweep by the name of their point."""


def measure(path: Path, out: Path, checks: Path | None = None) -> str:
    """Measure what a sweep lacks in the folder ``out``; how much of it is done.

    Args:
        path: ``<sweep>.json``.
        out: Gets ``<point>.json`` for each point and ``sweep.json`` at the end.
        checks: Findings of ``check kernels``; what is wrong is not measured.

    Raises:
        UserError: There is no such sweep, another process measures it, the kernels were not
            checked, or the machine has no GPU for it.
    """
    sweep = checked(Sweep, read_json(path, "sweep"), str(path))
    faults = {found.way: found.message for found in findings(checks)} if checks else {}
    if checks and not faults:
        raise UserError(
            f"{checks} says of no kernel whether it is right; delete it, and snakemake "
            "checks the kernels again"
        )
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lock.hold(out, f"{out} is being measured"), gpus.reserved(sweep.gpus):
        records, refused = _measure_points(sweep, out, faults)
        statuses = {  # a point that was refused has not ended
            point.name: records[point.name]["status"] if point.name in records else NOT_TRIED
            for point in sweep.points
            if point.name in records or point.series not in refused
        }
        text = json.dumps({"sweep": dump(sweep), "statuses": statuses}, indent=2) + "\n"
        path = out / "sweep.json"
        if not path.is_file() or path.read_text() != text:  # another job may have ended the sweep
            write_text(path, text)
    done = sum(record["status"] == "done" for record in records.values())
    return f"{sweep.kind}: {sweep.name} has {done} of {len(sweep.points)} times, in {out}"


def _measure_points(
    sweep: Sweep, out: Path, faults: dict[str, str]
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
    over: set[tuple[str, int]] = set()
    for point in sweep.points:
        series, file = (point.series, batch_of_series(sweep, point)), out / f"{point.name}.json"
        if series in over:
            continue
        record = _measured(file)
        if record is None:
            started, call = environment.now(), partial(outcome, sweep, point)
            try:
                if fault := faults.get(registry.checked_by(point.way)):
                    raise Refused(f"the kernel {point.way} is wrong: {fault}")
                ended = isolated(call, sweep.timeout_seconds)
            except Refused as error:  # it has no record, so the next snakemake tries it again
                refused[point.series] = str(error)
                over.add(series)
                print(f"{sweep.kind}: {sweep.name} without {point.way}: {error}", flush=True)
                continue
            record = record_of(sweep, point, ended, started, here)
            write_record(file, record)
            print(f"{sweep.kind}: {sweep.name} {line_of(record)}", flush=True)
        records[point.name] = record
        if record["status"] != "done":
            over.add(series)
    if refused and not records:
        raise UserError("; ".join(refused.values()))
    return records, refused


def _measured(path: Path) -> dict[str, Any] | None:
    """The record of a point; None if there is none, or if it is damaged."""
    try:
        return read_json(path, "measurement") if path.is_file() else None
    except UserError as error:
        print(f"{error}; it is measured again", flush=True)
        return None


def batch_of_series(sweep: Sweep, point: Point) -> int:
    """The batch of a point where one context has several batches, each a series; else 0."""
    contexts = {(other.series, other.context) for other in sweep.points}
    return point.batch if len(contexts) < len(sweep.points) else 0


def outcome(sweep: Sweep, point: Point) -> dict[str, Any]:
    """What this process measures of a point, as JSON values."""
    from lmscaling.bench import ceiling, decode, layer, training_step  # these load torch

    module = {
        "time_ceiling": ceiling,
        "time_decode": decode,
        "time_layer": layer,
        "time_step": training_step,
    }[sweep.kind]
    return asdict(module.measure(sweep, point))


def record_of(
    sweep: Sweep, point: Point, ended: Ended, started: str, here: dict[str, Any]
) -> dict[str, Any]:
    """The record of a point whose measurement has ended; ``here`` is ``environment.complete``."""
    made = Measurement(
        **ended.value or asdict(Outcome(**asdict(point))),
        n_layer=sweep.cell and sweep.cell.model.n_layer,
        n_head=sweep.heads and sweep.heads.n_head,
        d_head=sweep.heads and sweep.heads.d_head,
        kind=sweep.kind,
        sweep=sweep.folder.partition("/")[2],
        size=sweep.name,
        status=ended.status,
        message=ended.message,
        started=started,
        device=here["device"],
        environment=here,
    )
    return {"record": made.record, **asdict(made)}


def line_of(row: dict[str, Any]) -> str:
    """A measurement's record in a line."""
    way = "/".join(filter(None, (row["attention"], row["implementation"])))
    result = f"{row['status']}: {row['message']}"
    if row["status"] == "done":
        spread = f"{row['lower_seconds'] * 1e3:.4g} to {row['upper_seconds'] * 1e3:.4g}"
        result = f"{row['median_seconds'] * 1e3:.4g} ms ({spread}, {row['repeats']} repeats)"
        if (row.get("wall_over_cpu") or 1) >= BUSY:
            result += "; other programs kept the core busy, so the report does not quote it"
    chunk = f" chunk {row['chunk']}" if row["chunk"] else ""
    passes = f" {row['passes']}" if row["passes"] else ""
    return f"{way}{passes}{chunk} at {row['context']:,} x {row['batch']}: {result}"
