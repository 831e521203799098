"""Check what `make demo` promises: its files, 24 cells, 6 branches, and loss falling with size."""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

demo = Path(sys.argv[1])
figures = ("learning_curves", "parameter_scaling", "context_scaling", "loss_by_position")
promised = ["study.json", "plan.json", "report.html", "store/store.duckdb"]
promised += [f"figures/{figure}.{kind}" for figure in figures for kind in ("svg", "png", "csv")]
absent = [name for name in promised if not (demo / name).is_file()]
assert not absent, f"absent: {absent}"
assert [p.name for p in demo.parent.iterdir() if p.is_dir()] == ["demo"], (
    "another study was touched"
)

records = [json.loads(p.read_text()) for p in demo.glob("runs/*/run.json")]
statuses = [record["status"] for record in records]
assert statuses == ["done"] * 30, statuses

branches = [record for record in records if record["cell"]["branch"]]
assert sorted(b["updates"] for b in branches) == [100, 100, 200, 200, 400, 400]
for branch in branches:
    rows = map(json.loads, (demo / f"runs/{branch['run']}/log.jsonl").open())
    assert [row["lr"] for row in rows if row["record"] == "update"][-1] == 0, branch["name"]
measured = [r for r in records if r["calibration"]["measured"]]
assert {(r["cell"]["size"], r["cell"]["context"]) for r in measured} == {("100k", 256)}
assert len(measured) == 2 + len(branches)

losses = defaultdict(list)
with (demo / "figures/parameter_scaling.csv").open() as file:
    for row in csv.DictReader(file):
        point = (float(row["params"]), float(row["val_loss"]))
        losses[row["attention"], int(row["context"])].append(point)
assert len(losses) == 6, sorted(losses)
for cells, points in sorted(losses.items()):
    falling = [loss for _, loss in sorted(points)]
    assert len(falling) == 4, cells
    assert falling == sorted(falling, reverse=True), f"{cells}: loss rises with size: {falling}"
for path in demo.glob("evaluations/*/*.jsonl"):
    run = path.parent.name
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    logged = (demo / f"runs/{run}/log.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, logged) if row["record"] == "validation"][-1]
    longest = max(row["context"] for row in rows)
    bins = [b for b in rows if b["context"] == longest and b["axis"] == "document"]
    mean = sum(b["tokens"] * b["loss"] for b in bins) / sum(b["tokens"] for b in bins)
    assert abs(mean - last["val_loss"]) < 1e-4, f"{run}: {mean} by position, {last['val_loss']}"
evaluated = len(list(demo.glob("evaluations/*/*.jsonl")))
assert evaluated == 6, evaluated
print(f"{demo}: 24 cells and 6 branches done, loss falls with size at every context")
