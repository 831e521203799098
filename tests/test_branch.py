"""Decayed branches: where they leave their trunk, how they end, and what they never disturb."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import ROOT, calibration, write_tokens
from safetensors.torch import load_file
from speed_of_python import slowness

from lmscaling.config.schedule import Decay
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records.ledger import entries, line
from lmscaling.train import checkpoint, loop
from lmscaling.train.branch import decay
from lmscaling.train.clock import Clock
from lmscaling.train.run import train


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"), [30_000], [1000])


@pytest.fixture
def trunk(cell):
    return replace(cell, budget="80 updates", keep=(0.25, 0.5, 1.0))


@pytest.fixture
def run(manifest, tmp_path):
    def trained(cell):
        path = tmp_path / f"{cell.run}.json"
        path.write_text(cell.to_json())
        scratch, record = places(tmp_path, cell)
        made = train(path, manifest, scratch, record, calibration(tmp_path, cell))
        return made, rows_of(record)

    return trained


def places(root, cell):
    return root / "scratch" / cell.run, root / "runs" / cell.run / "run.json"


def rows_of(record):
    rows = [json.loads(line) for line in record.with_name("log.jsonl").open()]
    return [row for row in rows if row["record"] == "update"]


def branch_of(trunk, share):
    return replace(trunk, branch=share, keep=())


def test_keeping_checkpoints_for_branches_changes_neither_name_nor_run(run, trunk, tmp_path):
    plain = replace(trunk, keep=())
    assert plain.run == trunk.run
    _, kept = run(trunk)
    weights = (tmp_path / "runs" / trunk.run / "model.safetensors").read_bytes()
    for place in places(tmp_path, trunk):
        (place if place.is_dir() else place.parent).rename(tmp_path / f"old-{place.name}")
    _, alone = run(plain)
    assert [r["train_loss"] for r in kept] == [r["train_loss"] for r in alone]
    assert (tmp_path / "runs" / trunk.run / "model.safetensors").read_bytes() == weights


def test_a_branch_goes_on_from_its_trunk_and_its_rate_ends_at_zero(run, trunk, tmp_path):
    _, above = run(trunk)
    made, rows = run(branch_of(trunk, 0.5))
    assert (made.status, made.updates, made.tokens) == ("done", 40, 40 * 64)
    assert [r["update"] for r in rows] == list(range(33, 41))
    rate = above[31]["lr"]
    assert [r["lr"] for r in rows] == pytest.approx([rate * (1 - i / 8) for i in range(1, 9)])
    assert rows[-1]["lr"] == 0
    assert rows[0]["budget_fraction"] == 33 / 80
    assert rows[0]["train_loss"] == above[32]["train_loss"]  # the same weights on the same tokens
    assert rows[-1]["train_loss"] != above[39]["train_loss"]
    assert rows[0]["train_seconds"] > above[31]["train_seconds"]
    assert (tmp_path / "runs" / made.run / "model.safetensors").is_file()


def test_a_branch_that_leaves_within_the_warm_up_falls_from_the_rate_reached(run, trunk):
    slow = replace(trunk, optimizer=replace(trunk.optimizer, warmup_updates=64))
    _, above = run(slow)
    assert above[31]["lr"] == slow.lr / 2  # update 32 of a rise over 64
    _, rows = run(branch_of(slow, 0.5))
    fall = [slow.lr / 2 * (1 - i / 8) for i in range(1, 9)]
    assert [r["lr"] for r in rows] == pytest.approx(fall)


def test_a_trunk_keeps_one_checkpoint_for_each_share(run, trunk, tmp_path):
    run(trunk)
    scratch, _ = places(tmp_path, trunk)
    kept = {
        share: checkpoint.load(checkpoint.branch_path(scratch, share))[0] for share in trunk.keep
    }
    assert {share: p.update for share, p in kept.items()} == {0.25: 16, 0.5: 32, 1.0: 64}
    assert all(p.update_seconds > 0 for p in kept.values())


@pytest.mark.parametrize(
    ("budget", "update", "seconds", "pace", "end"),
    [
        ("80 updates", 32, 9.0, 0.1, 40),
        ("5120 tokens", 32, 9.0, 0.1, 40),
        ("100 seconds", 400, 40.0, 0.1, 500),  # half of the budget is 50 s: 10 s are left
        ("100 seconds", 400, 40.0, 0.3, 433),
        ("100 seconds", 400, 51.0, 0.1, 401),  # the last update before it was very long
    ],
)
def test_the_length_of_a_branch_follows_from_the_pace_of_its_trunk(
    cell, budget, update, seconds, pace, end
):
    progress = checkpoint.Progress(
        run="", update=update, train_seconds=seconds, shard=0, tokens_id="", update_seconds=pace
    )
    found = decay(replace(cell, budget=budget, branch=0.5), progress)
    assert found == Decay(peak=cell.lr, start=update, end=end)
    assert found.rate(end, spent=0.5) == 0
    assert found.rate(update, spent=0.4) == cell.rates.rate(update, spent=0.4)


def test_a_branch_that_leaves_within_the_warm_up_starts_at_the_rate_of_its_trunk(cell):
    optimizer = replace(cell.optimizer, warmup_updates=64)
    trunk = replace(cell, budget="80 updates", optimizer=optimizer)
    progress = checkpoint.Progress(
        run="", update=32, train_seconds=9.0, shard=0, tokens_id="", update_seconds=0.1
    )
    found = decay(replace(trunk, branch=0.5), progress)
    assert found.peak == trunk.rates.rate(32, spent=0.4) == cell.lr / 2
    assert found.rate(33, spent=0.4) == cell.lr / 2 * 7 / 8


def test_a_budget_in_time_ends_its_branches_near_their_share(run, cell, monkeypatch):
    """With a clock that says 0.1 s an update, whatever the machine does."""
    trunk = replace(cell, budget="8 seconds", keep=(0.5,))
    monkeypatch.setattr(loop, "Clock", steady_clock)
    made, _ = run(trunk)
    assert made.updates == 80
    made, rows = run(branch_of(trunk, 0.5))
    assert (made.updates, rows[-1]["lr"]) == (40, 0)
    assert made.train_seconds == pytest.approx(4.0)


def steady_clock(seconds=0.0, now=None):
    """A clock on which every look at the time, four an update, takes 25 ms."""

    class Steady(Clock):
        def start(self):
            pass

        def tick(self):
            self.seconds = round(self.seconds + 0.1, 6)
            return self.seconds

    return Steady(seconds)


def test_the_length_is_fixed_once_and_kept_by_every_attempt(run, trunk, tmp_path, monkeypatch):
    run(trunk)
    branch = branch_of(trunk, 0.5)
    plain = loop.Loop._must_stop
    asked = []

    def near(self):
        asked.append(1)
        self._stop_reason = "the test" if len(asked) == 3 else ""
        return plain(self)

    monkeypatch.setattr(loop.Loop, "_must_stop", near)
    with pytest.raises(SystemExit):
        run(branch)
    scratch, _ = places(tmp_path, branch)
    written = entries(scratch / "ledger.jsonl")
    assert [e.end for e in written if e.kind == "branch"] == [40]
    changed = [replace(e, end=42) if e.kind == "branch" else e for e in written]
    (scratch / "ledger.jsonl").write_bytes(b"".join(map(line, changed)))
    made, rows = run(branch)
    assert (made.updates, made.attempts) == (42, 2)
    assert [r["update"] for r in rows] == list(range(33, 43))
    assert rows[-1]["lr"] == 0


def test_a_trunk_that_ended_too_early_leaves_branches_that_say_so(run, trunk):
    run(replace(trunk, budget="1000 updates"))  # the tokens end after 468
    made, rows = run(branch_of(replace(trunk, budget="1000 updates"), 1.0))
    assert (made.status, made.updates, rows) == ("no_trunk", 0, [])
    assert made.message == "the trunk ended as out_of_tokens at 46.8% of the budget"
    made, _ = run(branch_of(replace(trunk, budget="1000 updates"), 0.5))
    assert made.status == "out_of_tokens"


def test_a_share_that_came_too_late_is_told_and_no_failure(run, trunk):
    run(trunk)
    made, _ = run(branch_of(trunk, 0.75))
    assert made.status == "no_trunk"
    assert "branch-0.75.safetensors does not exist: the branch was added" in made.message


def test_a_broken_checkpoint_of_the_trunk_is_an_error_with_its_cure(run, trunk, tmp_path):
    run(trunk)
    path = checkpoint.branch_path(places(tmp_path, trunk)[0], 0.5)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=f"cannot be used.*lmscaling reset {trunk.run}"):
        run(branch_of(trunk, 0.5))


def test_a_branch_that_has_ended_leaves_no_checkpoint_of_its_trunk(run, trunk, tmp_path):
    run(trunk)
    kept = {
        share: checkpoint.branch_path(places(tmp_path, trunk)[0], share) for share in trunk.keep
    }
    assert all(path.is_file() for path in kept.values())
    run(branch_of(trunk, 0.5))
    assert [share for share, path in kept.items() if path.is_file()] == [0.25, 1.0]


def test_two_ranks_agree_on_a_branch(run, trunk, manifest, tmp_path):
    run(trunk)
    kept = checkpoint.branch_path(places(tmp_path, trunk)[0], 0.5)
    shutil.copy(kept, tmp_path)
    _, alone = run(branch_of(trunk, 0.5))
    shutil.move(tmp_path / kept.name, kept)  # it is deleted with the end of its branch
    branch = branch_of(trunk, 0.5)
    (tmp_path / "two.json").write_text(branch.to_json())
    results = tmp_path / "results"
    (results / "scratch").mkdir(parents=True)
    (results / "runs").mkdir()
    for kind in ("scratch", "runs"):
        (results / kind / trunk.run).symlink_to(tmp_path / kind / trunk.run)
    way = calibration(tmp_path, branch, micro_batch=1)
    command = [sys.executable, ROOT / "tests" / "on_ranks.py", tmp_path / "two.json", way]
    subprocess.run([*command, manifest, results], check=True, timeout=120 * slowness())
    record = results / "runs" / branch.run / "run.json"
    assert read_json(record, "record")["updates"] == 40
    both = rows_of(record)
    assert [r["lr"] for r in both] == [r["lr"] for r in alone]
    losses = ([r["train_loss"] for r in rows] for rows in (alone, both))
    assert next(losses) == pytest.approx(next(losses), rel=1e-5)
    ours, theirs = (
        load_file(root / "runs" / branch.run / "model.safetensors") for root in (tmp_path, results)
    )
    for name, tensor in ours.items():
        assert (tensor - theirs[name]).abs().max() < 1e-6, name
