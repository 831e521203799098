"""Published numbers: copied whole, imported unchanged, and never taken for ours."""

import copy
import csv
import gzip
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, STUDY, refused
from golden import FOLDER
from matplotlib import pyplot as plt
from test_store import end, header, log, record, update, validation

from lmscaling import figures, registry
from lmscaling.config import study_file
from lmscaling.config.cell import Model
from lmscaling.errors import UserError
from lmscaling.fits import final_loss
from lmscaling.model import sizing
from lmscaling.report import question
from lmscaling.store import EXPORTS
from lmscaling.store import build as store
from lmscaling.store.published import CITATION

HERE = ROOT / "results" / "published"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def copied(place):
    """A copy of what is in git."""
    made = shutil.ignore_patterns("store", "figures")
    return shutil.copytree(HERE, place / "results" / "published", ignore=made)


@pytest.fixture
def published(tmp_path):
    return copied(tmp_path)


@pytest.fixture(scope="module")
def db(published_study):
    with store.connect(published_study / "store") as db:
        yield db
    plt.close("all")


@pytest.fixture(scope="module")
def rows(db):
    """The rows of each figure of the published numbers alone, as they are saved beside it."""
    found = {}
    for name in registry.figures():
        made = db.sql(figures.load(name).QUERY).df()
        if name in ("predicted_time", "time_shares"):  # which add columns
            figures.draw(name, db, made)
        if len(made):
            found[name] = made.to_csv(index=False)
    return found


def with_study(published, values):
    """Both attentions at two contexts beside the published numbers; two runs of four are done."""
    values |= {"published": True, "sizes": {"124M": values["sizes"]["s"]}, "budget": "59 updates"}
    values["axes"] |= {"size": ["124M"], "context": [16, 32]}
    folder = published.parent / "tiny"
    folder.mkdir()
    lay_out(folder, values)
    cells = study_file.read_record(folder / "study.json").grid.cells
    for i, run in enumerate(list(cells)[:2]):
        rows = [update(n, loss=9 - n / 100 - i / 50) for n in range(1, 60)]
        record(folder, run, log(header(run), *rows, validation(59, loss=9.5), end(59)))
    return folder


@pytest.fixture
def study(published, values):
    return with_study(published, values)


def lay_out(folder, values):
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))


def test_numbers_are_copied_and_curves_made_from_the_full_table(full_published, tmp_path):
    script, full = ROOT / "results/thin_published.py", full_published / "learning_curves.csv.gz"
    subprocess.run([sys.executable, script, full, tmp_path], check=True)
    for name in ("curves.csv", "runs.csv"):
        assert (tmp_path / name).read_bytes() == (HERE / name).read_bytes()
    for name in ("step_time.csv", "decode_time.csv", "final_loss.csv"):
        assert read(HERE / name) == read(full_published / name)


def test_a_study_copied_without_the_published_numbers_has_those_of_the_package(study, tmp_path):
    alone = shutil.copytree(study, tmp_path / "alone" / "tiny")
    rows = []
    for folder in (study, alone):
        store.build(folder)
        with store.connect(folder / "store") as db:
            rows.append(db.sql("SELECT source, count(*) FROM runs GROUP BY ALL").fetchall())
    assert [*map(len, rows)] == [2, 2]
    assert sorted(rows[0]) == sorted(rows[1])


def test_every_row_is_in_the_store_and_the_ends_of_series_too(db):
    made = {"cells": 48, "runs": 48, "updates": 2469, "measurements": 215 + 29 + 74 + 3}
    assert {name: len(db.table(name)) for name in EXPORTS} == dict.fromkeys(EXPORTS, 0) | made
    ends = "SELECT method, context FROM speeds WHERE size = '124M' AND status = 'oom' ORDER BY ALL"
    assert db.sql(ends).fetchall()[-1] == ("softmax no_flash", 32768)
    assert db.sql("SELECT DISTINCT source FROM cells").fetchall() == [("published",)]
    for view in ("planned", "validation", "training", "stability", "spikes", "by_position"):
        assert db.sql(f"SELECT count(*) FROM {view}").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("stem", "column"), [("step", "milliseconds"), ("decode", "milliseconds_per_token")]
)
def test_times_are_the_published_ones(db, stem, column):
    names = {"softmax_kv_cache": "softmax"}
    if stem == "decode":
        names["linear_state"] = "linear"
    expected = {
        (
            f"{row['params_millions']}M",
            names.get(row["implementation"], row["implementation"].replace("_", " ", 1)),
            int(row["context"]),
        ): float(row[column])
        for row in read(HERE / f"{stem}_time.csv")
    }
    query = f"SELECT * FROM speeds WHERE kind = 'time_{stem}' AND status = 'done'"
    columns = "size, method, context, 1000 * seconds"
    found = db.sql(f"SELECT {columns} FROM ({query})").fetchall()
    assert {tuple(key): time for *key, time in found} == pytest.approx(expected)


def test_sizes_count_parameters_and_flops_as_our_models_do(db, cell):
    shapes = db.sql(
        "SELECT DISTINCT n_layer, d_model, context, attention, params, params_total, "
        "flops_per_token FROM known"
    ).fetchall()
    assert len(shapes) == 48
    for n_layer, d_model, context, attention, params, total, flops in shapes:
        ours = replace(
            cell, attention=attention, context=context,
            model=Model(n_layer=n_layer, n_head=d_model // 64, d_model=d_model, vocab_size=50257),
        )  # fmt: skip
        shape = sizing.shape(ours)
        assert (total, flops) == (shape.params_total, shape.flops_per_token)
        assert params == total - (50257 + context) * d_model


MOST_ROWS = 100
"""Longer tables are held by their hash."""


def ten_digits(text):
    """Numbers of a table to ten digits: processors differ in the last ones."""
    return re.sub(r"\d+\.\d{8,}(e-?\d+)?", lambda found: f"{float(found[0]):.10g}", text)


def test_the_rows_of_the_figures_are_those_that_were_reviewed(rows, golden):
    tables = {name: ten_digits(text) for name, text in rows.items()}
    short = {name for name, text in tables.items() if text.count("\n") <= MOST_ROWS}
    for name in short:
        golden(f"figures/{name}.csv", tables[name])
    hashes = {name: sha256(tables[name].encode()).hexdigest() for name in sorted({*rows} - short)}
    golden("figures/sha256.txt", "".join(f"{sha}  {name}.csv\n" for name, sha in hashes.items()))
    known = {path.stem for path in (FOLDER / "figures").glob("*.csv")}
    assert known == short


@pytest.mark.parametrize("name", ["learning_curves", "context_curves"])
def test_curves_beside_the_figures_are_the_published_ones(rows, name):
    def numbers(row, update):
        return row["attention"], int(row["context"]), float(row[update]), float(row["hours"])

    drawn, points = csv.DictReader(rows[name].splitlines()), read(HERE / "curves.csv")
    found = sorted(
        (row["size"], *numbers(row, "updates"), float(row["spike"] or row["loss"])) for row in drawn
    )
    expected = sorted(
        (f"{row['params_millions']}M", *numbers(row, "update"), float(row["train_loss"]))
        for row in points
    )
    assert len(found) == len(expected) == 2469
    for one, other in zip(found, expected, strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:])


def test_a_study_that_does_not_ask_for_them_has_none(study):
    values = json.loads((study / "study.json").read_text())["study"]
    lay_out(study, values | {"published": False})
    shutil.rmtree(study.parent / "published")
    store.build(study)
    with store.connect(study / "store") as db:
        for table in ("cells", "runs", "measurements"):
            query = f"SELECT count(*) FROM {table} WHERE source = 'published'"
            assert db.sql(query).fetchall() == [(0,)]
        assert "Buckman" not in " ".join(question.paragraphs(db, None))


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """The store of a study with published numbers beside its own."""
    values = copy.deepcopy(STUDY)
    folder = with_study(copied(tmp_path_factory.mktemp("beside")), values)
    store.build(folder)
    with store.connect(folder / "store") as db:
        yield db, study_file.read_record(folder / "study.json").grid.study


def test_published_runs_are_no_cells_of_the_study(beside):
    db, study = beside
    counts = "SELECT status, count(*) FROM status GROUP BY status ORDER BY status"
    assert db.sql(counts).fetchall() == [("done", 2), ("pending", 2)]
    assert db.sql("SELECT count(*) FROM stability").fetchall() == [(2,)]
    assert db.sql("SELECT count(*) FROM training").fetchall() == [(2 * 59,)]
    columns = "source, split, count(*), count(val_loss)"
    assert db.sql(f"SELECT {columns} FROM final GROUP BY ALL ORDER BY ALL").fetchall() == [
        ("measured", "validation", 2, 2), ("published", "train", 46, 0),
    ]  # fmt: skip
    assert re.findall(r"\d+", figures.unfinished_note(db)) == ["4", "2", "2"]
    numbers = re.findall(r"\d+", " ".join(question.paragraphs(db, study)))
    assert {"4", "48", "289"} <= {*numbers}  # cells, runs and times


@pytest.mark.parametrize(
    "name", ["learning_curves", "parameter_scaling", "context_scaling", "context_curves"]
)
def test_no_line_holds_numbers_of_both_sources_and_the_published_are_cited(beside, name):
    figure, rows = figures.draw(name, beside[0])
    lines: list[Any] = [part for axes in figure.axes for part in axes.lines]
    assert set(rows.source) == {"measured", "published"}
    ours = set(rows.loss[rows.source == "measured"])
    heights = [line.get_ydata() for line in lines]
    dots: list[Any] = [part for axes in figure.axes for part in axes.collections]
    heights += [part.get_offsets()[:, 1] for part in dots]
    marks = [set(map(float, known)) & set(rows.loss) for known in heights]
    assert sum(bool(mark & ours) for mark in marks) >= 2
    assert not [mark for mark in marks if mark & ours and mark - ours]
    assert any(CITATION in text.get_text() for text in figure.texts)


DAMAGES = [
    ("runs", lambda text: text[:-4]),
    ("step_time", lambda text: text.replace("milliseconds", "ms", 1)),
    ("curves", lambda text: text.replace("99.5", "x", 1)),
    ("curves", lambda text: text.rsplit("\n", 2)[0] + "\n"),
    ("final_loss", lambda text: text.replace("3.332655", "-3.3", 1)),
    ("decode_time", lambda text: text.replace("0.45857", "", 1)),
    ("final_loss", lambda text: text.replace("124,", "125,", 1)),
    ("step_time", lambda text: text.replace("chunked", "chunky", 1)),
    ("runs", lambda text: text.replace("linear", "hyena", 1)),
    ("step_time", lambda text: text + text.splitlines()[-1] + "\n"),
]
"""Cut, without its column, no number, cut at a line, below zero, without a number, of no size of
GPT-2, of no implementation and of no attention of the post, and with a row twice."""


@pytest.mark.parametrize(("stem", "damage"), DAMAGES)
def test_a_damaged_file_is_named_in_one_sentence(published, stem, damage):
    path = published / f"{stem}.csv"
    path.write_text(damage(path.read_text()))
    with refused(UserError, f"{stem}.csv") as caught:
        store.build(published)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_ways_out(study):
    (study.parent / "published" / "final_loss.csv").unlink()
    with refused(UserError, "final_loss.csv", "git", "published: false"):
        store.build(study)


@pytest.mark.ci
def test_they_are_drawn_without_torch(published):
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in {'torch', 'triton'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from lmscaling.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "figures", "results/published"],
        cwd=published.parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = done.stdout.split()
    assert "results/published/figures/learning_curves.svg" in told
    assert "results/published/figures/learning_rates.svg" not in told
    assert not (published / "figures/learning_rates.svg").exists()
    for path in (FOLDER / "figures").glob("*.csv"):
        drawn = (published / "figures" / path.name).read_text()
        assert ten_digits(drawn) == path.read_text()
    text = (published / "report.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == len(list(published.glob("figures/*.svg")))


def test_the_fit_of_a_final_loss_gives_those_published(full_published):
    curves: dict[tuple, list[float]] = defaultdict(list)
    with gzip.open(full_published / "learning_curves.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            curves[key(row)].append(float(row["train_loss"] or "nan"))
    with open(full_published / "final_loss.csv") as file:
        losses = {key(row): float(row["final_train_loss"]) for row in csv.DictReader(file)}
    ends = {run: final_loss.fit(np.array(curves[run])) for run in losses}
    off = [abs(end.loss - losses[run]) for run, end in ends.items() if end.loss is not None]
    assert len(off) > 35
    assert np.median(off) < 0.003
    assert max(off) < 0.02
    assert all(len(curves[run]) < 400 for run in ends if ends[run].loss is None)


def key(row):
    return row["attention"], row["params_millions"], row["context"]
