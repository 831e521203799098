"""Published numbers: copied whole, imported unchanged, and never taken for ours."""

import csv
import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from speed_of_python import slowness
from test_store import end, header, log, record, update, validation

from lmscaling import figures, report
from lmscaling.config import study_file
from lmscaling.config.cell import Model
from lmscaling.errors import UserError
from lmscaling.model import gpt
from lmscaling.records.exports import PUBLISHED as COLUMNS
from lmscaling.store import build as store

HERE = ROOT / "results" / "published"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def published(tmp_path):
    """A copy of what is in git."""
    folder = tmp_path / "results" / "published"
    folder.mkdir(parents=True)
    for stem in COLUMNS:
        shutil.copy(HERE / f"{stem}.csv", folder)
    return folder


@pytest.fixture
def study(published, values):
    """Both attentions at two contexts beside the published numbers; two runs of four are done."""
    values |= {"published": True, "sizes": {"124M": values["sizes"]["s"]}, "budget": "59 updates"}
    values["axes"] |= {"size": ["124M"], "context": [16, 32]}
    folder = published.parent / "tiny"
    folder.mkdir()
    lay_out(folder, values)
    for i, cell in enumerate(
        list(study_file.read_record(folder / "study.json").grid.cells.values())[:2]
    ):
        rows = [update(n, loss=9 - n / 100 - i / 50) for n in range(1, 60)]
        record(folder, cell.run, log(header(cell.run), *rows, validation(59, loss=9.5), end(59)))
    return folder


def lay_out(folder, values):
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))


def ask(folder, query):
    store.build(folder)
    with store.connect(folder / "store") as db:
        return db.sql(query).fetchall()


def test_thinned_curves_are_made_from_the_full_table_byte_for_byte(full_published, tmp_path):
    script, full = ROOT / "benchmarks/thin_published.py", full_published / "learning_curves.csv.gz"
    subprocess.run([sys.executable, script, full, tmp_path], check=True)
    for name in ("curves.csv", "runs.csv"):
        assert (tmp_path / name).read_bytes() == (HERE / name).read_bytes()


@pytest.mark.parametrize("stem", ["step_time", "decode_time", "final_loss"])
def test_copied_numbers_are_those_of_the_source(full_published, stem):
    assert read(HERE / f"{stem}.csv") == read(full_published / f"{stem}.csv")


def test_every_run_keeps_its_first_and_last_point_and_enough_between(published):
    for run in read(published / "runs.csv"):
        points = [
            point
            for point in read(published / "curves.csv")
            if all(point[k] == run[k] for k in ("params_millions", "attention", "context"))
        ]
        assert 35 <= len(points) <= 64
        assert points[0]["update"] == "99.5"
        assert (points[-1]["update"], points[-1]["hours"]) == (run["last_update"], run["hours"])


def test_every_row_is_in_the_store_and_the_ends_of_series_too(published):
    assert store.build(published) == {
        "cells": 48, "runs": 48, "attempts": 0, "updates": 2469, "validations": 0, "spikes": 0,
        "evaluations": 0, "measurements": 215 + 29 + 74 + 3,
        "gradients": 0, "numerics": 0, "designs": 0, "forecasts": 0,
        "samples": 0,
    }  # fmt: skip
    ends = "SELECT method, context FROM speeds WHERE size = '124M' AND status = 'oom' ORDER BY ALL"
    assert ask(published, ends)[-1] == ("softmax no_flash", 32768)
    assert ask(published, "SELECT DISTINCT source FROM cells") == [("published",)]
    for view in ("planned", "validation", "training", "stability", "spikes", "by_position"):
        assert ask(published, f"SELECT count(*) FROM {view}") == [(0,)]


def test_times_are_the_published_ones(published):
    query = (
        "SELECT size, method, context, seconds FROM speeds WHERE kind = '{}' AND status = 'done'"
    )
    for kind, column, names in (
        ("time_step", "milliseconds", {}),
        (
            "time_decode",
            "milliseconds_per_token",
            {"softmax_kv_cache": "softmax", "linear_state": "linear"},
        ),
    ):
        stem = kind.removeprefix("time_")
        expected = {
            (
                f"{row['params_millions']}M",
                names.get(row["implementation"], row["implementation"].replace("_", " ", 1)),
                int(row["context"]),
            ): float(row[column])
            for row in read(published / f"{stem}_time.csv")
        }  # fmt: skip
        found = {
            key: 1000 * seconds
            for *key, seconds in ask(published, query.format(kind))
            for key in [tuple(key)]
        }
        assert found == pytest.approx(expected)


def test_sizes_count_parameters_and_flops_as_our_models_do(published, cell):
    shapes = ask(
        published,
        "SELECT DISTINCT n_layer, d_model, context, attention, params, params_total, "
        "flops_per_token FROM known",
    )
    assert len(shapes) == 48
    for n_layer, d_model, context, attention, params, total, flops in shapes:
        ours = replace(
            cell, attention=attention, context=context,
            model=Model(n_layer=n_layer, n_head=d_model // 64, d_model=d_model, vocab_size=50257),
        )  # fmt: skip
        assert (total, flops) == (gpt.shape(ours).params_total, gpt.shape(ours).flops_per_token)
        assert params == total - (50257 + context) * d_model


def drawn(folder, name):
    """The rows that lie beside a figure of the published numbers alone."""
    store.build(folder)
    return read(figures.save(name, folder / "store", folder / "figures").with_suffix(".csv"))


@pytest.mark.parametrize("name", ["parameter_scaling", "context_scaling"])
def test_final_losses_beside_the_figures_are_the_published_ones(published, name):
    def key(row, size):
        return row["attention"], size, row["context"]

    found = {key(row, row["size"]): float(row["loss"]) for row in drawn(published, name)}
    assert found == {
        key(row, f"{row['params_millions']}M"): float(row["final_train_loss"])
        for row in read(published / "final_loss.csv")
    }


@pytest.mark.parametrize("name", ["learning_curves", "context_curves"])
def test_curves_beside_the_figures_are_the_published_ones(published, name):
    def numbers(row, update):
        return row["attention"], int(row["context"]), float(row[update]), float(row["hours"])

    rows, points = drawn(published, name), read(published / "curves.csv")
    found = sorted(
        (row["size"], *numbers(row, "updates"), float(row["spike"] or row["loss"])) for row in rows
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
    for table in ("cells", "runs", "measurements"):
        assert ask(study, f"SELECT count(*) FROM {table} WHERE source = 'published'") == [(0,)]
    assert "Buckman" not in page(study)


def page(study):
    list(figures.save_all(study / "store", study / "figures", blank=True))
    return report.write(study).read_text()


def test_published_runs_are_no_cells_of_the_study(study):
    assert ask(study, "SELECT status, count(*) FROM status GROUP BY status ORDER BY status") == [
        ("done", 2), ("pending", 2),
    ]  # fmt: skip
    assert ask(study, "SELECT count(*) FROM stability") == [(2,)]
    assert ask(study, "SELECT count(*) FROM training") == [(2 * 59,)]
    columns = "source, split, count(*), count(val_loss)"
    assert ask(study, f"SELECT {columns} FROM final GROUP BY ALL ORDER BY ALL") == [
        ("measured", "validation", 2, 2), ("published", "train", 46, 0),
    ]  # fmt: skip
    with store.connect(study / "store") as db:
        assert figures.unfinished_note(db) == "Of 4 cells: 2 done, 2 pending."


@pytest.mark.ci
def test_the_report_counts_published_runs_apart_from_the_cells(study):
    store.build(study)
    text = page(study)
    assert "4 cells, each with" in text
    assert "48 runs and 289 times of Buckman and Gelada" in text
    assert text.count('<tr class="done">') == 2


FIGURES = ["learning_curves", "parameter_scaling", "context_scaling", "context_curves"]


@pytest.mark.parametrize("name", FIGURES)
def test_no_line_holds_numbers_of_both_sources(study, name):
    store.build(study)
    module = figures.load(name)
    with store.connect(study / "store") as db:
        rows = db.sql(module.QUERY).df()
        axes = module.draw(rows, db).axes
    assert set(rows.source) == {"measured", "published"}
    ours = set(rows.loss[rows.source == "measured"])
    heights = [line.get_ydata() for part in axes for line in part.lines]
    heights += [dots.get_offsets()[:, 1] for part in axes for dots in part.collections]
    marks = [set(map(float, known)) & set(rows.loss) for known in heights]
    assert sum(bool(mark & ours) for mark in marks) >= 2
    assert not [mark for mark in marks if mark & ours and mark - ours]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_cites_whose_numbers_it_shows(study, name):
    store.build(study)
    text = figures.save(name, study / "store", study / "figures")
    assert text.stat().st_size > 10_000
    assert {row["source"] for row in read(text.with_suffix(".csv"))} == {"measured", "published"}


DAMAGES = [
    ("runs", lambda text: text[:-4], "its last line is cut"),
    ("step_time", lambda text: text.replace("milliseconds", "ms", 1), "it begins 'params_mill"),
    ("curves", lambda text: text.replace("99.5", "x", 1), "CSV Error on Line: 2"),
    ("curves", lambda text: text.rsplit("\n", 2)[0] + "\n", "does not end where runs.csv says"),
    ("final_loss", lambda text: text.replace("3.332655", "-3.3", 1), "lacks a positive number"),
    ("decode_time", lambda text: text.replace("0.45857", "", 1), "lacks a positive number"),
    ("final_loss", lambda text: text.replace("124,", "125,", 1), "which is no size of GPT-2"),
    ("step_time", lambda text: text.replace("chunked", "chunky", 1), "no implementation of the"),
    ("runs", lambda text: text.replace("linear", "hyena", 1), "no attention of the post"),
    ("step_time", lambda text: text + text.splitlines()[-1] + "\n", "has two rows for"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "damage", "problem"), DAMAGES)
def test_a_damaged_file_is_named_in_one_sentence(published, stem, damage, problem):
    path = published / f"{stem}.csv"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError) as error:
        store.build(published)
    assert problem in str(error.value)
    assert ".csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named_with_the_ways_out(study):
    (study.parent / "published" / "final_loss.csv").unlink()
    with pytest.raises(
        UserError, match=r"final_loss.csv do not exist; get the file from git again, or set"
    ):
        store.build(study)


@pytest.mark.ci
def test_they_are_drawn_alone_in_less_than_a_minute_without_torch(published):
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
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", code, "figures", "results/published"],
        cwd=published.parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert seconds < 60 * slowness()
    said = done.stdout.split()
    assert "results/published/figures/learning_curves.svg" in said
    assert "results/published/figures/learning_rates.svg" not in said
    assert not (published / "figures/learning_rates.svg").exists()
    text = (published / "report.html").read_text()
    assert 'id="crossings"' in text
    for absent in ('id="cells"', 'id="plan"', 'class="pending"', "git commit"):
        assert absent not in text
