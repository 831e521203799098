"""Train a cell on two CPU ranks; run by test_train.py: cell, manifest, folder of the result."""

import sys
from pathlib import Path

from lmscaling.train import module, run

if __name__ == "__main__":
    cell, manifest, out = map(Path, sys.argv[1:])
    options = run.trainer_options

    def on_two_ranks(made):
        return options(made) | {"devices": 2, "strategy": "ddp"}

    module.MICRO_BATCH_TOKENS = 16  # one sequence: two micro-batches a rank
    run.trainer_options = on_two_ranks
    run.train(cell, manifest, out / "scratch-two", out / "two" / "run.json")
