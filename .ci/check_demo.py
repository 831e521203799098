"""Check what `make demo` promises: files, 12 cells, 8 branches, a task, losses, a law and times."""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from lmscaling.fits import points, power_law
from lmscaling.fits.noise import Noise, Place
from lmscaling.store.build import connect

demo = Path(sys.argv[1])
figures = (
    "learning_curves", "parameter_scaling", "context_scaling", "loss_by_position", "step_time",
    "speed_up", "formulations", "chunked_against_all", "chunk_time", "decode_time", "layer_time",
    "memory", "copy_task", "grid_status", "budget_audit", "instability", "context_curves",
    "isotime", "multiplier", "best_context", "surface", "time_law", "throughput",
    "recall_pairs", "recall_state", "task_curves",
)  # fmt: skip
promised = ["study.json", "plan.json", "report.html", "store/store.duckdb"]
promised += [f"figures/{figure}.{kind}" for figure in figures for kind in ("svg", "png", "csv")]
absent = [name for name in promised if not (demo / name).is_file()]
assert not absent, f"absent: {absent}"
folders = {p.name for p in demo.parent.iterdir() if p.is_dir()}
assert folders == {"demo", "measured", "published"}, f"another study was touched: {folders}"

records = [json.loads(p.read_text()) for p in demo.glob("runs/*/run.json")]
statuses = [record["status"] for record in records]
assert statuses == ["done"] * 24, statuses

branches = [record for record in records if record["cell"]["branch"]]
assert sorted(b["updates"] for b in branches) == [60, 60, 120, 120, 180, 180, 240, 240]
for branch in branches:
    rows = map(json.loads, (demo / f"runs/{branch['run']}/log.jsonl").open())
    assert [row["lr"] for row in rows if row["record"] == "update"][-1] == 0, branch["name"]
measured = [r for r in records if r["calibration"]["measured"]]
assert {(r["cell"]["size"], r["cell"]["context"]) for r in measured} == {("100k", 256)}
assert len(measured) == 2 + len(branches)

# The difference that the demo shows: softmax recalls every pair, linear attention of the same width
# does not, with every seed.
with connect(demo / "store") as db:
    recalled = dict(
        db.sql("SELECT attention, list(accuracy) FROM task_scores GROUP BY attention").fetchall()
    )
assert {name: len(values) for name, values in recalled.items()} == {"softmax": 2, "linear": 2}
assert min(recalled["softmax"]) > 0.95 > 0.85 > max(recalled["linear"]), recalled

losses = defaultdict(lambda: defaultdict(list))
with (demo / "figures/parameter_scaling.csv").open() as file:
    for row in csv.DictReader(file):
        cell = row["attention"], int(row["context"])
        losses[cell][float(row["params"])].append(float(row["loss"]))
assert len(losses) == 4, sorted(losses)
for cells, seeds in sorted(losses.items()):
    falling = [sum(values) / len(values) for _, values in sorted(seeds.items())]
    assert len(falling) == (4 if cells[1] == 64 else 1), cells
    assert falling == sorted(falling, reverse=True), f"{cells}: loss rises with size: {falling}"

# The interval from both seeds of a cell contains both. How often intervals hold the truth is shown
# by benchmarks/coverage.py: four runs cannot.
with connect(demo / "store") as db:
    final = db.sql("SELECT attention, size, context, params, seed, loss FROM final").fetchall()
    known = points.read(db.sql(points.QUERY).fetchall())
samples, places = defaultdict(dict), {}
for attention, size, context, params, seed, loss in final:
    samples[attention, size, context][seed] = loss
    places[attention, size, context] = Place(params, context, attention)
noise = Noise.measure(samples, places)
values = {cell: list(of_seed.values()) for cell, of_seed in samples.items()}
twice = {cell: two for cell, two in values.items() if len(two) == 2}
assert sorted(twice) == [("linear", "2k", 64), ("softmax", "2k", 64)], twice
for cell, two in twice.items():
    interval = noise.at(cell).interval(np.mean(two))
    assert all(value in interval for value in two), (cell, two, interval)

laws = [
    law
    for of_cell in power_law.fit_groups(points.groups(known, "size", "context")).values()
    for law in of_cell.values()
    if law.status == "fitted"
]
assert laws, "no law of the loss over updates is fitted"
assert all(law.band(np.median(law.fit.curve.x_n))[0].width > 0 for law in laws), laws

for path in demo.glob("evaluations/*/*.jsonl"):
    run = path.parent.name
    rows = [row for line in path.read_text().splitlines() if "loss" in (row := json.loads(line))]
    logged = (demo / f"runs/{run}/log.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, logged) if row["record"] == "validation"][-1]
    longest = max(row["context"] for row in rows)
    bins = [b for b in rows if b["context"] == longest and b["axis"] == "document"]
    mean = sum(b["tokens"] * b["loss"] for b in bins) / sum(b["tokens"] for b in bins)
    assert abs(mean - last["val_loss"]) < 1e-4, f"{run}: {mean} by position, {last['val_loss']}"
evaluated = len(list(demo.glob("evaluations/*/*.jsonl")))
assert evaluated == 2, evaluated

times = [json.loads(p.read_text()) for p in demo.glob("speed/*/*/*.json") if p.stem != "sweep"]
assert len(times) == 53, len(times)
for point in times:
    assert point["status"] == "done", point
    assert 0 < point["least_seconds"] <= point["median_seconds"] <= point["most_seconds"], point
    assert point["repeats"] >= 3, point
    assert point["warm_up"] >= 1, point
steps = {
    (p["implementation"], p["context"]): p["median_seconds"]
    for p in times
    if p["kind"] == "time_step"
}
# Loose on purpose, for a busy machine: in 4,096 tokens one cost is quadratic, the other linear.
assert steps["chunked", 4096] < steps["flash", 4096], steps
print(f"{demo}: 12 cells and 8 branches done, loss falls with size, 53 times")
for law in laws:
    print(f"fitted: {law.E:.2f} + {law.k:.2f} updates^-{law.gamma:.2f}")
