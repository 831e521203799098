"""What a submission copies for its jobs, and what a study has changed since."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from lmscaling.config import study_file
from lmscaling.runtime import frozen

RULES = ROOT / "workflow"


def test_the_same_state_is_copied_once_and_another_one_beside_it(tmp_path):
    first = frozen.freeze(tmp_path, RULES, {"budget": "4 updates"})
    before = first.stat().st_ino
    assert frozen.freeze(tmp_path, RULES, {"budget": "4 updates"}) == first
    assert first.stat().st_ino == before
    assert frozen.freeze(tmp_path, RULES, {"budget": "5 updates"}) != first
    assert len(list(tmp_path.iterdir())) == 2
    assert json.loads((first / "study.json").read_text()) == {"budget": "4 updates"}
    assert (first / "workflow" / "Snakefile").read_bytes() == (RULES / "Snakefile").read_bytes()
    assert not list(first.rglob("__pycache__"))


def test_a_process_that_starts_later_reads_the_copy_and_the_commit_of_the_original(
    tmp_path, monkeypatch
):
    copy = frozen.freeze(tmp_path, RULES, {})
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    frozen.use(copy)
    code = "from lmscaling.runtime import frozen; print(frozen.here(), frozen.commit())"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert said == f"{copy} {frozen.commit()}\n"
    assert frozen.here() is None
    assert os.environ["PYTHONPATH"].startswith(str(copy))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a: 1 -> 2"]),
        ({"a": {"b": "x", "c": 1}}, {"a": {"b": "y", "c": 1}}, ["a.b: x -> y"]),
        ({"a": [1, 2]}, {"a": [2, 3]}, ["a: without 1, with 3"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["a: in another order"]),
        ({}, {"a": None}, ["a: not given -> null"]),
        ({"a": 1}, {"a": "x" * 99}, [f"a: 1 -> {'x' * 57}..."]),
    ],
)
def test_changes_of_a_study_are_named_by_their_keys(tmp_path, before, now, said):
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": before}))
    assert study_file.changes(tmp_path / "study.json", now) == said
    assert study_file.changes(tmp_path / "none.json", now) == []
