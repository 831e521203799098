"""Points of a speed study for the tests of its figures: as measured, and as published."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb

from lmscaling.records.timing import Measurement

DEVICE, OTHER_DEVICE = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
VERSIONS = {"lmscaling": "0.1.0", "torch": "2.11.0"}
SETUP = f"{DEVICE}, Python 3.12.1, lmscaling 0.1.0, torch 2.11.0"
PUBLISHED = "one NVIDIA H100 (Buckman and Gelada 2024)"
PARAMS = {"s": 1000, "m": 3000}
HERE = {"device": DEVICE, "python": "3.12.1", "versions": VERSIONS, "peak_flops": 989e12}


def point(
    kind: str, method: str, context: int, seconds: float | None, device: str = DEVICE, **values: Any
) -> Measurement:
    """A point whose quartiles are a tenth away; without seconds out of memory, or its status."""
    attention, _, implementation = method.partition(" ")
    size, is_done = values.pop("size", "s"), seconds is not None
    spread = {"least": 0.8, "lower": 0.9, "median": 1.0, "upper": 1.1, "most": 1.3}
    numbers: dict[str, Any] = {
        f"{name}_seconds": None if seconds is None else seconds * factor
        for name, factor in {**spread, "mean": 1.02, "sd": 0.1}.items()
    }
    made: dict[str, Any] = {
        "kind": kind, "sweep": f"{size}-12345678", "size": size, "attention": attention,
        "implementation": implementation, "n_layer": 2, "n_head": 2, "d_head": 8,
        "params": PARAMS.get(size, 500), "context": context, "batch": 1, "chunk": None,
        "passes": "", "dtype": "bfloat16", "compiled": True, "captured": False,
        "warm_up": 3, "repeats": 50 * is_done,
        "peak_memory_bytes": 10**8 + 10**6 * context if is_done else None,
        "status": "done" if is_done else "oom", "message": "", "started": "2026-01-01",
        "device": device, "environment": HERE | {"device": device},
    }  # fmt: skip
    return Measurement(**made | numbers | values)


def write(study: Path, *points: Measurement) -> None:
    """Each point into a file of its own, as the programs that measure do."""
    for made in points:
        text = json.dumps({"record": made.record, **asdict(made)})
        folder = study / "speed" / made.kind / made.sweep
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        (folder / f"{name}.json").write_text(text)


def publish(study: Path, *points: Measurement) -> None:
    """Add points to the export as published ones: a median, and nothing of how it came about."""
    path = study / "store" / "measurements.parquet"
    unknown = "least_seconds lower_seconds upper_seconds most_seconds mean_seconds sd_seconds"
    unknown += " peak_memory_bytes"
    with duckdb.connect() as db:
        db.execute("CREATE TABLE measurements AS SELECT * FROM read_parquet(?)", [str(path)])
        columns = [name for (name, *_) in db.sql("DESCRIBE measurements").fetchall()]
        marks = ", ".join("?" for _ in columns)
        for made in points:
            row = asdict(made) | dict.fromkeys([*unknown.split(), "repeats", "peak_flops"])
            row |= {"source": "published", "setup": PUBLISHED, "sweep": "p"}
            db.execute(f"INSERT INTO measurements VALUES ({marks})", [row.get(c) for c in columns])
        db.table("measurements").order("ALL").write_parquet(str(path))


def tiny() -> list[Measurement]:
    """Some of every kind, with an end out of memory, one too slow, and another device. Steps have
    4,096 tokens, on the other device one sequence."""
    made = []
    for size, factor in (("s", 1.0), ("m", 3.0)):
        for context in (1024, 2048, 4096):
            flash, chunked = factor * context**2 / 1e8, factor * context / 1e5
            n, is_slow = 4096 // context, context == 4096
            full = {"size": size, "batch": n, "flops_per_token": 6.0 * PARAMS[size]}
            slow = {"status": "slow"} if is_slow else {}
            state = None if is_slow else n * factor * context / 1e3
            made += [
                point("time_step", "softmax flash", context, n * flash, **full),
                point("time_step", "linear state", context, state, **full, **slow),
                point("time_decode", "softmax", context, flash / 100, size=size),
                point("time_decode", "linear", context, 1e-3, size=size),
            ]
            for chunk, cost in ((16, 1.5), (64, 1.0), (256, 1.2)):
                seconds, tuned = n * chunked * cost, {**full, "chunk": chunk}
                made.append(point("time_step", "linear chunked", context, seconds, **tuned))
        for context, seconds in ((1024, 0.4 * factor), (2048, None)):
            full = {"size": size, "batch": 4096 // context}
            made.append(point("time_step", "softmax no_flash", context, seconds, **full))
    for context in (128, 256):
        learned = {"size": "copy", "batch": 512 // context}
        for name in ("softmax", "linear"):
            made.append(point("time_step", name, context, 0.01, **learned))
        for size, batch in (("article", 4), ("saturated", 1024 // context)):
            layer = {"size": size, "batch": batch, "passes": "forward", "n_layer": None}
            made.append(point("time_layer", "softmax flash", context, context / 1e5, **layer))
            made.append(point("time_layer", "linear chunked", context, 1e-3, **layer))
    for c in (1024, 2048):
        made.append(point("time_step", "softmax flash", c, c**2 / 2e8, OTHER_DEVICE))
        made.append(point("time_step", "linear chunked", c, c / 3e5, OTHER_DEVICE))
    return made
