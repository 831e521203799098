"""Train a cell on two CPU ranks; run by tests: cell, calibration, manifest, results."""

import sys
from pathlib import Path

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.files import read_json
from lmscaling.train import run

if __name__ == "__main__":
    cell, calibration, manifest, results = map(Path, sys.argv[1:])
    name = checked(Cell, read_json(cell, "cell"), "cell").run
    run.ranks = lambda cell: 2
    run.train(
        cell,
        manifest,
        results / "scratch" / name,
        results / "runs" / name / "run.json",
        calibration,
    )
