"""The package from Python: mistakes, queries, what it loads, and what its documents show."""

import ast
import doctest
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, refused
from matplotlib.figure import Figure
from pandas import DataFrame

import lmscaling
from lmscaling import Study, UserError, registry, study
from lmscaling.store import build as store

PUBLISHED = ROOT / "results" / "published"
DOCUMENTED = (
    "lmscaling.attention", "lmscaling.kernels.functional", "lmscaling.kernels.gated_delta.chunked",
    "lmscaling.study",
)  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published numbers, with a store."""
    folder = tmp_path_factory.mktemp("results") / "published"
    shutil.copytree(PUBLISHED, folder)
    store.build(folder)
    return Study(folder)


@pytest.fixture(scope="module")
def verdicts(published):
    return published.claims()


def in_new_process(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


def test_verdicts_are_those_of_the_claims(verdicts):
    assert verdicts.claim.tolist() == list(registry.claims())
    assert {"holds", "fails", "not tested"} == set(verdicts.verdict)


MISTAKES = [
    (lambda one: Study("results/publishd"), "publishd", "results/published"),
    (lambda one: Study(PUBLISHED / "runs.csv"), "runs.csv"),
    (lambda one: Study(ROOT / "src"), "src", "study.json"),
    (lambda one: one.fit("surfce"), "'surfce'", "nearest is 'surface'"),
    (lambda one: one.fit("surface", size="124M"), "'surface'", "size"),
    (lambda one: one.multiplier("sofmax"), "'sofmax'", "nearest is 'softmax'"),
    (lambda one: one.gap("linear", "sofmax"), "'sofmax'", "nearest is 'softmax'"),
    (lambda one: one.gap("softmax"), "softmax", "itself", "linear"),
    (lambda one: one.final(size="125M"), "'125M'", "nearest is '124M'"),
    (lambda one: one.curves(context=1000), "1000", "nearest is '1024'"),
    (lambda one: one.curves("hour"), "'hour'", "nearest is 'hours'"),
    (lambda one: one.figure("contextscaling"), "nearest is 'context_scaling'"),
    (lambda one: one.query("SELECT 1; SELECT 2"), "SELECT, SELECT"),
    (lambda one: one.query(" "), "none"),
]
OF_DUCKDB = [("FROM finl", '"final"'), ("SELECT los FROM final", '"loss"'), ("SELEC 1", "SELEC")]


def test_a_mistake_is_one_sentence_with_the_nearest_name(published, monkeypatch):
    monkeypatch.chdir(ROOT)
    for make, *named in MISTAKES:
        with refused(UserError, *named) as caught:
            make(published)
        assert "\n" not in str(caught.value)
    for sql, named in OF_DUCKDB:  # whose words are those of its version
        with pytest.raises(UserError, match=named) as caught:
            published.query(sql)
        assert "\n" not in str(caught.value)


WRITES = (
    "COPY (SELECT 1) TO 'x.csv'", "CREATE TABLE x AS SELECT 1", "DROP VIEW final",
    "ATTACH 'x.duckdb'", "EXPORT DATABASE 'x'", "INSTALL httpfs", "SET memory_limit = '1MB'",
    "SELECT 1; COPY (SELECT 1) TO 'x.csv'",
)  # fmt: skip


def test_a_query_reads_and_writes_nothing(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for sql in WRITES:
        with refused(UserError):
            published.query(sql)
    assert not list(tmp_path.iterdir())
    for sql in ("FROM final", "DESCRIBE final", "SUMMARIZE cells", "SHOW TABLES"):
        assert len(published.query(sql)) > 5


def test_every_column_that_a_query_can_read_has_a_meaning(published):
    rows = published.tables()
    assert {"final", "known", "curves", "law_points", "speeds"} <= set(rows.table)
    assert rows.meaning.str.len().gt(5).all()
    described = published.query("DESCRIBE final").column_name
    assert rows[rows.table == "final"].column.tolist() == described.tolist()


def test_docstrings_name_every_column(published, verdicts):
    found = {
        method: set(getattr(published, method)(*given).columns)
        for method, *given in (
            ("tables",), ("cells",), ("final",), ("curves",), ("multiplier", "linear"),
            ("gap", "linear"),
        )
    }  # fmt: skip
    found["fit"] = {name for names, _ in study.LAWS.values() for name in names}
    found["claims"] = set(verdicts.columns)
    for method, columns in found.items():
        documented = set(re.findall(r"\w+", inspect.getdoc(getattr(Study, method)) or ""))
        ends = {f"{name}_{end}" for name in columns for end in ("low", "high")}
        assert columns - ends - documented - {"assumed_sd", "source"} == set(), method


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_in_docstrings_run(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 2
    assert not done.failed


def test_the_package_is_imported_without_loading_anything():
    code = (
        "import sys; before = set(sys.modules); import lmscaling; print(dir(lmscaling));"
        "print(*sorted(set(sys.modules) - before))"
    )
    names, loaded = in_new_process(code).splitlines()
    assert loaded == "lmscaling"
    assert set(lmscaling.__all__) <= set(eval(names))
    for name in lmscaling.__all__:
        assert getattr(lmscaling, name) is not None
    with pytest.raises(AttributeError, match="Studdy"):
        lmscaling.Studdy  # noqa: B018


def test_a_study_is_read_without_torch(published):
    code = (
        f"import sys; from lmscaling import Study; one = Study({str(published.folder)!r});"
        "one.final(); one.fit('time');"
        "print(*{'torch', 'snakemake', 'pydantic_settings'} & set(sys.modules));"
    )
    assert in_new_process(code) == ""


def cells_of_notebook():
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell, names):
    """Run a cell as a notebook does; the value of its last expression."""
    *before, last = ast.parse("".join(cell["source"])).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "notebook", "exec"), names)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)


def test_every_cell_of_the_notebook_shows_something_and_none_is_saved(tmp_path, monkeypatch):
    shutil.copytree(PUBLISHED, tmp_path / "results" / "published")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    names = {}
    values = [shown(cell, names) for cell in cells_of_notebook()]
    for value in values:
        assert len(value) if isinstance(value, DataFrame) else value
    assert any(isinstance(value, Figure) for value in values)
    for name, truth in (("alpha", 0.34), ("beta", 0.28)):
        assert truth in names["law"].intervals[name]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells_of_notebook())
