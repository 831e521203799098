"""Attention files of a user's folder: they count as those of the package do."""

import json
import os
import subprocess
import sys

import pytest
import strangers
from conftest import ROOT, refused

from lmscaling import attention, registry
from lmscaling.config import code
from lmscaling.errors import UserError
from lmscaling.runtime import frozen


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
    (folder / "attention" / "yours.py").write_text(
        text + "\n\nclass Attention(linear.Attention):\n    scale = _scales.SCALE\n"
    )
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


def test_no_file_may_have_the_name_of_an_attention_of_the_package(folder):
    (folder / "attention" / "softmax.py").write_text(strangers.GATE)
    with refused(UserError, "attention/softmax.py"):
        registry.attentions()


def test_the_folder_of_the_package_itself_is_none_of_a_user(monkeypatch):
    monkeypatch.chdir(registry.PACKAGE)
    assert registry.own_attention_files() == {}


def test_jobs_read_the_file_as_it_was_when_they_were_submitted(folder):
    def told(path):
        """What a process says that reads the package from this folder."""
        script = (
            "from lmscaling import attention, registry\n"
            "from lmscaling.config import code\n"
            "from lmscaling.runtime import frozen\n"
            "files = registry.attention_sources(['mine'])\n"
            "attend = attention.load('mine')\n"
            "print(code.fingerprint(files), hasattr(attend, 'edited'), frozen.differ(files))"
        )
        environment = os.environ | {"PYTHONPATH": str(path)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert not done.returncode, done.stderr
        return done.stdout.split()

    files = registry.attention_sources(["mine"])
    assert frozen.differ(files) in (True, None)  # not of the commit, where there is one
    before = code.fingerprint(files)
    kept = json.loads((folder / "code" / f"{code.keep(files, folder / 'code')}.json").read_text())
    assert kept == {"attention/mine.py": strangers.GATE}
    copy = frozen.freeze(folder / "submitted", ROOT / "workflow", {})
    (folder / "attention" / "mine.py").write_text(f"{strangers.GATE}\n    edited = True\n")
    assert told(copy / "src") == [before, "False", str(frozen.differ(files))]
    fingerprint, edited, _ = told(ROOT / "src")
    assert (fingerprint != before, edited) == (True, "True")
    assert frozen.freeze(folder / "submitted", ROOT / "workflow", {}) != copy
