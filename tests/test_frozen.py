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


def test_files_that_differ_from_the_commit_are_known_here_and_in_a_copy(package, tmp_path):
    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", package.src, *names, *words], check=True, capture_output=True)

    def told(name):
        """Whether a file differs, as this process and one that reads a copy say."""
        path = package.package / "attention" / f"{name}.py"
        copy = frozen.freeze(tmp_path / "submitted", RULES, {})
        code = (
            "from lmscaling import registry; from lmscaling.runtime import frozen\n"
            f"print(frozen.differ([registry.PACKAGE / 'attention' / '{name}.py']))"
        )
        environment = os.environ | {"PYTHONPATH": str(copy / "src")}
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert said.stdout == f"{frozen.differ([path])}\n", said.stderr
        return frozen.differ([path])

    assert told("softmax") is None
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    assert told("softmax") is False
    package.write("mine", "x = 1\n")
    assert told("mine") is True
    assert told("softmax") is False
    package.write("softmax", "x = 1\n")
    assert told("softmax") is True


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
