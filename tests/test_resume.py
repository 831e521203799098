"""A run that is killed goes on as if it had not been: weights, data order and log are the same."""

import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace

import pytest
from conftest import STUDY, write_tokens
from forked import killed
from safetensors.torch import load_file

from lmscaling.config import grid
from lmscaling.files import read_json
from lmscaling.train import checkpoint
from lmscaling.train.module import Training
from lmscaling.train.run import train

TIMED = {"attempt", "train_seconds", "tokens_per_second", "peak_memory_bytes", "record"}
UPDATES = 80
STOPPED = 50
"""The update after which the run of the fixture was asked to stop."""
pytestmark = pytest.mark.race


@pytest.fixture
def often(cell):
    """A cell that is validated now and then, in a run of any length."""
    return replace(cell, validation=replace(cell.validation, every_tokens=64 * 100))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"), [30_000, 400_000], [1000])


def surviving(out):
    """The rows of the surviving trajectory without the columns that time makes different."""
    rows = rows_of(out)
    starts = {r["attempt"]: r["start_update"] for r in rows if r["record"] == "header"}
    kept = {}
    for row in rows:
        if row["record"] not in ("update", "gradients", "validation"):
            continue
        limit = min((s for a, s in starts.items() if a > row["attempt"]), default=row["update"])
        if row["update"] <= limit:
            assert (row["record"], row["update"]) not in kept
            kept[row["record"], row["update"]] = {k: row[k] for k in row.keys() - TIMED}
    return kept


def rows_of(out):
    """The rows of a log, without what a kill has cut."""
    rows = []
    for line in (out / "run" / "log.jsonl").open():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def assert_alike(one, other):
    assert surviving(one) == surviving(other)
    weights = [(out / "run" / "model.safetensors").read_bytes() for out in (one, other)]
    assert weights[0] == weights[1]


@pytest.mark.ci
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_as_if_undisturbed(often, manifest, tmp_path, kills):
    often = replace(often, budget=f"{80 * kills} updates")
    assert killed(often, manifest, tmp_path / "plain", [])[0] == [0]
    codes, _ = killed(often, manifest, tmp_path / "killed", [signal.SIGKILL] * kills, seed=kills)
    assert codes == [-signal.SIGKILL] * kills + [0]
    assert_alike(tmp_path / "killed", tmp_path / "plain")
    record = read_json(tmp_path / "killed" / "run" / "run.json", "run")
    assert record["lost_seconds"] >= 0
    assert record["attempt_seconds"] >= record["train_seconds"]


def test_a_run_of_muon_goes_on_with_the_moments_of_both_optimizers(often, manifest, tmp_path):
    muon = replace(often.optimizer, kind="muon")
    often = replace(often, budget="100 updates", optimizer=muon)
    assert killed(often, manifest, tmp_path / "plain", [])[0] == [0]
    assert killed(often, manifest, tmp_path / "killed", [signal.SIGTERM])[0] == [75, 0]
    assert_alike(tmp_path / "killed", tmp_path / "plain")


def test_asked_to_stop_it_saves_at_the_border_and_loses_nothing(often, manifest, tmp_path):
    often = replace(often, budget="300 updates")
    requests = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
    codes, _ = killed(often, manifest, tmp_path / "asked", requests)
    assert codes == [75, 75, 75, 0]
    record = read_json(tmp_path / "asked" / "run" / "run.json", "run")
    assert (record["status"], record["updates"], record["attempts"]) == ("done", 300, 4)
    assert record["lost_seconds"] == 0
    ends = [row["message"] for row in rows_of(tmp_path / "asked") if row["record"] == "end"]
    for message, sent in zip(ends, requests, strict=False):
        assert message.endswith(sent.name)


def test_an_hours_budget_is_held_to_one_update_after_three_kills(cell, manifest, tmp_path):
    short = replace(cell, budget="2 seconds")
    codes, _ = killed(short, manifest, tmp_path / "timed", [signal.SIGKILL] * 3, most=1)
    assert codes == [-9, -9, -9, 0]
    record = read_json(tmp_path / "timed" / "run" / "run.json", "run")
    last = [r for r in rows_of(tmp_path / "timed") if r["record"] == "update"]
    assert {r["attempt"] for r in last[-2:]} == {4}
    assert record["status"] == "done"
    assert last[-1]["train_seconds"] >= 2 > last[-2]["train_seconds"]
    assert record["train_seconds"] == last[-1]["train_seconds"]


@pytest.fixture(scope="module")
def stopped_once(manifest, tmp_path_factory):
    """A run asked to stop on its way, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    cell = next(c for c in grid.expand(STUDY).cells.values() if c.attention == "linear")
    (folder / "cell.json").write_text(replace(cell, budget=f"{UPDATES} updates").to_json())
    plain = Training.training_step

    def update(self, slab, batch_idx):
        if self.updates + 1 == STOPPED:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, slab, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(Training, "training_step", update)
        with pytest.raises(SystemExit) as stop:
            train(folder / "cell.json", manifest, folder / "scratch", folder / "run" / "run.json")
    assert stop.value.code == 75
    saved = [checkpoint.load(p).progress.update for p in checkpoint.paths(folder / "scratch")]
    assert saved == [STOPPED, STOPPED - 1]
    return folder


@pytest.fixture
def stopped(stopped_once, manifest, tmp_path):
    """A copy of that run; returns a function that goes on with it, and where it then started."""
    shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True)

    def go_on():
        record = tmp_path / "run" / "run.json"
        made = train(tmp_path / "cell.json", manifest, tmp_path / "scratch", record)
        assert made
        assert made.updates == UPDATES
        return [r["start_update"] for r in rows_of(tmp_path) if r["record"] == "header"][-1]

    return go_on


@pytest.mark.parametrize(("kept", "start"), [(2, STOPPED), (0, 0)])
def test_it_goes_on_from_the_newest_checkpoint_if_any_and_leaves_its_weights(
    stopped, tmp_path, kept, start
):
    for path in checkpoint.paths(tmp_path / "scratch")[kept:]:
        path.unlink()
    assert stopped() == start
    assert not list((tmp_path / "scratch").glob("checkpoint-*"))
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["wte.weight"].shape == (320, 8)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another(field, value):
    def change(path):
        io, content = checkpoint.SafetensorsIO(), checkpoint.load(path).content
        io.save_checkpoint(content | {"Text": content["Text"] | {field: value}}, path)
        io.wait()

    return change


@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (cut, ""),
        (of_another("run", "softmax-s-ctx16-s0-00000000"), "softmax-s-ctx16-s0-00000000"),
        (of_another("mood", "fine"), "version"),
        (of_another("tokens_id", "f" * 64), "ffffffffffff"),
    ],
    ids=["cut", "another run", "another version", "other tokens"],
)
def test_a_spoiled_checkpoint_is_named_and_the_one_before_is_used(
    stopped, tmp_path, capfd, spoil, value
):
    newest, _ = checkpoint.paths(tmp_path / "scratch")
    spoil(newest)
    assert stopped() == STOPPED - 1
    said = capfd.readouterr().err
    assert newest.name in said
    assert value in said
