"""Ranks start together, resume together and end together, whatever happens to one of them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from conftest import ROOT, calibration, write_tokens
from speed_of_python import slowness

from lmscaling.config import grid
from lmscaling.records.ledger import entries
from lmscaling.runtime import rank
from lmscaling.train import checkpoint, ranks
from lmscaling.train.ranks import Others, Rank

SECONDS = 10 * slowness()
"""Until all ranks have ended after one has failed; 10 on the reference machine."""

STRIKES = 6
"""The update at which a fault strikes; a checkpoint was made after each one before it."""


class Ranks:
    """A run of a cell on several ranks, in a folder of its own."""

    def __init__(self, folder, cell, manifest, world):
        self.cell, self.manifest, self.world = cell, manifest, world
        self.results = folder / "results"
        self.scratch = self.results / "scratch" / self.cell.run
        self.results.mkdir(parents=True)
        (folder / "cell.json").write_text(self.cell.to_json())
        self.way = calibration(folder, self.cell, micro_batch=1)
        self.folder = folder

    def start(self, **injection):
        command = [sys.executable, ROOT / "tests" / "on_ranks.py", self.folder / "cell.json"]
        values = json.dumps({"checkpoint_seconds": 0, "update": STRIKES, "grace": 5} | injection)
        words = [self.way, self.manifest, self.results, str(self.world), values]
        with (self.folder / "said").open("a") as file:
            return subprocess.Popen([*command, *words], stdout=file, stderr=file)

    def processes(self):
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if str(self.results) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def until_struck(self):
        struck, deadline = self.results / "struck", time.monotonic() + 120 * slowness()
        while not struck.exists():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        time.sleep(0.05)
        return float(struck.read_text())

    def until_ended(self, process):
        """Exit code, and the time at which the last process has ended."""
        deadline = time.monotonic() + 120 * slowness()
        while process.poll() is None or self.processes():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        return process.returncode, time.time()

    def said(self):
        return (self.folder / "said").read_text()

    def finish(self):
        """Go on without a fault; returns the losses of the surviving updates."""
        process = self.start(fault=None, rank=-1)
        assert process.wait(120 * slowness()) == 0, self.said()
        record = json.loads((self.results / "runs" / self.cell.run / "run.json").read_text())
        assert record["status"] == "done"
        log = (self.results / "runs" / self.cell.run / "log.jsonl").read_text().splitlines()
        rows = [json.loads(row) for row in log]
        return {r["update"]: r["train_loss"] for r in rows if r["record"] == "update"}


@pytest.fixture
def made(cell, tokens, tmp_path):
    def run(world):
        return Ranks(tmp_path, replace(cell, budget="12 updates"), tokens, world)

    return run


FAULTS = [
    ("oom", 0, "memory", "rank 0 failed at update 5: CUDA out of memory. Tried to allocate"),
    ("oom", 1, "memory", "rank 1 failed at update 5: CUDA out of memory. Tried to"),
    ("bug", 0, "", "rank 0 failed at update 5: KeyError: 'bug'"),
    ("bug", 1, "", "rank 1 failed at update 5: KeyError: 'bug'"),
    ("ecc", 1, "device", "rank 1 failed at update 5: RuntimeError: CUDA error: uncorrect"),
    ("SIGKILL", 1, "rank", "rank 1 was killed by SIGKILL"),
]


@pytest.mark.ci
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("fault", "where", "kind", "reason"), FAULTS)
def test_all_ranks_end_within_seconds_of_one_that_fails(made, world, fault, where, kind, reason):
    run = made(world)
    process = run.start(rank=where, fault=fault)
    struck = run.until_struck()
    code, ended = run.until_ended(process)
    assert code == 1, run.said()
    assert ended - struck < SECONDS, run.said()
    last = entries(run.scratch / "ledger.jsonl")[-1]
    assert (last.kind, last.fault, last.update) == ("failed", kind, STRIKES - 1)
    assert reason in last.reason
    assert reason in run.said()
    assert not (run.results / "runs").exists()
    assert sorted(run.finish()) == list(range(1, 13))


@pytest.mark.ci
@pytest.mark.parametrize("world", [2, 4])
def test_no_rank_outlives_rank_0(made, world):
    run = made(world)
    process = run.start(rank=0, fault="SIGKILL")
    struck = run.until_struck()
    code, ended = run.until_ended(process)
    assert (code, ended - struck < SECONDS) == (-signal.SIGKILL, True)
    assert sorted(run.finish()) == list(range(1, 13))


@pytest.mark.ci
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("fault", ["hang", "SIGSTOP"])
def test_a_rank_that_hangs_is_named_and_ended_after_a_request_to_stop(made, world, fault):
    run = made(world)
    process = run.start(rank=1, fault=fault)
    run.until_struck()
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    asked = time.time()
    code, ended = run.until_ended(process)
    assert code == 1
    assert ended - asked < 5 + SECONDS
    last = entries(run.scratch / "ledger.jsonl")[-1]
    assert (last.kind, last.fault) == ("failed", "rank")
    assert last.reason == "rank 1 did not answer SIGTERM for 5 s"
    assert sorted(run.finish()) == list(range(1, 13))


@pytest.mark.ci
def test_ranks_that_resume_from_different_updates_say_so(made, monkeypatch):
    run = made(2)
    process = run.start(rank=1, fault="bug")
    run.until_ended(process)
    newest, older = checkpoint.paths(run.scratch)
    # What rank 1 sees when a file server shows it an older folder.
    process = run.start(rank=-1, fault=None, hidden=[1, newest.name])
    code, _ = run.until_ended(process)
    assert code == 1
    assert "ranks disagree on the checkpoint to resume from: rank 1 has update 4" in run.said()
    assert older.exists()
    assert sorted(run.finish()) == list(range(1, 13))


def killed(run, kills, moments):
    """Kill one of the ranks at random moments, each time after a new checkpoint; then finish."""
    for _ in range(kills):
        before = set(run.scratch.glob("checkpoint-*"))
        process = run.start(rank=-1, fault=None, checkpoint_seconds=0.02)
        deadline = time.monotonic() + 120 * slowness()
        while not set(run.scratch.glob("checkpoint-*")) - before:
            assert time.monotonic() < deadline, run.said()
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        moments.choice(run.processes()).kill()
        code, _ = run.until_ended(process)
        assert code in (1, -signal.SIGKILL)
    return run.finish()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_two_ranks_killed_at_random_moments_end_as_if_undisturbed(
    values, attention, tmp_path_factory, tmp_path
):
    """Five kills of a trunk, five of its branch; with both attentions they are 20."""
    manifest = write_tokens(tmp_path_factory.mktemp("tokens"), [400_000], [1000])
    values |= {"budget": "2000 updates", "branches": {"shares": [0.5], "size": "s"}}
    values["validation"]["every_tokens"] = 6400
    laid_out = grid.expand(values)
    (trunk,) = (c for c in laid_out.cells.values() if c.attention == attention)
    (branch,) = (c for c in laid_out.branches.values() if c.attention == attention)
    moments, losses, weights = random.Random(attention), {}, {}
    for name, kills in (("plain", 0), ("killed", 5)):
        for cell in (trunk, branch):
            run = Ranks(tmp_path / name / cell.name, cell, manifest, 2)
            if cell.branch:  # beside its trunk
                run.results.rmdir()
                run.results.symlink_to(tmp_path / name / trunk.name / "results")
            losses[name, cell.name] = killed(run, kills, moments)
            path = run.results / "runs" / cell.run / "model.safetensors"
            weights[name, cell.name] = path.read_bytes()
    for cell in (trunk, branch):
        assert losses["killed", cell.name] == losses["plain", cell.name]
        assert weights["killed", cell.name] == weights["plain", cell.name]


def test_steps_and_marks_are_shared_between_ranks(tmp_path, monkeypatch):
    zero = Rank.__new__(Rank)
    zero.number, zero._steps = 0, ranks.steps(tmp_path, 2)
    monkeypatch.setenv(rank.RANK, "1")
    one = Rank.__new__(Rank)
    one.number, one._steps = 1, ranks.steps(tmp_path, 2)
    zero.mark(4)
    one.mark(3)
    one.mark(4)
    assert np.array_equal(zero._steps, [[4, 1], [4, 2]])


def test_one_rank_needs_no_other_and_waits_for_none(tmp_path):
    others = Others(1, tmp_path)
    alone = Rank(1, False, tmp_path)
    assert others.ended() is None
    assert others.blame(5.0) is None
    assert alone.broadcast(1.0, 2.0) == [1.0, 2.0]
    alone.agree("anything", "x")
    others.kill()


def test_a_process_whose_parent_has_gone_ends_at_once():
    code = "from lmscaling.runtime import rank; rank.die_with_parent(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, rank.PARENT: "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
