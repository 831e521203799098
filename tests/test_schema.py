"""A record class says what a column is, records outlive versions, and docs/store.md is right."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
import test_store
from conftest import ROOT, STUDY, refused, sentence
from test_store import ENVIRONMENT, WHOLE, ask, header, log, record, runs, study, update, validation
from test_store_views import timed

from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.records import schema
from lmscaling.records.run import Run
from lmscaling.store import EXPORTS, meanings
from lmscaling.store import build as store

__all__ = ["runs", "study"]


@dataclass(frozen=True, kw_only=True)
class NewRun(Run):
    """The record of a later version."""

    energy_joules: float | None = None
    """Joules of all GPUs."""
    cooling: str = "air"
    """How the GPUs were cooled."""


MEANING = "Joules of all GPUs."


@pytest.fixture
def newer(monkeypatch):
    """A version whose runs have two columns more."""
    monkeypatch.setitem(store.RECORDS, "run", (NewRun, *store.RECORDS["run"][1:]))
    monkeypatch.setitem(meanings.RECORDS, "runs", (NewRun,))


def test_a_new_column_has_its_default_in_old_records_and_reaches_views(study, runs, newer):
    record(study, runs[0], WHOLE)
    record(study, runs[1], WHOLE, energy_joules=7.0)
    for table in ("runs", "status"):
        query = f"SELECT energy_joules, cooling FROM {table} WHERE run IN {tuple(runs[:2])}"
        assert sorted(ask(study, query), key=str) == [(7.0, "air"), (None, "air")]
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        query = "SELECT comment FROM duckdb_columns() WHERE column_name = 'energy_joules'"
        assert (MEANING,) in db.sql(query).fetchall()


def test_a_field_of_a_later_version_is_kept_and_counted(study, runs, capsys):
    record(study, runs[0], WHOLE, energy_joules=7.0)
    assert ask(study, "FROM unknown_fields") == [("runs", "energy_joules", 1)]
    ((unknown,),) = ask(study, "SELECT unknown_fields FROM runs")
    assert json.loads(unknown) == {"energy_joules": 7.0}
    assert "'energy_joules'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"), [({}, ["'tokens'"]), ({"tokens": "many"}, ["tokens", '"many"', "BIGINT"])]
)
def test_a_damaged_record_is_named_with_its_field(study, runs, more, named):
    record(study, runs[0], WHOLE)
    path = study / "runs" / runs[0] / "run.json"
    left = {k: v for k, v in json.loads(path.read_text()).items() if k != "tokens"}
    path.write_text(json.dumps(left | more))
    store.build(study)
    query = f"SELECT status, message FROM runs WHERE run = '{runs[0]}'"
    ((status, message),) = ask(study, query)
    assert status == "damaged"
    assert [value for value in (*named, f"reset {runs[0]}") if value not in message] == []
    sentence("damaged", message.replace(str(study), "STUDY"))


def test_every_column_of_every_table_and_view_says_what_it_means(study, runs):
    record(study, runs[0], WHOLE)
    store.build(study)
    query = "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'store' "
    query += "AND coalesce(comment, '') = ''"
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        assert db.sql(query).fetchall() == []
        tables = db.sql("SELECT DISTINCT table_name FROM duckdb_columns()").fetchall()
        for table, (comments, _) in meanings.created().items():
            names = f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{table}'"
            columns = {name for (name,) in db.sql(names).fetchall()}  # none of a temporary table
            assert not columns or comments.keys() <= columns
    assert {*EXPORTS, "training", "final", "crossings"} <= {name for (name,) in tables}
    with store.connect(study / "store") as db:
        # Views of updates have the columns that say which run, and no more.
        columns = {"training": 15, "validation": 16, "final": 19, "by_position": 18}
        for view, most in columns.items():
            assert len(db.table(view).columns) <= most


def test_the_columns_of_a_class_are_its_fields_and_those_of_its_bases():
    columns = schema.columns(NewRun)
    assert list(columns)[-2:] == ["energy_joules", "cooling"]
    assert columns["energy_joules"] == schema.Column("DOUBLE", MEANING, None)
    assert (columns["cell"].sql, columns["updates"].sql) == ("JSON", "BIGINT")
    values = {"BIGINT": 1, "DOUBLE": 1.0, "VARCHAR": "a", "JSON": ENVIRONMENT}
    fields = schema.columns(Run).items()
    known = {name: values[column.sql] for name, column in fields if column.default is not None}
    given, unknown = schema.read(NewRun, known | {"x": 1}, "record", "delete it")
    assert (given["cooling"], unknown) == ("air", {"x": 1})


def test_a_store_that_another_version_built_is_named_with_the_remedy(study, runs):
    record(study, runs[0], WHOLE)
    store.build(study)
    cells, other = study / "store" / "cells.parquet", study / "other.parquet"
    duckdb.execute(f"COPY (SELECT * EXCLUDE (schedule) FROM '{cells}') TO '{other}'")
    other.replace(cells)
    with refused(UserError, study / "store", "schedule"), store.connect(study / "store"):
        pass


TEXT = (ROOT / "docs" / "store.md").read_text()
QUERIES = re.findall(r"\n([^\n]+):\n\n```sql\n(.*?)-- ([^\n]*)\n```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    """A small study with two seeds, a branch, an evaluation and times."""
    folder = tmp_path_factory.mktemp("queries")
    axes = {"attention": ["softmax", "linear"], "size": ["s"], "context": [16, 32], "seed": [0, 1]}
    study = STUDY | {"axes": axes, "branches": {"shares": [0.5, 1.0]}}
    laid_out = study_file.write_record(folder / "study.json", {"command": "", "study": study})
    for i, run in enumerate(laid_out.cells):
        rows = [row for n in (1, 2, 3, 4) for row in (update(n), validation(n, loss=4 - n / 5 - i))]
        record(folder, run, log(header(run), *rows, test_store.end(4)), updates=4)
        bins = [test_store.evaluation(run, axis="document", start=start) for start in (0, 1, 2)]
        test_store.evaluated(folder, run, log(*bins))
    branch = next(iter(laid_out.branches))
    made = log(header(branch, start=1), update(2), validation(2, loss=3.5), test_store.end(2))
    record(folder, branch, made)
    timed(folder, "linear chunked", {16: 2.0, 64: 2.0})
    timed(folder, "softmax flash", {16: 1.0, 64: 4.0})
    store.build(folder)
    with duckdb.connect(folder / "store" / "store.duckdb", read_only=True) as db:
        yield db


ROWS = (4, 2, 8, 8, 8, 1, 1)
"""What the small study has to answer each question with."""


@pytest.mark.parametrize("number", range(7), ids=[question[:30] for question, *_ in QUERIES])
def test_a_query_of_the_documentation_returns_what_it_announces(db, number):
    _, query, columns = QUERIES[number]
    found = db.sql(query)
    assert found.columns == columns.split(", ")
    assert len(found.fetchall()) == ROWS[number]


def test_the_tables_and_views_of_the_documentation_are_those_of_the_store(db):
    query = "SELECT DISTINCT table_name FROM duckdb_columns() WHERE database_name = 'store'"
    assert len(QUERIES) == len(ROWS) == TEXT.count("```sql")
    section = TEXT.partition("## Tables and views")[2].partition("Every column")[0]
    named = {*re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.M)))}
    hidden = {"own_context_samples", "unknown_fields"}
    assert named == {name for (name,) in db.sql(query).fetchall()} - hidden


def test_other_versions_of_duckdb_open_the_file(db):
    """The number of the format is that of DuckDB 1.2; version 1.4 reads up to 67."""
    ((path,),) = db.sql("SELECT path FROM duckdb_databases() WHERE NOT internal").fetchall()
    head = Path(path).read_bytes()[:20]
    assert head[8:12] == b"DUCK"
    assert int.from_bytes(head[12:20], "little") == 65
    views = str(db.sql("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall())
    assert not re.search(r'\b"?if"?\(', views), "DuckDB 1.4 has no function if"
