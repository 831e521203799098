"""A run that is killed goes on as if it had not been: weights, data order and log are the same."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import ROOT, write_tokens
from safetensors.torch import load_file, save_file

from lmscaling.config import grid
from lmscaling.config.cell import branch_checkpoint
from lmscaling.files import read_json
from lmscaling.records.ledger import Entry, account, entries, hold
from lmscaling.train import checkpoint, loop
from lmscaling.train.ledger import Ledger
from lmscaling.train.run import train

TIMED = {"attempt", "train_seconds", "tokens_per_second", "peak_memory_bytes", "record"}


@pytest.fixture
def long(cell):
    """A cell of 1500 short updates: a few seconds, in which there is time to be killed."""
    validation = replace(cell.validation, every_tokens=64 * 100)
    return replace(cell, budget="1500 updates", validation=validation)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"), [30_000, 400_000], [1000])


def killed(cell, manifest, out, signals, seed=0):
    out.mkdir(exist_ok=True)
    (out / "cell.json").write_text(cell.to_json())
    command = [sys.executable, ROOT / "tests" / "forked.py", out / "cell.json", manifest, out]
    done = subprocess.run(
        [*command, json.dumps([int(s) for s in signals]), str(seed)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def surviving(out):
    """The rows of the surviving trajectory without the columns that time makes different."""
    rows = [json.loads(line) for line in whole_lines(out / "run" / "log.jsonl")]
    starts = {r["attempt"]: r["start_update"] for r in rows if r["record"] == "header"}
    kept = {}
    for row in rows:
        if row["record"] not in ("update", "gradients", "validation"):
            continue
        limit = min((s for a, s in starts.items() if a > row["attempt"]), default=row["update"])
        if row["update"] <= limit:
            assert (row["record"], row["update"]) not in kept
            values = {k: v for k, v in row.items() if k not in TIMED}
            kept[row["record"], row["update"]] = values
    return kept


def whole_lines(path):
    for line in path.read_text().split("\n"):
        try:
            json.loads(line)
        except ValueError:
            continue
        yield line


@pytest.mark.ci
@pytest.mark.parametrize(
    "kills",
    [4, 20, pytest.param(100, marks=pytest.mark.slow)],
    ids="{} kills".format,
)
def test_killed_at_random_moments_it_ends_as_if_undisturbed(long, manifest, tmp_path, kills):
    long = replace(long, budget=f"{60 * kills} updates")
    plain, _ = killed(long, manifest, tmp_path / "plain", [])
    codes, _ = killed(long, manifest, tmp_path / "killed", [signal.SIGKILL] * kills, seed=kills)
    assert plain == [0]
    assert codes[-1] == 0
    assert codes[:-1] == [-signal.SIGKILL] * kills
    assert surviving(tmp_path / "killed") == surviving(tmp_path / "plain")
    weights = [
        (tmp_path / n / "run" / "model.safetensors").read_bytes() for n in ("plain", "killed")
    ]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_trunk_and_branch_killed_at_random_moments_end_as_if_undisturbed(
    values, manifest, tmp_path, attention
):
    """Twenty kills of each; with both attentions they are 80."""
    values |= {"budget": "2400 updates", "branches": {"shares": [0.5], "size": "s"}}
    values["validation"]["every_tokens"] = 6400
    laid_out = grid.expand(values)
    (trunk,) = (c for c in laid_out.cells.values() if c.attention == attention)
    (branch,) = (c for c in laid_out.branches.values() if c.attention == attention)
    kills = [signal.SIGKILL] * 20
    for cell in (trunk, branch):
        for name, signals in (("plain", []), ("killed", kills)):
            out = tmp_path / f"{name}-{cell.name}"
            if cell.branch:  # its trunk's checkpoint, beside its own scratch folder
                begin = tmp_path / f"{name}-{trunk.name}" / "scratch" / branch_checkpoint(0.5)
                (out / trunk.run).mkdir(parents=True)
                shutil.copy(begin, out / trunk.run)
            codes, _ = killed(cell, manifest, out, signals, seed=7)
            assert codes == [-signal.SIGKILL] * len(signals) + [0]
        plain, after = (tmp_path / f"{name}-{cell.name}" for name in ("plain", "killed"))
        assert surviving(after) == surviving(plain)
        weights = [(out / "run" / "model.safetensors").read_bytes() for out in (plain, after)]
        assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGUSR1, marks=pytest.mark.ci),
        pytest.param(signal.SIGINT, marks=pytest.mark.ci),
    ],
)
def test_asked_to_stop_it_saves_at_the_border_and_loses_nothing(long, manifest, tmp_path, sent):
    codes, _ = killed(long, manifest, tmp_path / "asked", [sent, sent])
    assert codes == [75, 75, 0]
    record = read_json(tmp_path / "asked" / "run" / "run.json", "run")
    assert (record["status"], record["updates"], record["attempts"]) == ("done", 1500, 3)
    assert record["lost_seconds"] == 0
    log = (tmp_path / "asked" / "run" / "log.jsonl").read_text()
    assert f"asked to stop by {sent.name}" in log


@pytest.mark.ci
def test_time_that_was_trained_again_is_recorded_as_lost(long, manifest, tmp_path):
    killed(long, manifest, tmp_path / "killed", [signal.SIGKILL] * 3)
    record = read_json(tmp_path / "killed" / "run" / "run.json", "run")
    assert record["lost_seconds"] >= 0
    assert record["attempt_seconds"] >= record["train_seconds"]


def test_an_hours_budget_is_held_to_one_update_after_three_kills(cell, manifest, tmp_path):
    short = replace(cell, budget="1.5 seconds")
    codes, _ = killed(short, manifest, tmp_path / "timed", [signal.SIGKILL] * 3)
    assert codes == [-9, -9, -9, 0]
    record = read_json(tmp_path / "timed" / "run" / "run.json", "run")
    rows = [json.loads(x) for x in whole_lines(tmp_path / "timed" / "run" / "log.jsonl")]
    last = [r for r in rows if r["record"] == "update" and r["attempt"] == 4]
    assert record["status"] == "done"
    assert last[-1]["train_seconds"] >= 1.5 > last[-2]["train_seconds"]
    assert record["train_seconds"] == last[-1]["train_seconds"]


@pytest.fixture
def stopped(long, manifest, tmp_path, monkeypatch):
    """A run stopped on its way, with two checkpoints; returns a function that goes on with it."""
    (tmp_path / "cell.json").write_text(long.to_json())
    places = tmp_path / "cell.json", manifest, tmp_path / "scratch", tmp_path / "run" / "run.json"
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    asked = []
    plain = loop.Loop._must_stop

    def near(self):
        asked.append(1)
        self._stop_reason = "the test" if len(asked) == 50 else ""
        return plain(self)

    monkeypatch.setattr(loop.Loop, "_must_stop", near)
    with pytest.raises(SystemExit) as stop:
        train(*places)
    assert stop.value.code == 75
    assert [p.name[11:20] for p in checkpoint.paths(tmp_path / "scratch")] == [
        "000000050",
        "000000049",
    ]
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 900.0)
    return lambda: train(*places)


def start_of_last(tmp_path):
    headers = [json.loads(x) for x in whole_lines(tmp_path / "run" / "log.jsonl") if "header" in x]
    return headers[-1]["start_update"]


def test_it_goes_on_from_the_newest_checkpoint(stopped, tmp_path):
    assert stopped().updates == 1500
    assert start_of_last(tmp_path) == 50
    assert not list((tmp_path / "scratch").glob("checkpoint-*"))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another(field, value):
    def change(path):
        progress, tensors, _ = checkpoint.load(path)
        changed = {**vars(progress), field: value}
        save_file(tensors, path, {"progress": json.dumps(changed)})

    return change


SPOILED = [
    (cut, "is not used"),
    (lambda path: path.write_bytes(b""), "is not used"),
    (
        of_another("run", "softmax-s-ctx16-s0-00000000"),
        "it belongs to run softmax-s-ctx16-s0-00000000",
    ),
    (of_another("mood", "fine"), "another version of lmscaling wrote it"),
    (
        of_another("tokens_id", "f" * 64),
        "it has read tokens ffffffffffff up to shard 0, and the tokens here",
    ),
]


@pytest.mark.ci
@pytest.mark.parametrize(("spoil", "sentence"), SPOILED)
def test_a_spoiled_checkpoint_is_named_and_the_one_before_is_used(
    stopped, tmp_path, capfd, spoil, sentence
):
    newest, _ = checkpoint.paths(tmp_path / "scratch")
    spoil(newest)
    assert stopped().updates == 1500
    assert start_of_last(tmp_path) == 49
    said = capfd.readouterr().err
    assert sentence in said
    assert newest.name in said


def test_without_any_checkpoint_it_begins_again(stopped, tmp_path):
    for path in checkpoint.paths(tmp_path / "scratch"):
        path.unlink()
    assert stopped().updates == 1500
    assert start_of_last(tmp_path) == 0


def test_a_finished_run_leaves_its_weights(stopped, tmp_path):
    stopped()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["wte.weight"].shape == (320, 8)


def entry(kind, attempt, train, spent):
    return Entry(kind=kind, attempt=attempt, update=0, train_seconds=train, attempt_seconds=spent)


def test_the_account_adds_attempts_and_what_was_lost_between_them():
    written = [
        entry("begin", 1, 0.0, 0.0), entry("checkpoint", 1, 50.0, 60.0),
        entry("beat", 1, 80.0, 95.0),
        entry("begin", 2, 50.0, 0.0), entry("beat", 2, 55.0, 6.0),
        entry("begin", 3, 50.0, 0.0), entry("checkpoint", 3, 90.0, 45.0),
    ]  # fmt: skip
    spent = account(written)
    assert spent.lost_seconds == 30.0 + 5.0
    assert spent.attempt_seconds == 95.0 + 6.0 + 45.0
    assert hold(written) is None
    assert account([]).lost_seconds == 0


def test_a_ledger_survives_a_cut_last_line(tmp_path):
    with Ledger(tmp_path, 1) as ledger:
        ledger.write("begin", 0, 0.0)
        ledger.write("checkpoint", 5, 1.0)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with Ledger(tmp_path, 2) as ledger:
        ledger.write("begin", 0, 0.0)
    assert [(e.attempt, e.kind) for e in entries(path)] == [(1, "begin"), (2, "begin")]
