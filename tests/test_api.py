"""The package from Python: what ``Study`` returns is what files, figures and report say."""

import csv
import gc
import json
import re
import shutil

import law_study
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import speed_points
from conftest import ROOT, STUDY
from test_figures import cells_of, finish, write_study
from test_store import header, live, log, record, update, validation

from lmscaling import Study, figures, study
from lmscaling.fits import gaps, loss_surface, multiplier
from lmscaling.store import build as store

PUBLISHED = ROOT / "results" / "published"
METHODS = ("tables", "runs", "cells", "final", "curves")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published numbers, with a store."""
    folder = tmp_path_factory.mktemp("results") / "published"
    shutil.copytree(PUBLISHED, folder)
    store.build(folder)
    return Study(folder)


def rows_of(one, query):
    """What a query reads from the store of a study."""
    with store.connect(one.folder / "store") as db:
        return db.sql(query).fetchall()


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """Ten runs are done, one trains, one diverged, twenty have not begun; there is no store."""
    folder = write_study(tmp_path_factory.mktemp("results"), json.loads(json.dumps(STUDY)))
    cells = cells_of(folder)
    finish(folder, cells[:10])
    live(folder, cells[10].run, log(header(cells[10].run), update(1), validation(1)))
    record(folder, cells[11].run, log(header(cells[11].run), update(1)), "diverged")
    return folder


@pytest.fixture(scope="module")
def lawful(tmp_path_factory):
    """Three seeds of four sizes, whose losses follow a known surface."""
    folder = tmp_path_factory.mktemp("lawful")
    law_study.write(folder, law_study.values_of(STUDY, seed=[0, 1, 2], context=[4096]))
    store.build(folder)
    return Study(folder)


def contents(folder):
    """Every file below a folder with its time."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_final_losses_are_those_of_the_published_file(published):
    with (PUBLISHED / "final_loss.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = published.final().set_index(["attention", "size", "context"])
    assert len(found) == len(rows)
    for row in rows:
        key = row["attention"], f"{row['params_millions']}M", int(row["context"])
        assert found.loss[key] == float(row["final_train_loss"])
    # The range of one seed rests on a spread that it names.
    row = published.final(attention="softmax", size="124M", context=1024).iloc[0]
    assert row.loss_high - row.loss == pytest.approx(1.96 * row.assumed_sd, rel=1e-3)
    assert row.assumed_sd == 0.0019


def test_the_interval_of_a_cell_is_that_of_its_seeds_and_narrower_than_that_of_a_run(lawful):
    cells, final = lawful.cells(), lawful.final()
    assert cells.seeds.tolist() == [3] * 8
    assert cells.assumed_sd.isna().all()
    for _, cell in cells.iterrows():
        runs = final[(final.attention == cell.attention) & (final["size"] == cell["size"])]
        assert cell.loss == pytest.approx(runs.loss.mean())
        width = runs.loss_high - runs.loss_low
        assert np.allclose(width, np.sqrt(3) * (cell.loss_high - cell.loss_low))


def test_curves_have_the_points_of_the_figure_against_the_axis_that_is_asked_for(published):
    with store.connect(published.folder / "store") as db:
        rows = db.sql(figures.load("learning_curves").QUERY).df()
    for axis in study.AXES:
        curves = published.curves(axis)
        assert len(curves) == len(rows)
        assert curves[axis].isna().sum() == rows[axis].isna().sum()
        assert all(part[axis].dropna().is_monotonic_increasing for _, part in curves.groupby("run"))


@pytest.fixture(scope="module")
def fits(lawful):
    return {law: lawful.fit(law) for law in study.LAWS}


def test_a_known_surface_comes_back(fits):
    decayed = fits["surface"][fits["surface"].schedule == "decayed"]
    assert decayed.status.tolist() == ["fitted", "fitted"]
    for name in ("alpha", "beta"):
        truth = law_study.PARAMETERS[name]
        assert (decayed[f"{name}_low"] < truth).all()
        assert (decayed[f"{name}_high"] > truth).all()
    law = decayed.result.iloc[0]
    assert law.values["E"] == decayed.E.iloc[0]
    assert law.loss(1e9, 1e10) > law.loss(1e9, 1e11) > law.values["E"]


def test_each_law_has_its_columns_and_a_reason_for_every_row(published, lawful, fits):
    ofs = [(law, rows) for law in study.LAWS for rows in (published.fit(law), fits[law])]
    for law, rows in ofs:
        assert rows.columns.tolist() == study.LAWS[law][0]
        assert rows.why.str.len().gt(0).all()
        ends = rows.filter(regex="_(low|high)$")
        assert not len(rows) or not len(ends.select_dtypes("object").columns)
    one, every = lawful.fit("time", attention="softmax"), fits["time"]
    assert one.gamma.tolist() == every[every.attention == "softmax"].gamma.tolist()
    none = published.fit("surface")
    assert set(none.why) == {loss_surface.STATUSES["schedule"]}
    assert none.E.isna().all()


def test_multipliers_are_those_of_the_report(published):
    pairs = multiplier.compare(rows_of(published, multiplier.QUERY))
    rows = published.multiplier("linear", "softmax")
    assert rows.equals(published.multiplier("linear"))
    assert len(rows) == len(pairs)
    for pair in pairs:
        (row,) = rows[(rows["size"] == pair.size) & (rows.context == pair.context)].itertuples()
        assert row.result == pair.result
        last = pair.result.levels[-1]
        assert (row.updates, row.hours, row.loss) == (last.updates, last.hours, last.loss)
        ends = last.intervals["updates"]
        assert (row.updates_low, row.assumed_sd) == (ends.low, ends.assumed)
        assert np.isnan(row.updates_high) if ends.high is None else row.updates_high == ends.high

    # Either can be the reference, and both see the same winner.
    one = published.multiplier("linear", "softmax", size="124M", context=4096).iloc[0]
    two = published.multiplier("softmax", "linear", size="124M", context=4096).iloc[0]
    assert one.updates < 1 < two.updates
    assert (one.attention, one.reference) == (two.reference, two.attention) == ("linear", "softmax")


def test_gaps_are_those_of_the_report_and_change_their_sign_with_the_reference(lawful):
    found = gaps.compare(rows_of(lawful, gaps.QUERY))
    rows = lawful.gap("linear")
    assert rows.gap.tolist() == [one.gap for one in found]
    assert rows.why.tolist() == [gaps.STATUSES[one.status] for one in found]
    assert rows.cells.tolist() == [4, 1, 1, 1, 1]
    assert rows["size"].isna().tolist() == [True, False, False, False, False]
    assert len(lawful.gap("linear", size="xl")) == 1
    other = lawful.gap("softmax", "linear")
    assert np.allclose(other.gap, -rows.gap)
    assert np.allclose(other.p, rows.p)


def test_a_study_that_trains_is_as_far_as_its_logs_and_nothing_is_written_there(
    half_done, published
):
    before = contents(half_done)
    one = Study(half_done)
    for text, parts in (
        (repr(one), (str(half_done), "20 pending", "10 done", "1 running", "1 diverged",
                     "softmax (baseline), linear", "s, m", "16 to 32")),
        (repr(published), ("48 published", "124M, 355M, 774M", "256 to 65,536")),
    ):  # fmt: skip
        assert [part for part in parts if part not in text] == []
    assert published.contexts[0] == 256
    assert one.runs().status.value_counts().to_dict() == {
        "pending": 20, "done": 10, "diverged": 1, "running": 1
    }  # fmt: skip
    assert len(one.final()) == 6  # of each seed the best of two rates, and the run that trains
    assert one.cells().planned.sum() == 32
    assert one.cells().failed.sum() == 1
    assert one.figure("grid_status").axes
    for method in METHODS:
        getattr(one, method)()
    for law in study.LAWS:
        one.fit(law)
    assert contents(half_done) == before


def test_the_store_of_the_report_is_read_until_a_fresh_one_is_asked_for(tmp_path, values):
    folder = write_study(tmp_path, values)
    cells = cells_of(folder)
    finish(folder, cells[:2])
    store.build(folder)
    finish(folder, cells[2:4])
    before = contents(folder)
    done = [
        int(one.runs().status.eq("done").sum())
        for one in (Study(folder), Study(folder, fresh=True))
    ]
    assert done == [2, 4]
    assert contents(folder) == before


def test_a_store_of_its_own_copies_logs_that_training_deletes_and_goes_with_the_study(
    half_done, monkeypatch, tmp_path
):
    def no_links(*_):
        raise OSError("another file system")

    monkeypatch.setattr("lmscaling.store.logs.os.link", no_links)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = Study(half_done)
    assert one.runs().status.eq("running").sum() == 1
    assert list(tmp_path.rglob("*.parquet"))
    del one
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_study_of_a_device_has_its_times_and_no_losses(tmp_path, values):
    folder = tmp_path / "measured" / "here"
    folder.mkdir(parents=True)
    shutil.copytree(PUBLISHED, tmp_path / "published")
    write_study(folder, values | {"published": True})
    speed_points.write(folder, *speed_points.tiny())
    one = Study(folder)
    measured = one.query("SELECT count(*) AS n FROM speeds WHERE source = 'measured'")
    assert measured.n.item() > 0
    assert set(one.final().source) <= {"published"}


def test_a_study_without_a_run_has_empty_tables(tmp_path, values):
    one = Study(write_study(tmp_path, values))
    assert len(one.final()) == len(one.gap("linear")) == len(one.multiplier("linear")) == 0
    assert len(one.cells()) == 8
    for law in study.LAWS:
        assert len(one.fit(law)) == 0
    assert one.figure("surface").texts


def test_a_figure_is_that_of_the_report_and_leaves_settings_and_pyplot_alone(published, tmp_path):
    settings, held = dict(mpl.rcParams), plt.get_fignums()
    drawn = published.figure("context_scaling")
    assert dict(mpl.rcParams) == settings
    assert plt.get_fignums() == held
    saved = figures.save("context_scaling", published.folder / "store", tmp_path).read_text()
    drawn.savefig(tmp_path / "own.svg", bbox_inches="tight")
    shapes = [re.findall(r' d="([^"]+)"', text) for text in
              ((tmp_path / "own.svg").read_text(), saved)]  # fmt: skip
    assert len(shapes[0]) == len(shapes[1]) > 20
    assert [text for text in drawn.texts if "Buckman" in text.get_text()]
