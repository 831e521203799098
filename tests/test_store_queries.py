"""The queries of docs/store.md run on a store, and return the columns that they announce."""

import json
import re

import duckdb
import pytest
from conftest import ROOT, STUDY
from test_store import (
    end,
    evaluated,
    evaluation,
    header,
    log,
    record,
    update,
    validation,
)
from test_store_views import timed

from lmscaling.config import study_file
from lmscaling.store import build as store

TEXT = (ROOT / "docs" / "store.md").read_text()
QUERIES = re.findall(r"\n([^\n]+):\n\n```sql\n(.*?)-- ([^\n]*)\n```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    """A small study with two seeds, a branch, an evaluation and times."""
    folder = tmp_path_factory.mktemp("queries")
    axes = {"attention": ["softmax", "linear"], "size": ["s"], "context": [16, 32], "seed": [0, 1]}
    study = STUDY | {"axes": axes, "branches": {"shares": [0.5, 1.0]}}
    (folder / "study.json").write_text(json.dumps({"command": "", "study": study}))
    laid_out = study_file.read_record(folder / "study.json").grid
    for i, run in enumerate(laid_out.cells):
        rows = [row for n in (1, 2, 3, 4) for row in (update(n), validation(n, loss=4 - n / 5 - i))]
        record(folder, run, log(header(run), *rows, end(4)), updates=4)
        bins = [evaluation(run, axis="document", start=start) for start in (0, 1, 2)]
        evaluated(folder, run, log(*bins))
    branch = next(iter(laid_out.branches))
    record(folder, branch, log(header(branch, start=1), update(2), validation(2, loss=3.5), end(2)))
    timed(folder, "linear chunked", {16: 2.0, 64: 2.0})
    timed(folder, "softmax flash", {16: 1.0, 64: 4.0})
    store.build(folder)
    with duckdb.connect(folder / "store" / "store.duckdb", read_only=True) as db:
        yield db


ROWS = (4, 2, 8, 8, 8, 8, 1, 4, 1, 8)
"""What the small study has to answer each question with."""


def test_there_are_ten():
    assert len(QUERIES) == len(ROWS) == TEXT.count("```sql") == 10


@pytest.mark.parametrize("number", range(10), ids=[question[:30] for question, *_ in QUERIES])
def test_a_query_of_the_documentation_returns_what_it_announces(db, number):
    _, query, columns = QUERIES[number]
    found = db.sql(query)
    assert found.columns == columns.split(", ")
    rows = found.fetchall()
    assert len(rows) == ROWS[number]
    assert all(len(row) == len(found.columns) for row in rows)


def test_the_tables_and_views_of_the_documentation_are_those_of_the_store(db):
    query = """
        SELECT DISTINCT table_name FROM duckdb_columns()
        WHERE database_name = 'queries' OR database_name = current_database()
    """
    section = TEXT.partition("## Tables and views")[2].partition("Every column")[0]
    named = {
        name for line in re.findall(r"^\| (`.*?) \|", section, re.M) for name in line.split(", ")
    }
    hidden = {"own_context_samples", "unknown_fields"}
    assert {name.strip("`") for name in named} == {n for (n,) in db.sql(query).fetchall()} - hidden


def test_other_versions_of_duckdb_open_the_file(db):
    """The number of the format is that of DuckDB 1.2; version 1.4 reads up to 67."""
    ((path,),) = db.sql("SELECT path FROM duckdb_databases() WHERE NOT internal").fetchall()
    with open(path, "rb") as file:
        head = file.read(20)
    assert head[8:12] == b"DUCK"
    assert int.from_bytes(head[12:20], "little") == 65
    views = " ".join(
        sql for (sql,) in db.sql("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()
    )
    assert not re.search(r'\b"?if"?\(', views), "DuckDB 1.4 has no function if"
