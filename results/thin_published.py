"""From the full table of published learning curves to what is in git.

    python results/thin_published.py learning_curves.csv.gz results/published

The full table has a row for every mean over 100 updates: `params_millions`, `attention`, `context`,
`update` (the middle of the 100), `hours` and `train_loss`, which is empty where the run logged no
number. `curves.csv` keeps of each run the rows nearest to 64 updates of equal ratio, the first and
the last among them, letter for letter. `runs.csv` says of each run what its full curve holds.
"""

import argparse
import csv
import gzip
import io
from itertools import groupby
from pathlib import Path

import numpy as np

from lmscaling.files import write_text
from lmscaling.store import spikes

POINTS = 64
"""A curve on a logarithmic axis shows no more."""

RUN = ("params_millions", "attention", "context")
CURVES = (*RUN, "update", "hours", "train_loss")
RUNS = (
    *RUN, "last_update", "hours", "points", "points_without_loss", "spikes", "highest_spike",
)  # fmt: skip

Row = dict[str, str]


def thin(rows: list[Row]) -> list[Row]:
    """The rows nearest to updates of equal ratio; fewer than asked where a row is nearest twice."""
    updates = np.array([float(row["update"]) for row in rows])
    wanted = np.geomspace(updates[0], updates[-1], POINTS)
    nearest = np.abs(updates[None] - wanted[:, None]).argmin(axis=1)
    return [rows[i] for i in sorted({0, *nearest.tolist(), len(rows) - 1})]


def summary(rows: list[Row]) -> Row:
    """One line about a whole curve; spikes are those of ``spikes.py``, in means of 100 updates."""
    losses = np.array([float(row["train_loss"]) for row in rows if row["train_loss"]])
    found, heights = spikes.find(losses)
    return {name: rows[-1][name] for name in (*RUN, "hours")} | {
        "last_update": rows[-1]["update"],
        "points": str(len(rows)),
        "points_without_loss": str(len(rows) - len(losses)),
        "spikes": str(len(found)),
        "highest_spike": f"{heights.max():.5f}" if len(found) else "",
    }


def write(path: Path, names: tuple[str, ...], rows: list[Row]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description="Thin the published curves.")
    parser.add_argument("full", type=Path, help="learning_curves.csv.gz")
    parser.add_argument("folder", type=Path, help="gets curves.csv and runs.csv")
    args = parser.parse_args()
    with gzip.open(args.full, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    runs = [list(run) for _, run in groupby(rows, key=lambda row: [row[name] for name in RUN])]
    write(args.folder / "curves.csv", CURVES, [row for run in runs for row in thin(run)])
    write(args.folder / "runs.csv", RUNS, [summary(run) for run in runs])


if __name__ == "__main__":
    main()
