"""Train a cell on two CPU ranks; run by tests: cell, calibration, manifest, results.

Each rank writes the learning rates that it used to ``rates-<rank>.txt`` in the results.
"""

import sys
from pathlib import Path

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.files import read_json
from lmscaling.train import run
from lmscaling.train.module import Training

if __name__ == "__main__":
    cell, calibration, manifest, results = map(Path, sys.argv[1:])
    name = checked(Cell, read_json(cell, "cell"), "cell").run
    training_step = Training.training_step

    def write_rate(self, slab, index):
        outputs = training_step(self, slab, index)
        with (results / f"rates-{self.trainer.global_rank}.txt").open("a") as file:
            file.write(f"{self.rate!r}\n")
        return outputs

    Training.training_step = write_rate
    run.ranks = lambda cell: 2
    run.train(
        cell,
        manifest,
        results / "scratch" / name,
        results / "runs" / name / "run.json",
        calibration,
    )
