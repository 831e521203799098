"""A folder of results proves itself: what is damaged or lies elsewhere is named and no number."""

import copy
import errno
import json
import os
import shutil
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STUDY, refused, write_tokens
from test_store import (
    ENVIRONMENT,
    ask,
    end,
    evaluation,
    exported,
    header,
    log,
    record,
    runs,
    runs_of,
    study,
    update,
    validation,
    write_study,
)

from lmscaling.cli.text import verify
from lmscaling.errors import UserError
from lmscaling.files import read_json, sha256_of, write_lines, write_record
from lmscaling.model import tensor_file
from lmscaling.report import question
from lmscaling.report.table import query_rows
from lmscaling.status import table
from lmscaling.store import build, whole

__all__ = ["runs", "study"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Four runs with evaluations and weights, a checkpoint and a store."""
    study = write_study(tmp_path_factory.mktemp("made"), copy.deepcopy(STUDY))
    for i, run in enumerate(runs_of(study)):
        loss = 3.0 + i / 8
        rows = header(run), update(1), update(2), validation(2, loss=loss), end(2)
        record(study, run, log(*rows))
        seal(study, run, last_val_loss=loss)
        axes = (evaluation(run, axis=axis) for axis in ("sequence", "document"))
        (study / "evaluations" / run).mkdir(parents=True)
        write_lines(study / EVALUATION.format(run), [log(*axes, evaluation(run, context=8))])
        tensor_file.write(study / "runs" / run / "model.safetensors", {"x": torch.arange(9.0)})
    tensor_file.write(study / "scratch" / "r" / "checkpoint-000000001.safetensors",
                      {"x": torch.ones(3, dtype=torch.bfloat16)}, checkpoint="{}")  # fmt: skip
    build.build(study)
    return study


@pytest.fixture
def kept(made, study):
    """A copy that a test may change."""
    return shutil.copytree(made, study, dirs_exist_ok=True)


def seal(study, run, **values):
    """What ``outcome.publish`` writes beside a log."""
    path = study / "runs" / run / "run.json"
    digest = sha256_of(path.with_name("log.jsonl"))
    write_record(path, {**read_json(path, "record"), "log_sha256": digest, **values})


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def digit(path, key="val_loss"):
    path.write_text(path.read_text().replace(f'"{key}": 3.', f'"{key}": 2.'))


def lose(path):
    """A target, and the digest, which files of before 28 November 2026 do not have."""
    above, _, _ = path.read_text().partition('{"record_sha256')
    path.write_text(above.replace(" 64,", " 63,", 1))


LOG, WEIGHTS = "runs/{0}/log.jsonl", "runs/{0}/model.safetensors"
EVALUATION = "evaluations/{0}/lines-bytes-0.jsonl"
DAMAGE = {
    "half a log": (LOG, cut),
    "one digit of a log": (LOG, digit),
    "no log": (LOG, lambda path: path.unlink()),
    "an empty log": (LOG, lambda path: path.write_bytes(b"")),
    "a flipped bit of a record": ("runs/{0}/run.json", flip),
    "half of the weights": (WEIGHTS, cut),
    "a flipped bit of the weights": (WEIGHTS, flip),
    "a checkpoint": ("scratch/r/checkpoint-000000001.safetensors", flip),
    "half an evaluation": (EVALUATION, cut),
    "an older evaluation that lacks a line": (EVALUATION, lose),
    "one digit of an evaluation": (EVALUATION, lambda path: digit(path, "loss")),
    "a Parquet file of the store": ("store/validations.parquet", flip),
    "a cell": ("cells/{0}.json", lambda path: (path.parent.mkdir(), path.write_text("{"))),
    "nested JSON": ("runs/{0}/run.json", lambda path: path.write_text("[" * 100_000)),
    "a number of 5,000 digits": ("runs/{0}/run.json", lambda path: path.write_text("9" * 5000)),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_any_file_is_named(kept, runs, what):
    name, damage = DAMAGE[what]
    path = kept / name.format(runs[0])
    damage(path)
    assert any(str(path) in sentence for sentence in whole.problems(kept))


def test_verify_says_that_a_study_and_its_text_are_whole_or_names_what_is_not(kept, runs, capsys):
    text = kept / "tokens" / "t"
    write_tokens(text, [3000], [1000])
    options = Namespace(folder=kept, tokens=False, mark=None, threads=1)
    assert str(len(runs)) in verify(options)
    flip(text / "train-00000.bin")  # of which only --tokens reads every token
    verify(options)
    cut(text / "train-00000.bin")
    digit(kept / LOG.format(runs[0]))
    with refused(UserError, 3, str(kept)):
        verify(options)
    told = capsys.readouterr().err
    assert LOG.format(runs[0]) in told
    assert "train-00000.bin" in told


def test_what_has_changed_or_lies_in_the_folder_of_another_run_is_no_number(kept, runs):
    changed, moved, fine = runs
    digit(kept / LOG.format(changed))
    for kind in ("runs", "evaluations"):
        shutil.copytree(kept / kind / fine, kept / kind / moved, dirs_exist_ok=True)
    problems = list(whole.problems(kept))
    query = "SELECT run FROM {} ORDER BY run"
    build.build(kept)
    for name in ("validations", "final", "evaluations"):
        assert {run for (run,) in exported(kept, query.format(name))} == {fine}, name
    found = dict(exported(kept, "SELECT run, status FROM status WHERE skipped IS NULL"))
    assert found == {fine: "done"} | dict.fromkeys((changed, moved), "damaged")
    lines = table.progress(kept).splitlines()
    for run in (changed, moved):
        assert any(run in problem for problem in problems)
        assert any(x.split()[:2] == [run.rpartition("-")[0], "damaged"] for x in lines)


def test_a_store_of_other_logs_is_named_until_it_is_built_again(kept, runs):
    path = kept / "runs" / runs[0] / "log.jsonl"
    digit(path)
    seal(kept, runs[0], last_val_loss=2.0)
    problems = [*whole.problems(kept)]  # of the log, of the record and of its copy
    assert problems
    assert all(runs[0] in problem for problem in problems)
    build.build(kept)
    assert list(whole.problems(kept)) == []


def test_a_store_is_built_again_when_a_file_of_it_or_the_code_has_changed(kept, monkeypatch):
    counts, store = build.build(kept), kept / "store"
    written = {path: path.stat().st_mtime_ns for path in store.iterdir()}

    def stays():
        assert build.build(kept) == counts
        return written == {path: path.stat().st_mtime_ns for path in store.iterdir()}

    assert stays()
    (store / "gaps.parquet").write_bytes(b"")
    assert not stays()
    written = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    monkeypatch.setattr(build, "version", lambda package: "another")
    assert not stays()
    written = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    (store / "gaps.csv").unlink()
    build.build(kept)
    assert (store / "gaps.csv").is_file()
    written = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    attempt = kept / "scratch" / "begun" / "attempt-0.jsonl"
    attempt.parent.mkdir(parents=True)
    attempt.write_bytes(log(header("begun"), update(1)))
    build.build(kept)
    assert written != {path: path.stat().st_mtime_ns for path in store.iterdir()}


def test_an_evaluation_that_has_changed_is_no_number(kept, runs):
    digit(kept / EVALUATION.format(runs[0]), "loss")
    found = ask(kept, "SELECT run FROM evaluations")
    assert {run for (run,) in found} == {*runs[1:]}


NUMBERS = ("1e400", "NaN", str(10**400), str(10**30), "true")


def test_a_number_that_no_table_can_hold_costs_one_run(study, runs):
    for i, (field, value) in enumerate(product(("updates", "train_seconds"), NUMBERS)):
        run = f"r-{i}"
        record(study, run, log(header(run)))
        path = study / "runs" / run / "run.json"
        values = json.loads(path.read_text()) | {field: "here"}
        path.write_text(json.dumps(values).replace('"here"', value))
    record(study, runs[0], log(header(runs[0])))
    found = dict(ask(study, "SELECT run, status FROM runs"))
    assert [run for run in found if found[run] == "done"] == ["r-8", runs[0]]  # 1e30 seconds
    assert len(found) == 11


def test_what_was_compared_across_devices_or_versions_is_said_with_its_place(study):
    """Of a run all its attempts count; a record of before 28 November 2026 names the last."""
    for i, run in enumerate(runs_of(study)):
        here = ENVIRONMENT | {"device": "H100" if i == 2 else "A100", "versions": {"torch": "2.9"}}
        other = here | {"versions": {"torch": "2.1"}}
        seen: dict[str, Any] = {"environments": [other, here]} if i == 0 else {}
        record(study, run, log(header(run), update(1), end(1)), environment=here, **seen)
    build.build(study)
    with build.connect(study / "store") as db:
        rows = query_rows(db, question.MIXED)
    assert [(row["size"], row["context"], row["found"]) for row in rows] == [
        ("s", 16, ["A100", "H100"]), ("s", 16, ["PyTorch 2.1", "PyTorch 2.9"]),
    ]  # fmt: skip


def test_what_another_user_keeps_to_himself_costs_one_run_or_is_one_sentence(
    kept, runs, monkeypatch
):
    plain, record = Path.open, kept / "runs" / runs[0] / "run.json"

    def read(path, *args, **options):
        if path == record:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, *args, **options)

    monkeypatch.setattr(Path, "open", read)
    found = dict(ask(kept, "SELECT run, status FROM runs"))
    assert found == dict.fromkeys(runs, "done") | {runs[0]: "damaged"}
    (kept / "store" / build.CONTENTS).unlink()
    monkeypatch.setattr(build, "new_folder", lambda path: read(record))
    with refused(UserError, "chmod -R g+rwX"):
        build.build(kept)
