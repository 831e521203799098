"""A record class is the only place that says what a column is, and records outlive versions."""

import json
from dataclasses import dataclass

import duckdb
import pytest
from conftest import refused, sentence
from test_store import ENVIRONMENT, WHOLE, ask, record, runs, study

from lmscaling.errors import UserError
from lmscaling.records import schema
from lmscaling.records.exports import EXPORTS
from lmscaling.records.run import Run
from lmscaling.store import build as store
from lmscaling.store import meanings

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
    for view, classes in meanings.RECORDS.items():
        if Run in classes:
            changed = tuple(NewRun if one is Run else one for one in classes)
            monkeypatch.setitem(meanings.RECORDS, view, changed)


def change(study, run, **values):
    path = study / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_new_column_has_its_default_in_old_records_and_reaches_tables_and_views(
    study, runs, newer
):
    record(study, runs[0], WHOLE)
    record(study, runs[1], WHOLE)
    change(study, runs[1], energy_joules=7.0)
    for table in ("runs", "status"):
        query = f"SELECT energy_joules, cooling FROM {table} WHERE run IN {tuple(runs[:2])}"
        assert sorted(ask(study, query), key=str) == [(7.0, "air"), (None, "air")]
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        query = "SELECT comment FROM duckdb_columns() WHERE column_name = 'energy_joules'"
        assert (MEANING,) in db.sql(query).fetchall()


def test_a_field_of_a_later_version_is_kept_and_counted(study, runs, capsys):
    record(study, runs[0], WHOLE)
    change(study, runs[0], energy_joules=7.0)
    assert ask(study, "FROM unknown_fields") == [("runs", "energy_joules", 1)]
    ((unknown,),) = ask(study, "SELECT unknown_fields FROM runs")
    assert json.loads(unknown) == {"energy_joules": 7.0}
    assert "'energy_joules'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"),
    [({}, ("'tokens'",)), ({"tokens": "many"}, ("tokens", '"many"', "BIGINT"))],
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
    query = """
        SELECT table_name, column_name, comment FROM duckdb_columns()
        WHERE database_name = 'store' AND coalesce(comment, '') = ''
    """
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        assert db.sql(query).fetchall() == []
        tables = db.sql("SELECT DISTINCT table_name FROM duckdb_columns()").fetchall()
    assert {*EXPORTS, "training", "final", "crossings"} <= {name for (name,) in tables}
    with store.connect(study / "store") as db:
        # Views of updates have the columns that say which run, and no more.
        for view, most in (
            ("training", 15),
            ("validation", 16),
            ("final", 19),
            ("by_position", 18),
        ):
            assert len(db.table(view).columns) <= most


def test_the_columns_of_a_class_are_its_fields_and_those_of_its_bases():
    columns = schema.columns(NewRun)
    assert list(columns)[-2:] == ["energy_joules", "cooling"]
    assert columns["energy_joules"] == schema.Column("DOUBLE", MEANING, None)
    assert (columns["cell"].sql, columns["updates"].sql) == ("JSON", "BIGINT")
    given, unknown = schema.read(NewRun, {**vars_of_a_run(), "x": 1}, "record", "delete it")
    assert (given["cooling"], unknown) == ("air", {"x": 1})


def vars_of_a_run() -> dict:
    """The fields of a run without those that have a default."""
    values = {"BIGINT": 1, "DOUBLE": 1.0, "VARCHAR": "a", "JSON": ENVIRONMENT}
    return {name: values[c.sql] for name, c in schema.columns(Run).items() if c.default is not None}


def test_a_store_that_another_version_built_is_named_with_the_remedy(study, runs):
    record(study, runs[0], WHOLE)
    store.build(study)
    cells, other = study / "store" / "cells.parquet", study / "other.parquet"
    duckdb.execute(f"COPY (SELECT * EXCLUDE (schedule) FROM '{cells}') TO '{other}'")
    other.replace(cells)
    with refused(UserError, study / "store", "schedule"), store.connect(study / "store"):
        pass
