"""What the store of a large study costs: CPU seconds and memory by runs and by updates of each.

All runs are finished, and those of a seed are compared. The times of this machine are also given
for the reference machine (``speed_of_python.py``).

    python benchmarks/collecting.py 72x1000 640x20000 6400x1000 64x312500
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from speed_of_python import slowness

from lmscaling.config import study_file
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.records import run as records

ROOT = Path(__file__).parents[1]
CONTEXTS = 8
SIZES = 4
SEED_RUNS = 2 * CONTEXTS * SIZES
"""Runs of one seed: two attentions, four sizes, eight contexts."""

DISTINCT = 8
"""Logs that differ; the other runs have hard links to them, for the disk is not measured."""

WINDOW = 200
"""Updates from one validation to the next."""


class Built(NamedTuple):
    """The cost of one build."""

    seconds: float
    """CPU seconds, user and system."""
    megabytes: int
    """Largest resident memory."""


def study(folder: Path, runs: int, updates: int) -> Path:
    """A study with so many finished runs of so many updates."""
    size = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-3}
    values = {
        "study": "collecting",
        "datasets": {"lines": {"kind": "jsonl", "train": ["a"], "validation": ["b"]}},
        "tokenizers": {"bytes": {"encoding": "bytes", "vocab_size": 257}},
        "sizes": {f"s{i}": size for i in range(SIZES)},
        "dataset": "lines",
        "tokenizer": "bytes",
        "axes": {
            "attention": ["softmax", "linear"],
            "size": [f"s{i}" for i in range(SIZES)],
            "context": [16 * 2**i for i in range(CONTEXTS)],
            "seed": list(range(-(-runs // SEED_RUNS))),
        },
        "skip": [],
        "update_tokens": 2048,
        "budget": f"{updates} updates",
        "gpus": 0,
        "optimizer": {"warmup_updates": 0},
        "protocol": {"all": 1},
        "validation": {"tokens": 2048, "every_tokens": 2048},
    }
    text = json.dumps({"command": "", "study": values})
    (folder / "study.json").write_text(text)
    cells = _grid(folder).cells
    logs = [folder / f"{i}.jsonl" for i in range(min(DISTINCT, runs))]
    for seed, log in enumerate(logs):
        _write_log(log, updates, seed)
    for i, cell in enumerate(list(cells.values())[:runs]):
        _write_run(folder / "runs" / cell.run, cell, logs[i % len(logs)], updates)
    return folder


def _grid(folder: Path) -> Grid:
    return study_file.read_record(folder / "study.json").grid


def _write_log(path: Path, updates: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    loss = 3 + 7 * np.exp(-np.arange(updates) / 15) + rng.normal(0, 0.02, updates)
    loss[rng.random(updates) < 1e-4] += 1
    with path.open("wb") as file:
        file.write(records.line(records.Header(
            attempt=1, start_update=0, run="r", cell={}, started="2026-01-01T00:00:00",
            environment={}, calibration={}, params=100, params_total=200, flops_per_token=600.0,
        )))  # fmt: skip
        for n in range(1, updates + 1):
            common: dict[str, Any] = {
                "attempt": 1, "update": n, "epoch": 1, "tokens": 2048 * n,
                "train_seconds": 1.2345678 * n, "lr": 1e-3, "budget_fraction": n / updates,
            }  # fmt: skip
            file.write(records.line(records.Update(
                **common, train_loss=float(loss[n - 1]), grad_norm=0.3 + 1e-7 * n,
                tokens_per_second=4e5 + n / 7, mfu=0.4123456, peak_memory_bytes=71234567890,
            )))  # fmt: skip
            if n % WINDOW == 0:
                file.write(records.line(records.Validation(**common, val_loss=3.0, val_tokens=9)))
        file.write(records.line(records.End(
            attempt=1, update=updates, status="done", message="", ended="2026-01-02T00:00:00"
        )))  # fmt: skip


def _write_run(folder: Path, cell: Cell, log: Path, updates: int) -> None:
    folder.mkdir(parents=True)
    os.link(log, folder / "log.jsonl")
    values = {
        "run": cell.run, "name": cell.name, "cell": {}, "status": "done", "message": "",
        "attempts": 1, "updates": updates, "tokens": 2048 * updates, "train_seconds": 2.0,
        "attempt_seconds": 2.5, "lost_seconds": 0.0, "gpu_hours": 0.0, "params": 100,
        "params_total": 200, "flops_per_token": 600.0, "data": {}, "calibration": {},
        "environment": {}, "started": "a", "ended": "b",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(values))


def build(folder: Path) -> Built:
    """The store of a study, built by a process of its own."""
    words = ["-m", "lmscaling", "build-store", str(folder)]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, folder
    return Built(used.ru_utime + used.ru_stime, used.ru_maxrss // 1000)


def main() -> None:
    print("| runs | updates of each | CPU s | CPU s, reference | MB |")
    print("| --- | --- | --- | --- | --- |")
    for words in sys.argv[1:] or ["72x1000", "640x20000", "6400x1000", "64x312500"]:
        runs, updates = map(int, words.split("x"))
        with tempfile.TemporaryDirectory() as place:
            folder = study(Path(place), runs, updates)
            before = slowness()
            built = build(folder)
            slow = (before + slowness()) / 2
        print(
            f"| {runs:,} | {updates:,} | {built.seconds:.1f} | {built.seconds / slow:.1f} "
            f"| {built.megabytes} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
