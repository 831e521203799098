"""What differs from the commit, what a study changes, and attention files of a user's folder."""

import json
import os
import subprocess
import sys

import pytest
import strangers
from conftest import refused

from lmscaling import attention, registry
from lmscaling.config import code, study_file
from lmscaling.errors import UserError
from lmscaling.runtime import commit


def through_a_link(package):
    """What a job says of a file, which reaches the package as the workflow lays it out."""
    (package.src / "link").mkdir()
    (package.src / "link" / "lmscaling").symlink_to(package.package)
    code = "from lmscaling import registry; from lmscaling.runtime import commit\n"
    code += "print(commit.differ([registry.PACKAGE / 'attention' / 'softmax.py']))"
    environment = os.environ | {"PYTHONPATH": str(package.src / "link")}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


def test_files_that_differ_from_the_commit_are_known(package):
    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", package.src, *names, *words], check=True, capture_output=True)

    def differs(name):
        return commit.differ([package.package / "attention" / f"{name}.py"])

    assert differs("softmax") is None
    for words in (["init"], ["add", "."], ["commit", "-m", "all"]):
        git(*words)
    package.write("mine", "x = 1\n")
    assert (differs("mine"), differs("softmax")) == (True, False)
    package.write("softmax", "x = 1\n")
    assert differs("softmax") is True
    assert through_a_link(package) == "True\n"


@pytest.mark.parametrize(("before", "now", "told"), [
    ({"a": {"b": "x", "c": 1}}, {"a": {"b": "y", "c": 1}}, ["a.b: x -> y"]),
    ({"a": [1, 2]}, {"a": [2, 3]}, ["a: without 1, with 3"]),
    ({"a": [1, 2]}, {"a": [2, 1]}, ["a: in another order"]),
    ({}, {"a": None}, ["a: not given -> null"]),
    ({"a": 1}, {"a": "x" * 99}, [f"a: 1 -> {'x' * 57}..."]),
])  # fmt: skip
def test_changes_of_a_study_are_named_by_their_keys(tmp_path, before, now, told):
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": before}))
    assert study_file.changes(tmp_path / "study.json", now) == told
    assert study_file.changes(tmp_path / "none.json", now) == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of studies with an attention in it."""
    before = list(attention.__path__)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "mine.py").write_text(strangers.GATE)
    yield tmp_path
    attention.__path__[:] = before
    strangers.forget()


def test_a_file_of_the_folder_is_an_attention_with_its_helpers_and_its_family(folder):
    text = 'from lmscaling.attention import _scales, linear\n\nFAMILY = "linear"\n'
    text += "\n\nclass Attention(linear.Attention):\n    scale = _scales.SCALE\n"
    (folder / "attention" / "yours.py").write_text(text)
    (folder / "attention" / "_scales.py").write_text("SCALE = 2.0\n")
    (folder / "attention" / "__init__.py").touch()
    assert {"mine", "yours", "softmax"} <= set(registry.attentions())
    assert "_scales" not in registry.attentions()
    assert attention.load("mine").__module__ == "lmscaling.attention.mine"
    assert attention.load("yours").scale == 2.0
    names = {registry.name_of(path) for path in registry.attention_sources(["yours"])}
    assert {"attention/yours.py", "attention/_scales.py", "attention/linear.py"} <= names
    assert registry.family("yours") == "linear"
    assert registry.implementations("yours") == registry.implementations("linear")


def test_no_file_may_have_the_name_of_one_of_the_package_whose_own_folder_is_no_users(
    folder, monkeypatch
):
    (folder / "attention" / "softmax.py").write_text(strangers.GATE)
    with refused(UserError, "attention/softmax.py"):
        registry.attentions()
    monkeypatch.chdir(registry.PACKAGE)
    assert registry.own_attention_files() == {}


def test_the_source_of_an_attention_is_kept_as_it_was(folder):
    files = registry.attention_sources(["mine"])
    assert commit.differ(files) in (True, None)  # not of the commit, where there is one
    before = code.fingerprint(files)
    kept = json.loads((folder / "code" / f"{code.keep(files, folder / 'code')}.json").read_text())
    assert kept == {"attention/mine.py": strangers.GATE}
    (folder / "attention" / "mine.py").write_text(f"{strangers.GATE}\n    edited = True\n")
    assert code.fingerprint(registry.attention_sources(["mine"])) != before
