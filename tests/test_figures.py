"""Every figure draws what there is, labels its axes with units, and is the same every time."""

import copy
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import pytest
import speed_points
import test_store
import test_tasks
from conftest import STUDY, refused
from matplotlib import pyplot as plt
from test_store import end, evaluated, evaluation, header, live, log, record, update, validation

from lmscaling import figures, registry, report
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.figures.shared import style
from lmscaling.records import forecast
from lmscaling.report import tables as report_tables
from lmscaling.report.table import SECTIONS
from lmscaling.store import build as store

NAMES = list(registry.figures())
TIMED = re.compile(r"FROM (speeds|measurements|checks)|task_")
"""What a query reads that shows a sweep, the study of a device or tasks."""
TRAINING = [name for name in NAMES if not TIMED.search(figures.load(name).QUERY)]
SHOWS_LOSS = re.compile(r"\b(val_)?loss\b|FROM learning_curves")
LOSSES = [name for name in TRAINING if SHOWS_LOSS.search(figures.load(name).QUERY)]
CURVES = {name for name in NAMES if hasattr(figures.load(name), "SWITCH")}
FIRST = {name for name in NAMES if figures.load(name).SECTION == "answer"}
"""Figures of the first screen: of several attentions, and of a fitted law."""
LAWS = [name for name in NAMES if figures.load(name).SECTION == "laws"]


def write_study(folder, values):
    values["axes"] |= {
        "size": ["s", "m"], "context": [16, 32], "seed": [0, 1], "lr_scale": [1.0, 2.0],
    }  # fmt: skip
    values["datasets"]["recall"] = test_tasks.RECALL
    small = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}
    values["sizes"] |= {"r": small, "q": small | {"d_model": 16}}
    task = test_tasks.TASK | {"seed": [0], "lr_scale": [1.0], "size": ["r", "q"]}
    values["tasks"] = {"recall": task | {"validation": {"tokens": 114, "every_tokens": 114}}}
    made = {"command": "snakemake --cores <all>", "study": values}
    (folder / "study.json").write_text(json.dumps(made))
    return folder


@pytest.fixture
def study(tmp_path, values):
    return write_study(tmp_path, values)


@pytest.fixture
def cells(study):
    return cells_of(study)


def cells_of(study):
    return list(study_file.read_record(study / "study.json").grid.cells.values())


def finish(study, cells):
    for i, cell in enumerate(cells):
        rows = [update(n, loss=4 - n / 40 - i / 50) for n in range(1, 40)]
        rows = [replace(row, epoch=1 + (row.update - 1) // 13) for row in rows]
        rows += [test_store.gradients(n) for n in range(1, 40)]
        made = [header(cell.run), *rows, validation(20), validation(39, loss=3 - i / 50), end(39)]
        record(study, cell.run, log(*made), updates=39)
        lines = [evaluation(cell.run, cell.context, axis, start, 4.0 - start / 20 - i / 50)
                 for axis in ("sequence", "document") for start in (0, 1, 2, 4, 8)]  # fmt: skip
        evaluated(study, cell.run, log(*lines))


def fill(study, cells):
    """Runs that were foreseen, tasks, and a speed study."""
    for run, cell in study_file.read_record(study / "study.json").grid.tasks.items():
        test_tasks.finish(study, run, cell, 0.5)
    foreseen = [
        {"run": cell.run, "name": cell.name, "quantity": "loss", "median": 3.0, "sd": 0.1}
        for cell in cells
    ]
    forecast.write(study, foreseen, sealed="2025-01-01T00:00:00+00:00")
    finish(study, cells)
    speed_points.write(study, *speed_points.tiny())


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def rows_of(name, db):
    return db.sql(figures.load(name).QUERY).df()


def drawn(study, name):
    store.build(study)
    with store.connect(study / "store") as db:
        rows = rows_of(name, db)
        return figures.load(name).draw(rows, db), rows


def counts(note):
    """``Of 4 cells: 1 done, 3 pending.`` as pairs of a word and a number."""
    return [(words.strip(), int(n)) for n, words in re.findall(r"(\d+) ([a-z ]+)", note)]


def begin(study, cells):
    """One run is done, another is running."""
    finish(study, cells[:1])
    live(study, cells[1].run, log(header(cells[1].run), update(1), validation(1)))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A study that a function has filled, and its store; both are made once for each time."""

    @cache
    def build(fill, _time=0):
        study = write_study(tmp_path_factory.mktemp("study"), copy.deepcopy(STUDY))
        fill(study, cells_of(study))
        store.build(study)
        return study

    return build


@pytest.fixture(scope="module")
def opened(built):
    """The exports of a study that a function has filled, opened once for all tests."""
    with ExitStack() as stack:
        yield cache(lambda fill: stack.enter_context(store.connect(built(fill) / "store")))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"image_samples", *FIRST}])
def test_it_draws_a_whole_study_with_units_on_every_axis(opened, name):
    figure, rows = figures.draw(name, opened(fill))
    labels = [a.get_xlabel() for a in figure.axes] + [a.get_ylabel() for a in figure.axes]
    for label in filter(None, labels):
        assert re.search(r"\(.+\)", label) or label in {"Steps", "Tokens", "Attention"}, label
    assert any(a.get_xlabel() for a in figure.axes)
    assert any(a.get_ylabel() for a in figure.axes)
    assert name not in LOSSES or any("nats per byte" in label for label in labels)
    assert len(rows) > (15 if name in TRAINING else 3)


@pytest.mark.parametrize(
    "name", [n for n in TRAINING if not (n.startswith("learning_curves_") or n in FIRST)]
)
def test_it_draws_one_run_and_says_what_is_missing(opened, name):
    figure, _ = figures.draw(name, opened(begin))
    lines = [line for text in figure.texts for line in text.get_text().splitlines()]
    told = [counts(line) for line in lines if line.startswith("Of ")]
    assert told == [[("cells", 32), ("done", 1), ("running", 1), ("pending", 30)]]


@pytest.mark.parametrize(
    ("third", "label"), [("gated", "gated"), ({"gated": {"rank": 1234567}}, "gated.rank1234567")]
)
def test_several_attentions_are_compared_in_one_panel_and_ranked_where_names_have_room(
    study, third, label
):
    axes = json.loads((study / "study.json").read_text())["study"]["axes"] | {"lr_scale": [1.0]}
    lay_out(study, axes=axes | {"attention": ["softmax", "linear", third]}, budget="39 updates")
    cells = cells_of(study)
    finish(study, [cell for cell in cells if cell.attention != "linear" or cell.size == "s"])
    figure, rows = drawn(study, "overview")
    losses, gaps = figure.axes
    assert {text.get_text() for text in losses.texts} == {"softmax", "linear", label}
    assert {text.get_text() for text in gaps.get_yticklabels()} == {"linear", label}
    assert {*losses.get_xticks()} == {16, 32}
    assert len(rows) == 2 * 2 * (2 + 1 + 2)
    is_below = gaps.get_position().y1 < losses.get_position().y0
    assert is_below == (third != label)
    lay_out(study, axes=axes)
    store.build(study)
    with store.connect(study / "store") as db:
        assert rows_of("overview", db).empty  # two are compared in words


@pytest.mark.parametrize("params", [[50176, 50241], [99, 101], [124e6, 355e6], [1e4, 1e8]])
def test_ticks_of_an_axis_of_sizes_differ_from_each_other(params):
    figure, axes = plt.subplots()
    axes.plot(params, [2.0, 1.0])
    style.count_scale(axes)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    labels = [text.get_text() for place, text in ticks if low <= place <= high]
    assert len({*labels}) == len(labels) > 1


@pytest.mark.parametrize(
    ("contexts", "shown"), [([16, 32], "context_scaling"), ([16], "parameter_scaling")]
)
def test_a_single_size_has_no_figure_of_sizes(study, contexts, shown):
    axes = json.loads((study / "study.json").read_text())["study"]["axes"] | {"lr_scale": [1.0]}
    lay_out(study, axes=axes | {"size": ["s"], "context": contexts}, budget="39 updates")
    finish(study, cells_of(study))
    store.build(study)
    with store.connect(study / "store") as db:
        of_sizes = "context_scaling", "parameter_scaling", "isotime", "surface"
        assert [name for name in of_sizes if len(rows_of(name, db))] == [shown]


def test_a_study_without_runs_has_figures_that_say_so(built):
    study = built(lambda *_: None)
    with store.connect(study / "store") as db:
        for name in NAMES:
            figure, rows = figures.draw(name, db)
            assert len(figure.texts) > len(rows) == 0 or name == "grid_status"
    path = figures.save("memory", study / "store", study / "figures")
    assert not figures.n_rows("memory", path.parent)


@pytest.mark.parametrize("name", ["learning_curves", "grid_status"])
def test_equal_data_make_equal_files(built, name):
    made = [built(fill, time) for time in (0, 1)]
    paths = [figures.save(name, study / "store", study / "figures") for study in made]
    for kind in figures.FORMATS:
        one, other = (path.with_suffix(f".{kind}").read_bytes() for path in paths)
        assert one == other, kind
    assert ElementTree.parse(paths[0]).getroot().tag.endswith("svg")
    assert paths[0].with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with store.connect(made[0] / "store") as db:
        rows = rows_of(name, db).to_csv(index=False)
    assert paths[0].with_suffix(".csv").read_text() == rows


def test_its_docstring_is_a_caption_and_it_belongs_to_a_section():
    for name in NAMES:
        caption = figures.caption(name)
        assert 3 < len(caption.title.split()) < 16, name
        assert caption.text.endswith("."), name
        assert figures.load(name).SECTION in SECTIONS, name
    with refused(UserError, "context_scalling", "nearest is 'context_scaling'"):
        figures.load("context_scalling")


def test_branches_are_counted_apart_and_change_no_count_of_cells(study, cells):
    finish(study, cells[1:])
    laid_out = lay_out(study, branches={"shares": [0.5, 1.0], "size": "m", "context": 16})
    first, second, *others = laid_out.branches
    branch(study, first)
    record(study, second, b"", "no_trunk")
    cells_told = [("cells", 32), ("done", 31), ("pending", 1)]
    expected = [("branches", 16), ("done", 1), ("no trunk", 1), ("pending", 14)]
    assert counts(note(study)) == [*cells_told, *expected]
    for run in (second, *others):
        branch(study, run)
    assert counts(note(study)) == cells_told
    finish(study, cells[:1])
    assert note(study) == ""


def note(study):
    store.build(study)
    with store.connect(study / "store") as db:
        return figures.unfinished_note(db)


def branch(study, run):
    shutil.rmtree(study / "runs" / run, ignore_errors=True)
    record(study, run, log(header(run, start=30), update(39), validation(39, loss=2.0), end(39)))


def test_learning_curves_and_laws_have_the_endpoints_and_no_other_figure(study, cells):
    def tables():
        store.build(study)
        with store.connect(study / "store") as db:
            found = {name: rows_of(name, db).to_csv(index=False) for name in TRAINING}
            return found, {table.name: table for table in report_tables.tables(db)}

    finish(study, cells)
    plain, told = tables()
    assert not told["endpoints"].rows
    for run in lay_out(study, branches={"shares": [0.5]}).branches:
        branch(study, run)
    drawn, told = tables()
    assert len(told["endpoints"].rows) == 32
    ends = [row for row in drawn["learning_curves"].splitlines() if row.startswith("decayed")]
    assert len(ends) == 16  # of the better of two rates
    for name in LAWS:
        assert ("decayed" in drawn[name]) == (name != "multiplier")
    assert drawn["learning_curves"].count("\n") == plain["learning_curves"].count("\n") + 16
    for name in set(TRAINING) - CURVES - set(LAWS):
        assert drawn[name] == plain[name], name


def tell(study, blank=True):
    """The page of a study with the rows of its figures, which are not drawn: that takes seconds."""
    store.build(study)
    (study / "figures").mkdir(exist_ok=True)
    with store.connect(study / "store") as db:
        for name in NAMES:
            rows = rows_of(name, db)
            if blank or len(rows):
                (study / "figures" / f"{name}.csv").write_text(rows.to_csv(index=False))
                (study / "figures" / f"{name}.svg").write_text("<svg/>")
    return report.write(study).read_text()


def lay_out(study, **changes):
    values = json.loads((study / "study.json").read_text())
    values["study"] |= changes
    (study / "study.json").write_text(json.dumps(values))
    return study_file.read_record(study / "study.json").grid
