"""What figures and the report show of tasks, and how sure it is."""

import re

import numpy as np
import pytest
from conftest import sentence
from matplotlib import pyplot as plt
from scipy.stats import binomtest
from test_tasks import RECALL, TASK, finish

from lmscaling import figures
from lmscaling.config import study_file
from lmscaling.fits import seeds, slopes
from lmscaling.report import scoreboard
from lmscaling.store.build import build, connect


def scored_study(values, folder):
    """A study of two attentions on recall with three seeds; seed 1 only guesses."""
    values["datasets"]["recall"] = RECALL | {"sequences": 60, "validation_sequences": 30}
    values["sizes"]["r"] = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}
    values["tasks"] = {"recall": TASK | {"seed": [0, 1, 2]}}
    folder.mkdir(parents=True)
    record = study_file.write_record(folder / "study.json", {"command": "", "study": values})
    for run, cell in record.tasks.items():
        finish(folder, run, cell, 0.5, {"softmax": 0.99, "linear": 0.9 - cell.seed / 20})
    return record


@pytest.fixture
def scored(values, tmp_path):
    """The store of ``scored_study``, without a run of the grid."""
    folder = tmp_path / "results" / "tiny"
    scored_study(values, folder)
    build(folder)
    with connect(folder / "store") as db:
        yield db


def test_the_scoreboard_has_a_column_for_each_task(scored):
    table = scoreboard.table(scored)
    assert table
    assert re.findall(r"recall|\d+|↑", table.head[1]) == ["recall", "4", "↑"]
    cells = {row[0]: re.findall(r"[★≈]|[\d.]+", row[1]) for row in table.rows}
    assert cells["softmax"] == ["★", "0.990", "0.990", "0.990", "2", "3"]  # 2 of 3 have learned
    # 0.9 and 0.8: mean 0.85, standard error 0.05, t of one degree 12.7, cut at 1.
    assert cells["linear"] == ["≈", "0.850", "0.215", "1.000", "2", "3"]
    (told,) = scoreboard.sentences(scored)
    sentence("scoreboard", told)
    assert re.findall(r"softmax|linear|0\.\d+", told) == ["softmax", "0.990", "linear"]


def test_the_scoreboard_has_losses_of_the_cell_that_most_attentions_have(values, tmp_path):
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32]}
    folder = tmp_path / "results" / "tiny"
    record = scored_study(values, folder)
    for run, cell in record.cells.items():
        if cell.size == "s" or cell.attention == "softmax":
            loss = {"softmax": 2.0, "linear": 3.0}[cell.attention] + cell.context / 100
            finish(folder, run, cell, loss)
    build(folder)
    with connect(folder / "store") as db:
        table = scoreboard.table(db)
    assert table
    assert re.findall(r"\w+", table.head[1])[:4] == ["lines", "s", "at", "32"]
    assert {row[0]: row[1] for row in table.rows} == {"softmax": "2.320", "linear": "3.320"}


def test_seeds_that_have_not_learned_are_shown_and_not_averaged(scored):
    for name in ("recall_state", "task_curves", "recall_pairs"):
        figure, rows = figures.draw(name, scored)
        assert set(rows.attention) == {"softmax", "linear"}
        assert any(axes.lines for axes in figure.axes)
    softmax = next(axes for axes in figure.axes if axes.get_title() == "softmax")
    line = softmax.lines[1].get_ydata()
    np.testing.assert_allclose(np.asarray(line, dtype=float), 0.99)
    crosses = softmax.collections[1].get_offsets()
    assert len(np.asarray(crosses)) == 3  # the numbers of pairs of seed 1
    plt.close("all")


def test_a_study_without_tasks_has_no_scoreboard(values, tmp_path):
    study_file.write_record(tmp_path / "study.json", {"command": "", "study": values})
    build(tmp_path)
    with connect(tmp_path / "store") as db:
        assert scoreboard.table(db) is None


def test_intervals_over_three_seeds_hold_the_mean_as_often_as_they_say():
    random = np.random.default_rng(0)
    held = 0
    for sample in random.normal(1.0, 0.1, (4000, 3)):
        _, interval = seeds.mean(sample.tolist())
        assert interval
        held += 1.0 in interval
    assert binomtest(held, 4000, 0.95).pvalue > 0.001


def test_one_seed_has_no_interval_and_equal_differences_are_certain():
    assert seeds.mean([0.5]) == (0.5, None)
    assert seeds.p_value([0.1]) is None
    assert seeds.p_value([0.0, 0.0, 0.0]) == 1.0
    assert seeds.p_value([0.1, 0.1, 0.1]) == 0.0
    assert seeds.p_value([0.1, -0.1, 0.05]) == pytest.approx(0.807, abs=0.001)
    assert seeds.differences({0: 1.0, 2: 3.0}, {0: 0.5, 1: 9.0, 2: 1.0}) == [0.5, 2.0]


def test_exponents_are_those_of_the_longest_three_octaves_and_their_intervals_hold_them():
    lengths = np.array([64, 128, 1024, 2048, 4096, 8192])
    exact = np.where(lengths < 1024, 7.0, lengths**1.5)
    found = slopes.exponent(lengths, exact)
    assert found
    assert found[0] == pytest.approx(1.5)
    assert slopes.exponent([1024, 8192], [1.0, 2.0]) is None
    random = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        one = slopes.exponent(lengths, exact * np.exp(random.normal(0, 0.05, 6)))
        assert one
        held += 1.5 in one[1]
    assert binomtest(held, 2000, 0.95).pvalue > 0.001
