"""Several cells one after another in processes of their own, as a job trains branches."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from conftest import ROOT, calibration, write_tokens

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def turn(cell, tmp_path):
    """Starts two cells of so many updates; the place of a record by the number of its cell."""

    def start(updates, tokens=3000):
        cells = [replace(cell, seed=seed, budget=f"{updates} updates") for seed in (0, 1)]
        (tmp_path / "cells").mkdir()
        for each in cells:
            (tmp_path / "cells" / f"{each.run}.json").write_text(each.to_json())
        records = [tmp_path / "runs" / each.run / "run.json" for each in cells]
        words = [
            *[f"cells/{each.run}.json" for each in cells],
            *("--manifest", write_tokens(tmp_path / "tokens", [tokens], [1000])),
            *("--scratch", tmp_path / "scratch" / cells[1].run, "--record", records[1]),
            *("--calibration", calibration(tmp_path, cells[0])),
        ]
        command = [sys.executable, "-m", "lmscaling", "train", *map(str, words)]
        return command, records

    return start


def run(command, folder):
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def test_each_is_trained_and_one_with_a_record_is_left_out(turn, tmp_path):
    command, records = turn(2)
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(path.read_text())["status"] for path in records] == ["done", "done"]
    before = [path.stat().st_ino for path in records]
    records[1].unlink()
    again = run(command, tmp_path)
    assert again.stderr.count("stays as it is") == 1
    assert "is written again" in again.stderr
    assert records[0].stat().st_ino == before[0]


def test_one_that_fails_stops_no_other_and_is_named(turn, tmp_path):
    command, records = turn(2)
    scratch = tmp_path / "scratch" / records[0].parent.name
    scratch.parent.mkdir()
    scratch.write_text("a file where a folder must be")
    done = run(command, tmp_path)
    assert done.returncode == 1
    assert f"1 of 2 runs failed: {records[0].parent.name}" in done.stderr
    assert [path.is_file() for path in records] == [False, True]


def test_asked_to_stop_it_ends_its_process_and_begins_no_other(turn, tmp_path):
    command, records = turn(100_000, tokens=5_000_000)
    job = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE)
    log = tmp_path / "scratch" / records[0].parent.name / "attempt-001.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.stat().st_size > 5000):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == os.EX_TEMPFAIL
    assert list(log.parent.glob("checkpoint-*"))
    assert not (tmp_path / "scratch" / records[1].parent.name).exists()
