"""Captions, notes and comments on columns say what the rows they describe hold."""

import copy
import re
import shutil

import pytest
from conftest import ROOT, STUDY, script
from pandas import DataFrame, concat
from test_figures import cells_of, fill, write_study

from lmscaling import figures, registry
from lmscaling.evaluate import drawing
from lmscaling.figures import loss_by_position
from lmscaling.figures.shared import law_panels, speed
from lmscaling.fits import forecast_scores, optimum
from lmscaling.fits.uncertainty import LEVEL
from lmscaling.records.exports import PUBLISHED
from lmscaling.store import build as store
from lmscaling.store import meanings
from lmscaling.train import ledger, norms

NAMES = list(registry.figures())
CAPTIONS = {name: " ".join(figures.load(name).__doc__.split()) for name in NAMES}
SPEED = [name for name in NAMES if "FROM speeds" in figures.load(name).QUERY]


def queried(folder, tables=()):
    """The rows of every figure, and of tables and views, of a store."""
    store.build(folder)
    with store.connect(folder / "store") as db:
        rows = {name: db.sql(figures.load(name).QUERY).df() for name in NAMES}
        views = {name: db.sql(f"FROM {name}").df() for name in tables}
    return rows, views


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Rows of the published numbers alone, of a tiny study, and of the study on CPU cores."""
    published = tmp_path_factory.mktemp("results") / "published"
    published.mkdir()
    for stem in PUBLISHED:
        shutil.copy(ROOT / "results" / "published" / f"{stem}.csv", published)
    tiny = write_study(tmp_path_factory.mktemp("tiny"), copy.deepcopy(STUDY))
    fill(tiny, cells_of(tiny)[:8])
    measured = tmp_path_factory.mktemp("measured") / "cpu-python"
    shutil.copytree(ROOT / "results" / "measured" / "cpu-python", measured)
    tables = [name for name in meanings.RECORDS if name != "unknown_fields"]
    return {
        "published": queried(published, tables),
        "tiny": queried(tiny, tables),
        "cpu": queried(measured),
    }


@pytest.fixture(scope="module")
def published(stores):
    return stores["published"][0]


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_are_shown_where_the_caption_speaks_of_them_and_nowhere_else(
    published, name
):
    sentences = re.findall(r"[^.;:]*\bpublished\b[^.;:]*", CAPTIONS[name], re.IGNORECASE)
    if any(re.search(r"excluded|left out|not shown", each) for each in sentences):
        assert published[name].empty
    elif sentences:
        assert set(published[name].source) == {"published"}


@pytest.mark.parametrize("name", NAMES)
def test_methods_in_brackets_and_columns_of_the_caption_are_in_the_query(stores, name):
    query = figures.load(name).QUERY
    known = {*re.findall(r"'(?:softmax|linear) (\w+)'", query)}
    if known:
        assert all(re.search(rf"\b{method}\b", CAPTIONS[name]) for method in known), known
    words = {*re.findall(r"\b[a-z]+_[a-z_]+\b", CAPTIONS[name])}
    columns = {column for rows, _ in stores.values() for column in rows[name]}
    assert words <= known | columns | {"weight_decay"}, words - known - columns


def test_training_losses_of_published_runs_are_of_the_split_and_number_that_captions_say(published):
    for name in ("learning_curves", "context_curves"):
        points = published[name].groupby("run").size()
        (told,) = re.findall(r"about (\d+) points", CAPTIONS[name])
        assert points.median() == pytest.approx(int(told), rel=0.1)
        runs = published[name].sort_values("updates").groupby("run")
        steps = runs.updates.apply(lambda at: at.diff().min())
        (told,) = re.findall(r"a mean over (\d+) updates", CAPTIONS[name])
        assert steps.min() == pytest.approx(int(told))
    switched = [name for name in NAMES if name.startswith("learning_curves")]
    for name in (*switched, "parameter_scaling", "context_scaling"):
        assert set(published[name].split) == {"train"}
    assert {*published["multiplier"].source} == {"published"}
    flops = published["learning_curves_flops"]
    assert len(flops) == len(published["learning_curves"])
    assert flops.flops.gt(0).all()


def test_times_of_published_runs_are_those_that_the_audit_says(published):
    rows = published["budget_audit"]
    (hours,) = re.findall(r"budget of (\d+) hours", CAPTIONS["budget_audit"])
    assert set(rows.budget_hours) == {float(hours)}
    assert rows.productive_hours.notna().all()
    assert rows[["lost_hours", "other_hours"]].isna().all(axis=None)  # only the total is known


@pytest.mark.parametrize("name", ["step_time", "formulations", "chunked_against_all"])
def test_published_steps_have_one_sequence(published, name):
    assert "published steps have one" in CAPTIONS[name]
    assert set(published[name].batch) == {1}


NUMBERS = {
    "context_curves": ["60 logarithmic", "100 updates"],
    "learning_curves": ["60 logarithmic", "100 updates"],
    "instability": ["10,000 updates", "100 updates"],
    "forecasts": ["80 %", "95 %"],
    "predicted_time": ["80 %"],
    "image_samples": ["16 images"],
    "loss_by_position": ["10 %", "four contexts", "two datasets"],
    "surface": ["most four"],
    "throughput": ["three shortest"],
    "multiplier": ["1.5 nats", "five doublings", "three contexts"],
}


def test_numbers_of_captions_are_those_of_the_code(stores):
    words = {"two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}
    views = (ROOT / "src/lmscaling/store/losses.sql").read_text()
    for name, texts in NUMBERS.items():
        assert all(text in CAPTIONS[name] for text in texts), name
    assert "floor(60 * ln(" in views
    for of in ("tiny", "cpu"):
        rows = stores[of][0]["context_curves"]
        assert rows.groupby("run").size().max() <= 60
        told = stores[of][0]["forecasts"]
        assert told.empty or {*told.quantity} <= {"loss", "update_seconds", "memory_bytes"}
    assert forecast_scores.LEVELS == (0.8, LEVEL)
    assert LEVEL == 0.95
    for name in NAMES:
        text = CAPTIONS[name]
        for n in re.findall(r"over (\d+) % more", text):
            assert int(n) / 100 == law_panels.UNEQUAL, name
        for degree in re.findall(r"degree (\w+) in", text):
            assert words[degree] == optimum.DEGREE, name
    assert words["four"] == loss_by_position.MOST_CONTEXTS == law_panels.MOST_CONTEXTS
    assert words["two"] == loss_by_position.MOST_DATASETS
    multiplier = figures.load("multiplier")
    assert (multiplier.MOST_CURVES, multiplier.SHOWN) == (3, 1.5)
    assert norms.EVERY == ledger.BEAT_SECONDS == 10
    assert drawing.IMAGES == 16
    steps = concat([stores[of][0]["throughput"] for of in stores])
    assert steps.context.nunique() <= 3
    assert steps.batch.gt(1).all()


RANGES = {
    r"\b0 to 1\b": lambda values: values.between(0, 1 + 1e-9),
    r"^(Number|Runs|Updates|Tokens|Bytes|Seconds|Hours|Nanoseconds|FLOP|Parameters|Lines)\b": (
        lambda values: values.ge(0)
    ),
}


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
            for pattern, check in RANGES.items():
                if re.search(pattern, text) and values.dtype.kind in "if":
                    assert check(values).all(), (table, column, text)
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
    pages = script("docs", "extension", "pages.py")
    full = {name for of in ("published", "cpu") for name in NAMES if len(stores[of][0][name])}
    assert {*pages.NEEDS} == {*NAMES} - full


def test_notes_below_figures_name_every_setup_of_their_rows(published):
    for name in SPEED:
        rows: DataFrame = published[name]
        if len(rows):
            words = " ".join(speed.note(rows, "{}").split())
            assert all(setup in words for setup in rows.setup.unique())
