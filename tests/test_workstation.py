"""A workstation with several GPUs: as many cells train as it has GPUs, each on its own."""

import json
import os
import subprocess
import sys

import pytest
from conftest import write_tokens
from test_workflow import product

from lmscaling.config import grid, study_file
from lmscaling.files import write_json

SMI = """#!/bin/sh
for i in 0 1 2 3; do echo "$i, GPU-$i$i$i$i"; done
"""

STUB = """
import json, os, sys, time
from pathlib import Path
from lmscaling.runtime import gpus

record = Path(sys.argv[sys.argv.index("--record") + 1])
asked = time.time()
with gpus.reserved(1):
    begun = time.time()
    time.sleep(SECONDS)
    row = {"device": os.environ["CUDA_VISIBLE_DEVICES"], "begun": begun, "ended": time.time()}
    row["waited"] = begun - asked
record.parent.mkdir(parents=True, exist_ok=True)
record.write_text(json.dumps(row))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The product with six cells of a GPU each, whose training only notes what GPU it has."""
    made = product(tmp_path_factory.mktemp("product"))
    made.study(
        gpus=1, axes={"seed": [0, 1, 2]}, calibrate=None, branches=None, evaluate=None, speed=None
    )
    (made.root / "bin").mkdir()
    smi = made.root / "bin" / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    (made.root / "stub.py").write_text(STUB)
    made.edit("workflow/rules/train.smk", "exec python -m lmscaling train", "exec python stub.py")
    study = grid.expand(
        study_file.read_study([made.root / "config/study.yaml", made.root / "tiny.yaml"])
    )
    row = study.study.datasets["lines"]
    write_tokens(made.results / "tokens" / study.tokens, [3000], [1000], row)
    for name in study.checked:  # as if their kernels had passed
        write_json(made.results / "checks" / f"{name}.json", {})
    made.snakemake("--cores", "1", "results/tiny/study.json")
    return made


@pytest.fixture(autouse=True)
def machine(place, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{place.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def train(place, seconds):
    """Train all cells of the study anew; what each of them noted, in the order of their begin."""
    runs = sorted({p.stem for p in (place.results / "cells").glob("*.json")})
    for path in place.results.glob("runs/*/run.json"):
        path.unlink()
    (place.root / "stub.py").write_text(STUB.replace("SECONDS", str(seconds)))
    targets = [f"results/tiny/runs/{run}/run.json" for run in runs]
    # Cores for five cells, without GPUs: two for each, as there are four GPUs.
    place.snakemake("--cores", "11", "--", *targets)
    rows = [json.loads(p.read_text()) for p in place.results.glob("runs/*/run.json")]
    assert len(rows) == len(runs)
    return sorted(rows, key=lambda row: row["begun"])


def most_at_once(rows):
    return max(
        sum(other["begun"] <= row["begun"] < other["ended"] for other in rows) for row in rows
    )


def alone(rows):
    """Whether no GPU had two jobs at the same time."""
    return not any(
        a is not b and a["device"] == b["device"] and b["begun"] <= a["begun"] < b["ended"]
        for a in rows
        for b in rows
    )


@pytest.mark.ci
def test_as_many_cells_train_at_once_as_there_are_gpus_each_on_its_own(place):
    rows = train(place, 6)
    assert most_at_once(rows) == 4
    assert len({row["device"] for row in rows[:4]}) == 4
    assert alone(rows)
    assert max(row["waited"] for row in rows) < 4  # none was started before a GPU was free


@pytest.mark.ci
def test_a_cell_waits_while_others_use_the_gpus(place):
    code = "from lmscaling.runtime import gpus; import time\nwith gpus.reserved(3): time.sleep(999)"
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        rows = train(place, 0.5)
    finally:
        other.kill()
        other.wait()
    assert len({row["device"] for row in rows}) == 1
    assert alone(rows)
