"""Check what `make demo` promises: its files, 24 finished cells, and loss falling with size."""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

demo = Path(sys.argv[1])
figures = ("learning_curves", "parameter_scaling", "context_scaling")
promised = ["study.json", "report.html", "store/store.duckdb"]
promised += [f"figures/{figure}.{kind}" for figure in figures for kind in ("svg", "png", "csv")]
absent = [name for name in promised if not (demo / name).is_file()]
assert not absent, f"absent: {absent}"
assert [p.name for p in demo.parent.iterdir() if p.is_dir()] == ["demo"], "another study was touched"

statuses = [json.loads(p.read_text())["status"] for p in demo.glob("runs/*/run.json")]
assert statuses == ["done"] * 24, statuses

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
print(f"{demo}: 24 cells done, loss falls with size at every context")
