"""Train a cell on CPU ranks; run by tests: cell, calibration, manifest, results, ranks, injection.

Each rank writes the learning rates that it used to ``rates-<rank>.txt`` in the results. The
injection is JSON: which fault strikes which rank at the beginning of which update.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from lmscaling.runtime import rank

FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79.11 GiB, 1.02 GiB is free."


def strike(fault: str) -> None:
    """What happens to this process."""
    import torch

    if fault == "oom":
        raise torch.OutOfMemoryError(FULL)
    if fault == "bug":
        raise KeyError("bug")
    if fault == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if fault == "nccl":
        raise RuntimeError("NCCL error: unhandled system error, ncclSystemError")
    if fault == "quota":
        raise OSError(122, "Disk quota exceeded")
    if fault == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), getattr(signal, fault))


def main() -> None:
    rank.die_with_parent()  # before torch is loaded, which takes seconds
    from lmscaling.config.cell import Cell
    from lmscaling.config.validation import checked
    from lmscaling.errors import UserError
    from lmscaling.files import read_json
    from lmscaling.train import checkpoint, loop, run, watch
    from lmscaling.train.module import Training

    cell, calibration, manifest, results = map(Path, sys.argv[1:5])
    world = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    injection = json.loads(sys.argv[6]) if len(sys.argv) > 6 else {}
    name = checked(Cell, read_json(cell, "cell"), "cell").run
    plain = Training.update
    watch.GRACE_SECONDS = injection.get("grace", watch.GRACE_SECONDS)
    loop.CHECKPOINT_SECONDS = injection.get("checkpoint_seconds", loop.CHECKPOINT_SECONDS)

    def update(self, slab):
        struck = rank.number() == injection.get("rank")
        if struck and self.updates + 1 == injection.get("update"):
            (results / "struck").write_text(str(time.time()))
            strike(injection["fault"])
        outputs = plain(self, slab)
        with (results / f"rates-{rank.number()}.txt").open("a") as file:
            file.write(f"{self.rate!r}\n")
        return outputs

    Training.update = update
    hidden = injection.get("hidden", [None, ""])
    if rank.number() == hidden[0]:
        listed = checkpoint.paths
        checkpoint.paths = lambda folder: [p for p in listed(folder) if p.name != hidden[1]]
    run.ranks = lambda cell: world
    scratch, record = results / "scratch" / name, results / "runs" / name / "run.json"
    try:
        run.train(cell, manifest, scratch, record, calibration)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
