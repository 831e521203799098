"""The package from Python: what ``Study`` returns is what files, figures and report say."""

import ast
import copy
import csv
import gc
import inspect
import re
import subprocess
import sys
from operator import methodcaller

import law_study
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import ROOT, STUDY, refused
from test_figures import cells_of, finish, write_study
from test_store import header, live, log, record, update, validation

import lmscaling
from lmscaling import Study, UserError, claims, figures, study
from lmscaling.fits import gaps, loss_surface, multiplier
from lmscaling.store import build as store

PUBLISHED = ROOT / "results" / "published"
METHODS = ("tables", "runs", "cells", "final", "curves")


@pytest.fixture(scope="module")
def published(published_study):
    return Study(published_study)


def rows_of(one, query):
    """What a query reads from the store of a study."""
    with store.connect(one.folder / "store") as db:
        return db.sql(query).fetchall()


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """Ten runs are done, one trains, one diverged, twenty have not begun; there is no store."""
    folder = write_study(tmp_path_factory.mktemp("results"), copy.deepcopy(STUDY))
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


def test_a_known_surface_comes_back_and_each_law_has_its_columns_and_reasons(published, lawful):
    fits = {law: lawful.fit(law) for law in study.LAWS}
    for rows in [*fits.values(), *map(published.fit, study.LAWS)]:
        assert rows.why.str.len().gt(0).all()
        ends = rows.filter(regex="_(low|high)$")
        assert not len(rows) or not len(ends.select_dtypes("object").columns)
    decayed = fits["surface"][fits["surface"].schedule == "decayed"]
    assert decayed.status.tolist() == ["fitted", "fitted"]
    for name in ("alpha", "beta"):
        truth = law_study.PARAMETERS[name]
        assert (decayed[f"{name}_low"] < truth).all()
        assert (decayed[f"{name}_high"] > truth).all()
    assert [row.drawn[0] for row in decayed.itertuples()] == decayed.E.tolist()
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
        last = pair.result.levels[-1]
        assert (row.updates, row.hours, row.loss) == (last.updates, last.hours, last.loss)
        ends = last.intervals["updates"]
        assert (row.updates_low, row.assumed_sd) == (ends.low, ends.assumed)
        assert np.isinf(row.updates_high) if ends.high is None else row.updates_high == ends.high
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


def test_a_study_that_trains_is_as_far_as_its_logs_and_stays_as_it_is(half_done, published):
    before = contents(half_done)
    one = Study(half_done)
    parts = ["20 pending", "10 done", "1 running", "1 diverged", "softmax (baseline), linear"]
    for part in [*parts, str(half_done), "s, m", "16 to 32"]:
        assert part in repr(one)
    for part in ("48 published", "124M, 355M, 774M", "256 to 65,536"):
        assert part in repr(published)
    assert published.contexts[0] == 256
    counts = {"pending": 20, "done": 10, "diverged": 1, "running": 1}
    assert one.runs().status.value_counts().to_dict() == counts
    assert len(one.final()) == 6  # of each seed the best of two rates, and the run that trains
    assert one.cells().planned.sum() == 32
    assert one.cells().failed.sum() == 1
    assert one.figure("grid_status").axes
    for method in METHODS:
        getattr(one, method)()
    for law in study.LAWS:
        one.fit(law)
    assert contents(half_done) == before


def test_an_empty_study_has_empty_tables_and_an_old_store_is_read(tmp_path, values):
    folder = write_study(tmp_path, values)
    store.build(folder)
    one = Study(folder)
    assert len(one.final()) == len(one.gap("linear")) == len(one.multiplier("linear")) == 0
    assert len(one.cells()) == 8
    assert {law: len(one.fit(law)) for law in study.LAWS} == dict.fromkeys(study.LAWS, 0)
    assert one.figure("surface").texts
    finish(folder, cells_of(folder)[:2])
    before = contents(folder)
    for fresh, done in ((False, 0), (True, 2)):
        assert Study(folder, fresh=fresh).runs().status.eq("done").sum() == done
    assert contents(folder) == before


def test_a_store_of_its_own_copies_logs_and_goes(half_done, monkeypatch, tmp_path):
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


def test_a_figure_is_that_of_the_report_and_leaves_settings_and_pyplot_alone(published, tmp_path):
    settings, held = dict(mpl.rcParams), plt.get_fignums()
    drawn = published.figure("context_scaling")
    assert dict(mpl.rcParams) == settings
    assert plt.get_fignums() == held
    saved = figures.save("context_scaling", published.folder / "store", tmp_path).read_text()
    drawn.savefig(tmp_path / "own.svg", bbox_inches="tight")
    own, shown = (re.findall(r' d="([^"]+)"', text)
                  for text in ((tmp_path / "own.svg").read_text(), saved))  # fmt: skip
    assert len(own) == len(shown) > 20
    assert [text for text in drawn.texts if "Buckman" in text.get_text()]


def test_verdicts_are_those_of_the_claims_and_docstrings_name_every_column(published):
    verdicts = published.claims()
    assert verdicts.claim.tolist() == claims.NAMES
    assert {"holds", "fails", "not tested"} == set(verdicts.verdict)
    found = {name: set(getattr(published, name)().columns) for name in METHODS if name != "runs"}
    found["multiplier"] = set(published.multiplier("linear").columns)
    found["gap"] = set(published.gap("linear").columns)
    found["fit"] = {name for law in study.LAWS for name in published.fit(law).columns}
    found["claims"] = set(verdicts.columns)
    for method, columns in found.items():
        documented = set(re.findall(r"\w+", inspect.getdoc(getattr(Study, method)) or ""))
        ends = {f"{name}_{end}" for name in columns for end in ("low", "high")}
        assert columns - ends - documented - {"assumed_sd", "source"} == set(), method


MISTAKES = [
    (lambda _: Study("results/publishd"), "publishd", "results/published"),
    (lambda _: Study(PUBLISHED / "runs.csv"), "runs.csv"),
    (lambda _: Study(ROOT / "src"), "src", "study.json"),
    (methodcaller("fit", "surfce"), "'surfce'", "nearest is 'surface'"),
    (methodcaller("fit", "surface", size="124M"), "'surface'", "size"),
    (methodcaller("multiplier", "sofmax"), "'sofmax'", "nearest is 'softmax'"),
    (methodcaller("gap", "linear", "sofmax"), "'sofmax'", "nearest is 'softmax'"),
    (methodcaller("gap", "softmax"), "softmax", "itself", "linear"),
    (methodcaller("final", size="125M"), "'125M'", "nearest is '124M'"),
    (methodcaller("curves", context=1000), "1000", "nearest is '1024'"),
    (methodcaller("curves", "hour"), "'hour'", "nearest is 'hours'"),
    (methodcaller("figure", "contextscaling"), "nearest is 'context_scaling'"),
    (methodcaller("query", "SELECT 1; SELECT 2"), "SELECT, SELECT"),
    (methodcaller("query", " "), "none"),
]
OF_DUCKDB = [("FROM finl", '"final"'), ("SELECT los FROM final", '"loss"'), ("SELEC 1", "SELEC")]


def test_a_mistake_is_one_sentence_with_the_nearest_name(published, monkeypatch):
    monkeypatch.chdir(ROOT)
    for make, *named in MISTAKES:
        with refused(UserError, *named) as caught:
            make(published)
        assert "\n" not in str(caught.value)
    for sql, named in OF_DUCKDB:  # whose words are those of its version
        with pytest.raises(UserError, match=rf"^[^\n]*{named}[^\n]*$"):
            published.query(sql)


WRITES = (
    "COPY (SELECT 1) TO 'x.csv'", "CREATE TABLE x AS SELECT 1", "DROP VIEW final",
    "ATTACH 'x.duckdb'", "EXPORT DATABASE 'x'", "INSTALL httpfs", "SET memory_limit = '1MB'",
    "SELECT 1; COPY (SELECT 1) TO 'x.csv'",
)  # fmt: skip


def test_a_query_writes_nothing_and_reads_explained_columns(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for sql in WRITES:
        with refused(UserError):
            published.query(sql)
    assert not list(tmp_path.iterdir())
    for sql in ("FROM final", "DESCRIBE final", "SUMMARIZE cells", "SHOW TABLES"):
        assert len(published.query(sql)) > 5
    rows = published.tables()
    assert {"final", "known", "curves", "law_points", "speeds"} <= set(rows.table)
    assert rows.meaning.str.len().gt(5).all()
    described = published.query("DESCRIBE final").column_name
    assert rows[rows.table == "final"].column.tolist() == described.tolist()


def test_a_package_that_loads_nothing_offers_its_names_and_a_study_is_read_without_torch(published):
    code = (
        "import sys; before = set(sys.modules); import lmscaling; print(dir(lmscaling));"
        "print(*sorted(set(sys.modules) - before));"
        f"one = lmscaling.Study({str(published.folder)!r}); one.final(); one.fit('time');"
        "print(*{'torch', 'snakemake', 'pydantic_settings'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    names, *loaded = done.stdout.splitlines()
    assert loaded == ["lmscaling", ""]
    assert set(lmscaling.__all__) <= set(ast.literal_eval(names))
    assert all(getattr(lmscaling, name) is not None for name in lmscaling.__all__)
    with pytest.raises(AttributeError, match="Studdy"):
        lmscaling.Studdy  # noqa: B018
