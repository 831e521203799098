"""A results folder from before the package was laid out anew is read, and nothing is trained."""

import csv
import shutil
from pathlib import Path

import duckdb
import pytest
from conftest import ROOT
from test_workflow import Place, product

from lmscaling.errors import UserError
from lmscaling.store import build

DATA = ROOT / "tests" / "data" / "before_move"
NUMBERS = {
    "final_losses": """
        SELECT run, status, updates, train_loss, val_loss FROM '{store}/runs.parquet'
        JOIN (SELECT run, arg_max(train_loss, update) AS train_loss
              FROM '{store}/updates.parquet' GROUP BY run) USING (run)
        JOIN (SELECT run, arg_max(val_loss, update) AS val_loss
              FROM '{store}/validations.parquet' GROUP BY run) USING (run)
        ORDER BY run""",
    "times": """
        SELECT kind, attention, implementation, context, chunk, median_seconds
        FROM '{store}/measurements.parquet' ORDER BY ALL""",
}
"""What the old version wrote into ``<name>.csv``, from its own store."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The product of today with a study and results of the commit before."""
    place = product(tmp_path_factory.mktemp("old") / "product")
    shutil.copy(DATA / "study.yaml", place.root / "config" / "study.yaml")
    (place.root / "tiny.yaml").write_text("{}")
    # Files out of git have no times to keep: all are of one moment, as after a clone.
    shutil.copytree(DATA / "results", place.results, copy_function=shutil.copyfile)
    place.same_times()
    return place


def test_only_the_store_and_what_is_drawn_from_it_is_made_anew(old):
    assert {rule for rule, _ in old.plan()} == {"collect", "draw", "report"}


def test_the_store_holds_the_numbers_of_the_old_one(old):
    old.snakemake("--cores", "1", "collect")
    for name, query in NUMBERS.items():
        rows = duckdb.execute(query.format(store=old.results / "store")).fetchall()
        with (DATA / f"{name}.csv").open() as file:
            expected = list(csv.reader(file))[1:]
        assert [["" if v is None else str(v) for v in row] for row in rows] == expected


def test_a_store_that_another_version_built_is_named_with_the_remedy(tmp_path):
    shutil.copytree(DATA / "results", tmp_path / "results")
    study = tmp_path / "results"
    build.build(study)
    cells = study / "store" / "cells.parquet"
    duckdb.execute(
        f"COPY (SELECT * EXCLUDE (schedule) FROM '{cells}') TO '{cells}.old' (FORMAT parquet)"
    )
    Path(f"{cells}.old").replace(cells)
    with (
        pytest.raises(UserError, match=r"built by another version .*build-store"),
        build.connect(study / "store"),
    ):
        pass
