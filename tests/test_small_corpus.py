"""Several epochs over a small text: the row that limits it, the study, the figure and the claim."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT, refused, sentence
from pandas import DataFrame
from test_figures import cells_of, write_study
from test_store import end, header, log, record, update, validation

from lmscaling import claims, figures
from lmscaling.claims.small_corpus import ROLES
from lmscaling.config import grid, new_study, study_file
from lmscaling.data.documents import read_shard
from lmscaling.errors import UserError
from lmscaling.store import build as store

PER_EPOCH = 10


@pytest.fixture
def study(tmp_path, values):
    return write_study(tmp_path, values)


@pytest.fixture
def limited():
    paths = [ROOT / "config" / name for name in ("study.yaml", "small_corpus.yaml")]
    return lambda *overrides: study_file.read_study(paths, overrides=overrides)


def test_the_study_compares_the_roles_of_the_claim_over_three_seeds(limited):
    cells = grid.expand(limited()).cells.values()
    names = {cell.attention for cell in cells}
    assert {*ROLES.values()} <= names
    assert (len(names), len(cells)) == (8, 24)
    assert {cell.seed for cell in cells} == {0, 1, 2}


def test_the_limit_keeps_the_first_files_of_each_split(limited):
    few, more = (
        [*grid.expand(limited(f"datasets.small.most_files={n}")).corpora.values()] for n in (3, 6)
    )
    for split in ("train", "validation"):
        three, six = ([*read_shard(corpus, split, 0).texts] for (corpus,) in (few, more))
        assert len(three) == 3
        assert six[:3] == three


def test_a_row_without_the_limit_is_the_text_that_it_was(limited):
    values = limited()
    row = values["datasets"]["small"]
    row.pop("most_files")
    folders = []
    for given in ({}, {"most_files": None}, {"most_files": 6}):
        values["datasets"]["small"] = row | given
        folders += grid.expand(values).corpora
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.parametrize("limit", ["0", "some"])
def test_a_wrong_limit_is_named(limited, limit):
    with refused(UserError, "datasets.small", "most_files", limit):
        grid.expand(limited(f"datasets.small.most_files={limit}"))


def test_the_plan_refuses_more_validation_than_the_files_can_have(limited, tmp_path):
    tokens = "validation.tokens=1280000"
    new_study.plan(limited(tokens, "datasets.small.most_files=10000"), folder=str(tmp_path))
    with pytest.raises(UserError, match=r"datasets\.small .* [\d,]+;"):  # this Python's files
        new_study.plan(limited(tokens, "datasets.small.most_files=1"), folder=str(tmp_path))


def finish(study, cell, losses, shift=0.0):
    """A run with a validation at the end of each epoch."""
    rows, last = [], len(losses) * PER_EPOCH
    for epoch, loss in enumerate(losses, 1):
        numbers = range((epoch - 1) * PER_EPOCH + 1, epoch * PER_EPOCH + 1)
        rows += [replace(update(n, loss=4 - epoch / 10 + shift), epoch=epoch) for n in numbers]
        rows += [replace(validation(epoch * PER_EPOCH, loss=loss + shift), epoch=epoch)]
    record(study, cell.run, log(header(cell.run), *rows, end(last)), updates=last)


def draw(study, *losses) -> tuple[DataFrame, Any]:
    """Rows and figure of two seeds of one cell, with losses of their own if they are given."""
    for cell in cells_of(study):
        if (cell.attention, cell.size, cell.context, cell.lr_scale) != ("softmax", "s", 16, 1.0):
            continue
        finish(study, cell, losses[cell.seed % len(losses)], cell.seed / 100)
    store.build(study)
    module = figures.load("epochs")
    with store.connect(study / "store") as db:
        rows = db.sql(module.QUERY).df()
        return rows, None if rows.empty else module.draw(rows, db)


def marker(figure):
    return next(line for line in figure.axes[0].lines if line.get_marker() == "o")


def test_both_losses_are_those_of_whole_epochs_and_the_best_one_is_marked(study):
    rows, figure = draw(study, [3.5, 3.0, 3.2, 3.4])
    by = rows.groupby(["split", "epochs"]).loss.mean()
    assert by["validation"].to_dict() == pytest.approx({1: 3.505, 2: 3.005, 3: 3.205, 4: 3.405})
    trained = {0.5: 3.905, 1.5: 3.805, 2.5: 3.705, 3.5: 3.605}
    assert by["train"].to_dict() == pytest.approx(trained)
    best = marker(figure)
    assert (best.get_xdata()[0], best.get_ydata()[0]) == (2, pytest.approx(3.005))
    assert best.get_markerfacecolor() == best.get_color()


def test_runs_that_read_their_text_once_have_no_rows(study):
    rows, _ = draw(study, [3.5])
    assert rows.empty


def test_the_mark_is_hollow_at_the_end_of_runs_and_its_interval_ends_there(study):
    _, figure = draw(study, [3.5, 3.2, 3.1, 3.0])
    assert marker(figure).get_markerfacecolor() == "white"
    shutil.rmtree(study / "runs")
    _, figure = draw(study, [3.5, 3.0, 3.2, 3.4], [3.5, 3.2, 3.0, 3.4])
    assert marker(figure).get_xdata()[0] == 2.5
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "|"]
    assert {x for line in lines for x in line.get_xdata()} == {1, 4}  # t of two seeds is 12.7


@pytest.mark.parametrize(("gaps", "verdict"), [
    ((-0.13, -0.12, -0.14), "fails"),
    ((0.018, 0.022, 0.026), "not tested"),  # beyond the margin, but not significantly
    ((0.01, 0.0, 0.02), "not tested"),  # within the margin, but not significantly
])  # fmt: skip
def test_equality_needs_an_interval_within_the_margin_and_its_opposite_one_outside(gaps, verdict):
    rows = [
        {"source": "measured", "size": size, "params": 1e6, "context": 128, "seed": seed,
         "role": role, "loss": 3 + (role == "candidate") * gap}
        for size in ("s0", "s1") for seed, gap in enumerate(gaps)
        for role in ("baseline", "candidate")
    ]  # fmt: skip
    found = claims.load("small_corpus").judge(DataFrame(rows))
    assert found.verdict == verdict
    if verdict == "fails":  # each gap is named with its place
        assert [found.why.count(value) for value in ("-0.130", "s0", "s1", "128")] == [2, 1, 1, 2]
    sentence("claim", found.why)
