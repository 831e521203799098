"""What a newcomer types first: `lmscaling new` in an empty folder, and examples of documents."""

import ast
import doctest
import importlib
import json
import shutil
import sys

import pytest
import torch
import yaml
from conftest import ROOT, sentence
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling import attention
from lmscaling.bench.checks import variant
from lmscaling.cli import main
from lmscaling.config import grid, study_file
from lmscaling.store import build as store

DOCUMENTED = ("attention", "study")
FILES = {
    "README.md", "Snakefile", "attention/mine.py", "config/first.yaml", "config/study.schema.json",
    "config/study.yaml", "profiles/default/config.yaml", "profiles/slurm/config.yaml",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    before = list(attention.__path__)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    attention.__path__[:] = before


def type_(monkeypatch, *words):
    """The exit message of a command; empty if it succeeds."""
    monkeypatch.setattr(sys, "argv", ["lmscaling", *words])
    try:
        main()
    except SystemExit as end:
        return str(end.code)
    return ""


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_new_writes_a_study_to_plan_and_a_right_attention(folder, monkeypatch, capsys):
    assert type_(monkeypatch, "new", "first") == ""
    assert "config/first.yaml" in capsys.readouterr().out.splitlines()[-1]
    made = {name for name in files(folder) if not name.startswith(("results/", "slurm/"))}
    assert made == FILES
    assert (folder / "slurm").resolve() == folder / "profiles" / "slurm"
    published = ROOT / "results" / "published"
    for path in [*published.glob("*.csv"), published / "README.md"]:
        assert (folder / "results" / "published" / path.name).read_bytes() == path.read_bytes()
    text = (folder / "config" / "first.yaml").read_text()
    (folder / "config" / "first.yaml").write_text(text.replace("linear] # mine", "linear, mine]"))
    values = study_file.read_study([folder / "config" / "study.yaml", folder / "config/first.yaml"])
    assert grid.expand(values).results == "results/first"
    names = {cell.attention for cell in grid.expand(values).cells.values()}
    assert names == {"softmax", "linear", "mine"}
    for masked in (False, True):
        mine = variant.Variant(name="mine", rotated=True, masked=masked)
        variant.check(mine, torch.device("cpu"))
    readme = (folder / "README.md").read_text()
    assert "config/first.yaml" in readme
    assert "my_attention" not in readme


def test_new_overwrites_nothing_and_another_study_shares_the_folder(folder, monkeypatch):
    (folder / "README.md").write_text("mine")
    assert type_(monkeypatch, "new", "first") == ""
    (folder / "attention" / "mine.py").write_text("edited")
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    said = type_(monkeypatch, "new", "first")
    assert "config/first.yaml" in said
    sentence("new", said)
    assert type_(monkeypatch, "new", "second") == ""
    assert files(folder) - before.keys() == {"config/second.yaml"}
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert yaml.safe_load((folder / "config/second.yaml").read_text())["study"] == "second"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("a b", "'a_b'"), ("../x", ""), ("demo", ""), ("study", ""), ("published", ""),
     ("010", "my_010"), ("true", "")],
)  # fmt: skip
def test_a_name_that_cannot_be_used_is_refused(folder, monkeypatch, name, nearest):
    said = type_(monkeypatch, "new", name)
    assert name in said
    assert nearest in said
    sentence("new", said)
    assert files(folder) == set()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_in_docstrings_run(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = doctest.testmod(importlib.import_module(f"lmscaling.{name}"))
    assert done.attempted > 2
    assert not done.failed


def shown(cell, names):
    """Run a cell as a notebook does; the value of its last expression."""
    *before, last = ast.parse("".join(cell["source"])).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "notebook", "exec"), names)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)


def test_every_cell_of_the_notebook_shows_something_and_none_is_saved(tmp_path, monkeypatch):
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shutil.copytree(ROOT / "results" / "published", tmp_path / "results" / "published")
    store.build(tmp_path / "results" / "published")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    names = {}
    values = [shown(cell, names) for cell in cells]
    for value in values:
        assert len(value) if isinstance(value, DataFrame) else value
    assert any(isinstance(value, Figure) for value in values)
    for name, truth in (("alpha", 0.34), ("beta", 0.28)):
        assert truth in names["law"].intervals[name]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
