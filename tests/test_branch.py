"""Decayed branches: where they leave their trunk, how they end, and what they never disturb."""

import os
import shutil
import signal
from dataclasses import replace

import on_ranks
import pytest
from conftest import STUDY, calibration, refused, write_tokens
from test_train import assert_close, rows_of, trained

from lmscaling.config import grid
from lmscaling.config.cell import branch_checkpoint
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records.ledger import entries, line
from lmscaling.train import budget as budgets
from lmscaling.train import checkpoint
from lmscaling.train.branch import decay
from lmscaling.train.budget import Clock
from lmscaling.train.module import Training

CELL = next(c for c in grid.expand(STUDY).cells.values() if c.attention == "linear")
TRUNK = replace(CELL, budget="80 updates", keep=(0.25, 0.5, 1.0))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"), [30_000], [1000])


def places(root, cell):
    return root / "scratch" / cell.run, root / "runs" / cell.run / "run.json"


def updates_of(record):
    return rows_of(record.with_name("log.jsonl"), "update")


def branch_of(trunk, share):
    return replace(trunk, branch=share, keep=())


@pytest.fixture(scope="module")
def grown(manifest, tmp_path_factory):
    """A trunk, trained once; its folder."""
    folder = tmp_path_factory.mktemp("trunk")
    trained(folder, TRUNK, manifest)
    return folder


@pytest.fixture
def run(manifest, tmp_path):
    def run(cell):
        made, log = trained(tmp_path, cell, manifest)
        return made, rows_of(log, "update")

    return run


@pytest.fixture
def trunk(grown, tmp_path):
    """A copy of that trunk, and the rows of its updates."""
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    return updates_of(places(tmp_path, TRUNK)[1])


def test_keeping_checkpoints_for_branches_changes_neither_name_nor_run(run, grown, tmp_path):
    plain = replace(TRUNK, keep=())
    assert plain.run == TRUNK.run
    _, alone = run(plain)
    first, second = (places(root, TRUNK)[1] for root in (grown, tmp_path))
    assert [r["train_loss"] for r in updates_of(first)] == [r["train_loss"] for r in alone]
    weights = [record.with_name("model.safetensors").read_bytes() for record in (first, second)]
    assert weights[0] == weights[1]


def test_a_branch_goes_on_from_its_trunk_and_its_rate_ends_at_zero(run, trunk, tmp_path):
    scratch, _ = places(tmp_path, TRUNK)
    kept = {share: scratch / branch_checkpoint(share) for share in TRUNK.keep}
    progress = {share: checkpoint.load(path).progress for share, path in kept.items()}
    assert {share: p.update for share, p in progress.items()} == {0.25: 16, 0.5: 32, 1.0: 64}
    assert all(p.update_seconds > 0 for p in progress.values())
    made, rows = run(branch_of(TRUNK, 0.5))
    assert (made.status, made.updates, made.tokens) == ("done", 40, 40 * 64)
    assert [r["update"] for r in rows] == list(range(33, 41))
    rate = trunk[31]["lr"]
    assert [r["lr"] for r in rows] == pytest.approx([rate * (1 - i / 8) for i in range(1, 9)])
    assert rows[-1]["lr"] == 0
    assert rows[0]["budget_fraction"] == 33 / 80
    assert rows[0]["train_loss"] == trunk[32]["train_loss"]  # the same weights on the same tokens
    assert rows[-1]["train_loss"] != trunk[39]["train_loss"]
    assert rows[0]["train_seconds"] > trunk[31]["train_seconds"]
    assert (tmp_path / "runs" / made.run / "model.safetensors").is_file()
    # It has ended: the checkpoint of its trunk is needed no more.
    assert [share for share, path in kept.items() if path.is_file()] == [0.25, 1.0]


@pytest.mark.parametrize(("budget", "update", "seconds", "pace", "end"), [
    ("80 updates", 32, 9.0, 0.1, 40),
    ("5120 tokens", 32, 9.0, 0.1, 40),
    ("100 seconds", 400, 40.0, 0.1, 500),  # half of the budget is 50 s: 10 s are left
    ("100 seconds", 400, 40.0, 0.3, 433),
    ("100 seconds", 400, 51.0, 0.1, 401),  # the last update before it was very long
])  # fmt: skip
@pytest.mark.parametrize("warmup", [2, 800])
def test_the_length_of_a_branch_follows_from_the_pace_of_its_trunk_whose_rate_it_begins_with(
    cell, budget, update, seconds, pace, end, warmup
):
    times = {"train_seconds": seconds, "update_seconds": pace}
    progress = checkpoint.Progress(run="", update=update, shard=0, tokens_id="", **times)
    optimizer = replace(cell.optimizer, warmup_updates=warmup)
    trunk = replace(cell, budget=budget, optimizer=optimizer)
    found = decay(replace(trunk, branch=0.5), progress)
    peak = cell.lr * min(1, update / warmup)
    assert (found.start, found.end, found.peak) == (update, end, pytest.approx(peak))
    assert found.peak == found.rate(update, spent=0.4) == trunk.rates.rate(update, spent=0.4)
    assert found.rate(update + 1, spent=0.4) == pytest.approx(peak * (1 - 1 / (end - update)))
    assert found.rate(end, spent=0.5) == 0


def test_a_budget_in_time_ends_its_branches_near_their_share(run, cell, monkeypatch):
    """With a clock that says 0.1 s an update, whatever the machine does."""

    class Steady(Clock):
        def tick(self):
            self.seconds = round(self.seconds + 0.1, 6)
            return self.seconds

    trunk = replace(cell, budget="8 seconds", keep=(0.5,))
    monkeypatch.setattr(budgets, "Clock", Steady)
    made, _ = run(trunk)
    assert made.updates == 80
    made, rows = run(branch_of(trunk, 0.5))
    assert (made.updates, rows[-1]["lr"]) == (40, 0)
    assert made.train_seconds == pytest.approx(4.0)


@pytest.mark.race
def test_the_length_is_fixed_once_and_kept_by_every_attempt(run, trunk, tmp_path, monkeypatch):
    plain = Training.training_step

    def update(self, slab, batch_idx):
        if self.updates == 34:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, slab, batch_idx)

    monkeypatch.setattr(Training, "training_step", update)
    branch = branch_of(TRUNK, 0.5)
    with pytest.raises(SystemExit):
        run(branch)
    monkeypatch.setattr(Training, "training_step", plain)
    scratch, _ = places(tmp_path, branch)
    written = entries(scratch / "ledger.jsonl")
    assert [e.end for e in written if e.kind == "branch"] == [40]
    changed = [replace(e, end=42) if e.kind == "branch" else e for e in written]
    (scratch / "ledger.jsonl").write_bytes(b"".join(map(line, changed)))
    made, rows = run(branch)
    assert (made.updates, made.attempts) == (42, 2)
    assert [r["update"] for r in rows] == list(range(33, 43))
    assert rows[-1]["lr"] == 0


def test_a_trunk_that_ended_too_early_leaves_branches_that_say_so(tmp_path):
    manifest = write_tokens(tmp_path / "tokens", [3000], [1000])  # end after 46 of 100 updates
    long = replace(TRUNK, budget="100 updates")
    trained(tmp_path, long, manifest)
    made, log = trained(tmp_path, branch_of(long, 1.0), manifest)
    assert (made.status, made.updates, rows_of(log, "update")) == ("no_trunk", 0, [])
    assert "out_of_tokens" in made.message
    assert "46.0%" in made.message
    made, _ = trained(tmp_path, branch_of(long, 0.5), manifest)
    assert made.status == "out_of_tokens"


def test_a_share_that_came_too_late_is_told_and_a_broken_checkpoint_is_an_error_with_its_cure(
    run, trunk, tmp_path
):
    made, _ = run(branch_of(TRUNK, 0.75))
    assert made.status == "no_trunk"
    assert "branch-0.75.safetensors" in made.message
    path = places(tmp_path, TRUNK)[0] / branch_checkpoint(0.5)
    path.write_bytes(path.read_bytes()[:1000])
    with refused(UserError, path.name, f"lmscaling reset {TRUNK.run}"):
        run(branch_of(TRUNK, 0.5))


def test_two_ranks_agree_on_a_branch(run, trunk, manifest, tmp_path):
    results, branch = tmp_path / "two", branch_of(TRUNK, 0.5)
    for kind in ("scratch", "runs"):
        shutil.copytree(tmp_path / kind, results / kind)
    _, alone = run(branch)
    way = calibration(tmp_path, branch, micro_batch=1)
    log = on_ranks.trained(branch, way, manifest, results)
    assert read_json(log.with_name("run.json"), "record")["updates"] == 40
    assert [r["lr"] for r in rows_of(log, "update")] == [r["lr"] for r in alone]
    assert_close(places(tmp_path, branch)[1].with_name("log.jsonl"), log)
