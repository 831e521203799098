"""Captions, notes and comments on columns say what the rows they describe hold."""

import copy
import math
import re
import shutil

import pytest
from conftest import ROOT, STUDY, script
from pandas import concat
from test_figures import cells_of, fill, write_study

from lmscaling import figures, registry
from lmscaling.evaluate import drawing
from lmscaling.figures import loss_by_position
from lmscaling.figures.shared import law_panels
from lmscaling.fits import forecast_scores, optimum
from lmscaling.fits.uncertainty import LEVEL
from lmscaling.store import build as store
from lmscaling.store import meanings
from lmscaling.train import journal, norms

NAMES = list(registry.figures())
CAPTIONS = {name: "{0.title}. {0.text}".format(figures.caption(name)) for name in NAMES}


def queried(folder, of_tables=True):
    """The rows of every figure, and of all tables and views, of a store."""
    query = "SELECT DISTINCT table_name FROM duckdb_columns() WHERE NOT internal"
    with store.connect(folder / "store") as db:
        rows = {name: db.sql(figures.load(name).QUERY).df() for name in NAMES}
        tables = sorted(db.sql(query).fetchall()) if of_tables else []
        views = {name: db.sql(f"FROM {name}").df() for (name,) in tables}
    return rows, views


@pytest.fixture(scope="module")
def stores(published_study, tmp_path_factory):
    """Rows of the published numbers alone, of a tiny study, and of the law study."""
    tiny = write_study(tmp_path_factory.mktemp("tiny"), copy.deepcopy(STUDY))
    fill(tiny, cells_of(tiny)[:8])
    clean = shutil.ignore_patterns("store", "figures")
    measured, law = ROOT / "results" / "measured" / "law", tmp_path_factory.mktemp("law")
    shutil.copytree(measured, law, ignore=clean, dirs_exist_ok=True)
    for folder in (tiny, law):
        store.build(folder)
    return {
        "published": queried(published_study),
        "tiny": queried(tiny),
        "law": queried(law, of_tables=False),
    }


@pytest.fixture(scope="module")
def published(stores):
    return stores["published"][0]


@pytest.mark.parametrize("name", NAMES)
def test_methods_columns_and_published_numbers_of_the_caption_are_in_the_query(stores, name):
    published = stores["published"][0][name]
    sentences = re.findall(r"[^.;:]*\bpublished\b[^.;:]*", CAPTIONS[name], re.IGNORECASE)
    if any(re.search(r"excluded|left out|not shown", each) for each in sentences):
        assert published.empty
    elif sentences:
        assert set(published.source) == {"published"}
    query = figures.load(name).QUERY
    known = {*re.findall(r"'(?:softmax|linear) (\w+)'", query)}
    if known:
        assert all(re.search(rf"\b{method}\b", CAPTIONS[name]) for method in known), known
    words = {*re.findall(r"\b[a-z]+_[a-z_]+\b", CAPTIONS[name])}
    columns = {column for rows, _ in stores.values() for column in rows[name]}
    assert words <= known | columns | {"weight_decay"}, words - known - columns


def test_published_runs_have_the_points_split_hours_and_batch_that_captions_say(published):
    for name in ("learning_curves", "context_curves"):
        points = published[name].groupby("run").size()
        (told,) = re.findall(r"about (\d+) points", CAPTIONS[name])
        assert points.median() == pytest.approx(int(told), rel=0.1)
        runs = published[name].sort_values("updates").groupby("run")
        steps = runs.updates.apply(lambda at: at.diff().min())
        (told,) = re.findall(r"a mean over (\d+) steps", CAPTIONS[name])
        assert steps.min() == pytest.approx(int(told))
    for name in ("learning_curves", "parameter_scaling", "context_scaling"):
        assert set(published[name].split) == {"train"}
    flops = published["learning_curves_flops"]
    assert len(flops) == len(published["learning_curves"])
    assert flops.flops.gt(0).all()
    rows = published["budget_audit"]
    (hours,) = re.findall(r"budget of (\d+) hours", CAPTIONS["budget_audit"])
    assert set(rows.budget_hours) == {float(hours)}
    assert rows.productive_hours.notna().all()
    assert rows[["lost_hours", "other_hours"]].isna().all(axis=None)  # only the total is known
    for name in ("step_time", "formulations", "chunked_against_all"):
        assert "published steps have one" in CAPTIONS[name]
        assert set(published[name].batch) == {1}


def test_numbers_of_captions_are_those_of_the_code(stores):
    words = {"two": 2, "three": 3, "four": 4, "five": 5}
    views = (ROOT / "src/lmscaling/store/losses.sql").read_text()
    assert "floor(60 * ln(" in views
    for of in ("tiny", "law"):
        curves = stores[of][0]["learning_curves"].query("split == 'train'")
        assert curves.groupby("run").size().max() <= 60
    assert forecast_scores.LEVELS == (0.8, LEVEL)
    assert LEVEL == 0.95
    for name, text in CAPTIONS.items():
        for n in re.findall(r"over (\d+) % more", text):
            assert int(n) / 100 == law_panels.UNEQUAL, name
        for degree in re.findall(r"degree (\w+) in", text):
            assert words[degree] == optimum.DEGREE, name
    assert words["four"] == loss_by_position.MOST_CONTEXTS == law_panels.MOST_CONTEXTS
    assert words["two"] == loss_by_position.MOST_DATASETS
    multiplier = figures.load("multiplier")
    assert (multiplier.MOST_CURVES, multiplier.SHOWN) == (3, 1.5)
    assert norms.EVERY == journal.BEAT_SECONDS == 10
    assert drawing.IMAGES == 16
    steps = concat([stores[of][0]["throughput"] for of in stores])
    assert steps.context.nunique() <= 3
    assert steps.batch.gt(1).all()


COUNT = r"(Number|Runs|Updates|Tokens|Bytes|Seconds|Hours|Nanoseconds|FLOP|Parameters|Lines)\b"
VALUES = {
    "source": {"measured", "published"},
    "split": {"validation", "train"},
    "outcome": {"failed", "ok", "unfinished"},
}


@pytest.mark.parametrize("of", ["published", "tiny"])
def test_columns_have_the_values_that_their_comments_say(stores, of):
    seen = 0
    for table, rows in stores[of][1].items():
        for column in rows:
            text, values = meanings.meaning(table, column), rows[column].dropna()
            share, count = re.search(r"\b0 to 1\b", text), re.match(COUNT, text)
            if values.dtype.kind in "if" and (share or count):
                most = 1 + 1e-9 if share else math.inf
                assert values.between(0, most).all(), (table, column, text)
                seen += len(values) > 0
            if re.match(r"(Whether|False if)\b", text) and len(values):
                assert {*values} <= {True, False}, (table, column)
            if re.search(r"null of our runs", text) and "source" in rows:
                assert rows.loc[rows.source == "measured", column].isna().all(), (table, column)
        for column, values in VALUES.items():
            if column in rows and table != "curves":
                assert {*rows[column].dropna()} <= values, table
    assert seen > (10 if of == "published" else 50)


def test_the_gallery_says_what_a_figure_needs_where_neither_source_has_numbers(stores):
    pytest.importorskip("sphinx", reason="needs Sphinx: make docs installs it")
    pages = script("docs", "extension", "pages.py")
    full = {name for of in ("published", "law") for name in NAMES if len(stores[of][0][name])}
    assert {*pages.NEEDS} == {*NAMES} - full
