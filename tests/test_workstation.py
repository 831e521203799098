"""A workstation with several GPUs: as many cells train as it has GPUs, each on its own."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from product import without_verbs
from slurm_cluster import PATIENCE_SECONDS, eventually, program

pytestmark = [pytest.mark.ci, pytest.mark.race]

SMI = 'for i in 0 1 2 3; do echo "$i, GPU-$i$i$i$i"; done'
# Training that waits for a file to end, and shows meanwhile which GPU it has.
TRAIN = """
import os, sys, time
from pathlib import Path
from lmscaling.runtime import gpus

if sys.argv[1] == "train":
    run, now = Path(sys.argv[sys.argv.index("--out") + 1].removesuffix(".json")), Path("now")
    with gpus.reserved(1):
        (now / run.name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        while not Path("go", run.name).exists():
            time.sleep(0.1)
        (now / run.name).unlink()
"""
HOLD = """
import time
from lmscaling.runtime import gpus
with gpus.reserved({}):
    print("held", flush=True)
    time.sleep(9999)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The product with six cells of a GPU each, and a machine with four."""
    made = without_verbs(tmp_path / "product")
    off = dict.fromkeys(("calibrate", "branches", "evaluate", "speed"))
    made.study(gpus=1, axes={"seed": [0, 1, 2]}, **off)
    for folder in ("bin", "now", "go"):
        (made.root / folder).mkdir()
    program(made.root / "bin", "nvidia-smi", SMI)
    made.append("src/lmscaling/__main__.py", TRAIN)
    monkeypatch.setenv("PATH", f"{made.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def under_way(place):
    found = {}
    for path in (place.root / "now").iterdir():
        with suppress(FileNotFoundError):  # it has ended
            found[path.name] = path.read_text()
    return {name: device for name, device in found.items() if device}


@pytest.mark.parametrize("free", [4, 1], ids=["alone", "beside others"])
def test_as_many_cells_train_at_once_as_gpus_are_free_each_on_its_own(place, free):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(4 - free)],
        env=place.environment, cwd=place.root, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    # Cores for five cells, without GPUs: two for each, as there are four GPUs.
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    snakemake = place.start("--cores", "11", **quiet)
    try:
        for left in range(6, 0, -1):
            wanted = min(free, left)
            eventually(lambda: len(under_way(place)) >= wanted, f"{wanted} cells")  # noqa: B023
            now = under_way(place)
            assert len(set(now.values())) == len(now) == wanted
            first = min(now)
            (place.root / "go" / first).touch()
            eventually(lambda: first not in under_way(place), f"end of {first}")  # noqa: B023
        assert snakemake.wait(PATIENCE_SECONDS) == 0
    finally:
        for process in (snakemake, holder):
            process.kill()
            process.wait()
    assert len(list(place.results.glob("runs/*/run.json"))) == 6
