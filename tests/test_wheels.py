"""A dataset of kind wheels is made of packages that pip downloads by name and hash."""

import hashlib
import zipfile
from dataclasses import replace

import pytest
from conftest import refused

from lmscaling.data.kinds.wheels import Wheels
from lmscaling.errors import UserError
from lmscaling.files import read_json

NAME = "text-1.0-py3-none-any.whl"
FILES = {
    "text/__init__.py": "", "text/b.py": "b = 2\n", "text/a.py": "a = 1\n",
    "text/notes.rst": "Notes\n=====\n", "text-1.0.dist-info/RECORD": "",
    "text-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: text\nVersion: 1.0\n",
    "text-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}  # fmt: skip


@pytest.fixture
def row(tmp_path, monkeypatch):
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / NAME, "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    sha256 = hashlib.sha256((index / NAME).read_bytes()).hexdigest()
    return Wheels(kind="wheels", wheels={NAME: sha256}, holdout=0.5)


def texts(row, wheel):
    return sorted(x for split in ("train", "validation") for x in row.read(split, 0, wheel).texts)


def test_pip_fetches_a_wheel_whose_sources_are_the_documents(row, tmp_path):
    out = tmp_path / "sources" / NAME
    out.parent.mkdir()
    assert row.fetch(NAME, out) == read_json(out.with_name(f"{NAME}.fetched.json"), "description")
    assert texts(row, out) == ["a = 1\n", "b = 2\n"]  # no empty file, no other one
    described = row.read("train", 0, out).describe_file()
    assert described == {"bytes": out.stat().st_size, "sha256": row.wheels[NAME]}
    assert texts(replace(row, names=["*.rst"]), out) == ["Notes\n=====\n"]


def test_a_wheel_with_another_hash_or_of_one_platform_is_refused(row, tmp_path):
    with refused(UserError, "pip", NAME):
        replace(row, wheels={NAME: "0" * 64}).fetch(NAME, tmp_path / "out.whl")
    assert not (tmp_path / "out.whl").exists()
    with refused(ValueError, "text-1.0-cp311-cp311-linux_x86_64.whl"):
        Wheels(kind="wheels", wheels={"text-1.0-cp311-cp311-linux_x86_64.whl": "0" * 64})
