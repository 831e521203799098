"""Ranks start, resume and end together whatever happens to one; cells of a job go in turn."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace

import forked
import on_ranks
import psutil
import pytest
from conftest import calibration, write_tokens

from lmscaling.cli import runs
from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.records.ledger import entries
from lmscaling.runtime import rank
from lmscaling.train import checkpoint
from lmscaling.train.ranks import Others

pytestmark = pytest.mark.race
STRIKES = 6
"""The update at which a fault strikes; a checkpoint was made after each one before it."""


class Ranks:
    """A run of a cell on several ranks, in a folder of its own."""

    def __init__(self, folder, cell, manifest, world):
        self.cell, self.manifest, self.world = cell, manifest, world
        self.results, self.said = folder / "results", folder / "said"
        self.scratch = self.results / "scratch" / self.cell.run
        self.record = self.results / "runs" / self.cell.run / "run.json"
        self.results.mkdir(parents=True)
        self.said.touch()
        (folder / "cell.json").write_text(self.cell.to_json())
        self.places = folder / "cell.json", calibration(folder, self.cell, micro_batch=1)

    def start(self, **injection):
        values = {"checkpoint_seconds": 0, "update": STRIKES} | injection
        places = (*self.places, self.manifest, self.results)
        return forked.start(on_ranks.first, self.said, *places, self.world, values)

    def until_ended(self, process):
        """Exit code of rank 0, when it and all other ranks have ended."""
        code = forked.code(process, self.said)
        forked.until(lambda: not self.living(), self.said)
        return code

    def living(self):
        """Processes of this run that have not ended."""
        found = []
        for pid in (self.results / "pids").read_text().split():
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]

    def finish(self):
        """Go on without a fault; returns the losses of the surviving updates."""
        assert self.until_ended(self.start()) == 0, self.said.read_text()
        assert json.loads(self.record.read_text())["status"] == "done"
        log = self.record.with_name("log.jsonl").read_text().splitlines()
        rows = [json.loads(row) for row in log]
        return {r["update"]: r["train_loss"] for r in rows if r["record"] == "update"}


@pytest.fixture
def made(cell, tokens, tmp_path):
    return Ranks(tmp_path, replace(cell, budget="12 updates"), tokens, 4)


@pytest.mark.ci
@pytest.mark.parametrize(("fault", "where", "kind", "reason"), [
    ("oom", 1, "memory", "CUDA out of memory"),
    ("bug", 0, "", "KeyError"),
    ("ecc", 2, "device", "uncorrectable ECC"),
    ("SIGKILL", 3, "rank", "SIGKILL"),
])  # fmt: skip
def test_all_ranks_end_after_one_that_fails_and_it_is_named(made, fault, where, kind, reason):
    process = made.start(rank=where, fault=fault)
    assert made.until_ended(process) == 1, made.said.read_text()
    last = entries(made.scratch / "ledger.jsonl")[-1]
    assert (last.kind, last.fault, last.update) == ("failed", kind, STRIKES - 1)
    assert f"rank {where} " in last.reason
    assert reason in last.reason
    assert last.reason in made.said.read_text()
    assert not made.record.exists()
    assert sorted(made.finish()) == list(range(1, 13))


@pytest.mark.ci
def test_no_rank_outlives_rank_0(made):
    process = made.start(rank=0, fault="SIGKILL")
    assert made.until_ended(process) == -signal.SIGKILL
    assert sorted(made.finish()) == list(range(1, 13))


@pytest.mark.ci
def test_asked_to_stop_all_ranks_end_when_rank_0_has_written(made):
    process = made.start(rank=0, fault="SIGTERM", checkpoint_seconds=900, writing=2.0)
    assert made.until_ended(process) == os.EX_TEMPFAIL
    assert [path.name for path in checkpoint.paths(made.scratch)] == [
        checkpoint.path_of(made.scratch, STRIKES).name
    ]
    assert "failed" not in {entry.kind for entry in entries(made.scratch / "ledger.jsonl")}
    assert sorted(made.finish()) == list(range(1, 13))


@pytest.mark.ci
def test_ranks_that_resume_from_different_updates_say_so(made):
    made.until_ended(made.start(rank=1, fault="bug"))
    newest, older = checkpoint.paths(made.scratch)
    # What rank 1 sees when a file server shows it an older folder.
    assert made.until_ended(made.start(hidden=[1, newest.name])) == 1
    assert "rank 1 has" in made.said.read_text()
    assert older.exists()
    assert sorted(made.finish()) == list(range(1, 13))


def killed(run, kills, moments):
    """Kill one of the ranks at random moments, each time after a new checkpoint; then finish."""
    for _ in range(kills):
        before = set(run.scratch.glob("checkpoint-*"))
        process = run.start(checkpoint_seconds=0.02)
        forked.until(lambda: set(run.scratch.glob("checkpoint-*")) - before, run.said)  # noqa: B023
        time.sleep(moments.uniform(0, 0.3))
        moments.choice(run.living()).kill()
        assert run.until_ended(process) in (1, -signal.SIGKILL)
    return run.finish()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_two_ranks_killed_at_random_moments_end_as_if_undisturbed(
    values, attention, tmp_path_factory, tmp_path
):
    manifest = write_tokens(tmp_path_factory.mktemp("tokens"), [400_000], [1000])
    values |= {"budget": "2000 updates", "branches": {"shares": [0.5], "size": "s"}}
    values["validation"]["every_tokens"] = 6400
    laid_out = grid.expand(values)
    both = [*laid_out.cells.values(), *laid_out.branches.values()]
    trunk, branch = (cell for cell in both if cell.attention == attention)
    moments, losses, weights = random.Random(attention), {}, {}
    for name, kills in (("plain", 0), ("killed", 5)):
        for cell in (trunk, branch):
            run = Ranks(tmp_path / name / cell.name, cell, manifest, 2)
            if cell.branch:  # beside its trunk
                run.results.rmdir()
                run.results.symlink_to(tmp_path / name / trunk.name / "results")
            losses[name, cell.name] = killed(run, kills, moments)
            weights[name, cell.name] = run.record.with_name("model.safetensors").read_bytes()
    for cell in (trunk, branch):
        assert losses["killed", cell.name] == losses["plain", cell.name]
        assert weights["killed", cell.name] == weights["plain", cell.name]


def test_one_rank_needs_no_other(tmp_path):
    others = Others(1, tmp_path, lambda *_: None)
    assert others.ended() is None
    assert others.blame(5.0) is None
    others.kill()


def test_a_process_whose_parent_has_gone_ends_at_once():
    code = "from lmscaling.runtime import rank; rank.die_with_parent(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, rank.PARENT: "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")


def train_in_turn(*given):
    """As the verb does."""
    names = "cells", "manifest", "scratch", "out", "calibration", "stop_after", "calibrated"
    try:
        shown = {"loggers": {}, "progress_bar": False, "profiler": None}
        runs.train(Namespace(**dict(zip(names, given, strict=True)), **shown))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


def turn(folder, cell, updates, tokens=3000):
    """Starts two cells of so many updates, and again; and their records."""
    cells = [replace(cell, seed=seed, budget=f"{updates} updates") for seed in (0, 1)]
    files = [folder / f"{each.run}.json" for each in cells]
    for each, file in zip(cells, files, strict=True):
        file.write_text(each.to_json())
    records = [folder / "runs" / each.run / "run.json" for each in cells]
    manifest = write_tokens(folder / "tokens", [tokens], [1000])
    out, way = folder / "runs" / "both.json", calibration(folder, cells[0])
    given = files, manifest, folder / "scratch", out, way, None, None
    return lambda: forked.start(train_in_turn, folder / "said", *given), records


@pytest.mark.ci
def test_a_cell_that_fails_is_named_and_stops_no_other_and_what_has_a_record_is_left_out(
    cell, tmp_path
):
    start, records = turn(tmp_path, cell, 2)
    scratch = tmp_path / "scratch" / records[0].parent.name
    scratch.parent.mkdir()
    scratch.write_text("a file where a folder must be")
    assert forked.code(start(), tmp_path / "said") == 1
    assert f"failed: {records[0].parent.name};" in (tmp_path / "said").read_text()
    assert [path.is_file() for path in records] == [False, True]
    scratch.unlink()
    before = records[1].stat().st_ino
    assert forked.code(start(), tmp_path / "said") == 0
    assert [json.loads(path.read_text())["status"] for path in records] == ["done", "done"]
    assert records[1].stat().st_ino == before


@pytest.mark.ci
def test_asked_to_stop_a_job_ends_its_process_and_begins_no_other(cell, tmp_path):
    start, records = turn(tmp_path, cell, 100_000, tokens=5_000_000)
    job = start()
    log = tmp_path / "scratch" / records[0].parent.name / "attempt-001.jsonl"
    forked.until(lambda: log.is_file() and log.stat().st_size > 5000, tmp_path / "said")
    assert job.pid
    os.kill(job.pid, signal.SIGTERM)
    assert forked.code(job, tmp_path / "said") == os.EX_TEMPFAIL
    assert list(log.parent.glob("checkpoint-*"))
    assert not (tmp_path / "scratch" / records[1].parent.name).exists()
