"""Tasks: cells beside a study's grid, and what figures and the report show of them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_store
import torch
from conftest import refused
from matplotlib import pyplot as plt
from scipy.stats import binomtest

from lmscaling import figures
from lmscaling.config import grid, new_study, study_file
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.fits import seeds, slopes
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.report import scoreboard
from lmscaling.store.build import build, connect

RECALL: dict[str, Any] = {"kind": "recall", "pairs": [1, 2, 4], "queries": 5, "keys": 8}
RECALL["values"] = 8
TASK = {
    "dataset": "recall", "size": "r", "context": 19, "position": "none", "update_tokens": 114,
    "budget": "3 updates", "validation": {"tokens": 228, "every_tokens": 114},
    "optimizer": {"warmup_updates": 1},
}  # fmt: skip


@pytest.fixture
def study(values):
    values["datasets"]["recall"] = RECALL | {"sequences": 60, "validation_sequences": 30}
    shape = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2, "token_shift": True}
    values["sizes"]["r"] = shape | {"init_std": 0.1}
    values["tasks"] = {"recall": dict(TASK)}
    return values


def task_cell(study):
    return next(iter(grid.expand(study).tasks.values()))


def test_tasks_add_cells_of_their_own_and_change_no_other(study, values):
    laid_out = grid.expand(study)
    plain = grid.expand({key: v for key, v in study.items() if key != "tasks"})
    assert laid_out.cells == plain.cells
    assert {cell.attention for cell in laid_out.tasks.values()} == {"softmax", "linear"}
    cell = task_cell(study)
    assert (cell.task, cell.context, cell.position) == ("recall", 19, "none")
    assert cell.model.token_shift
    assert cell.name == "recall-softmax-r-ctx19-s0"
    assert laid_out.trained == {laid_out.tokens, cell.data.folder}
    assert list(laid_out.corpora) == [laid_out.tokens, cell.data.folder]
    assert laid_out.n_shards(cell.data.folder, "train") == 1


MISTAKES = [
    ({"dataset": "recal"}, "recal", "'recall'"),
    ({"size": "s"}, "size", "'s'"),
    ({"size": "q"}, "size", "'q'"),
    ({"attention": ["softmx"]}, "softmx", "softmax"),
    ({"update_tokens": 57 * 2 + 1}, 114, 115),
    ({"validation": {"tokens": 20, "every_tokens": 114}}, "validation.tokens", 20),
    ({"tokenizer": "byte"}, "tokenizer", "'byte'"),
    ({"tokenizer": "gpt2"}, "gpt2", "bytes"),
    ({"skip": [{"size": "x", "reason": "?"}]}, "skip", "{size: x}"),
]


@pytest.mark.parametrize(("change", "place", "value"), MISTAKES)
def test_a_mistake_in_a_task_is_named_with_its_place(study, change, place, value):
    study["tokenizers"]["gpt2"] = {"encoding": "gpt2"}
    study["tasks"]["recall"] |= change
    with refused(UserError, "tasks.recall", place, value):
        grid.expand(study)


@pytest.mark.parametrize(("change", "characters", "value"), [
    ({"validation": {"tokens": 19 * 31, "every_tokens": 114}}, 100, 570),
    ({"context": 38, "validation": {"tokens": 228, "every_tokens": 114}}, 1000, 38),
])  # fmt: skip
def test_what_sequences_cannot_give_is_refused(study, tmp_path, change, characters, value):
    """More validation tokens than they have, and another context than their length."""
    study["tasks"]["recall"] |= change
    for split in ("train", "validation"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text(json.dumps({"text": "x" * characters}))
        study["datasets"]["lines"][split] = [str(path)]
    study["validation"] = {"tokens": 16, "every_tokens": 64}
    with refused(UserError, "datasets.recall", value):
        new_study.plan(study, folder=str(tmp_path))


def test_tasks_begin_with_drawn_weights(study):
    made = grid.expand(study | {"position": "rope", "initial": {"study": "mine", "context": 64}})
    assert all(cell.initial for cell in made.cells.values())
    assert made.tasks
    assert not any(cell.initial for cell in made.tasks.values())


def test_a_token_shift_adds_a_share_of_the_embedding_before(study):
    cell = task_cell(study)
    model, plain = GPT(cell), GPT(replace(cell, model=replace(cell.model, token_shift=False)))
    assert model.params - plain.params == 8
    assert model.state_bytes(0) - plain.state_bytes(0) == 8 * 4
    assert plain.shift is None
    x = torch.tensor([[3, 5, 7]])
    e = plain.wte(x)[0]
    expected = torch.stack((e[0], e[1] + 0.5 * e[0], e[2] + 0.5 * e[1]))
    entered = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model(x)
    torch.testing.assert_close(entered[0][0], expected)
    _, others = optimizer.build(model, cell).param_groups
    assert any(p is model.shift for p in others["params"])
    assert others["weight_decay"] == 0
    # The initial scale is that of the size.
    assert model.wte.weight.detach().std() == pytest.approx(0.1, rel=0.1)
    down = dict(model.named_parameters())["blocks.0.down.weight"].detach()
    assert down.std() == pytest.approx(0.1 / 2**0.5, rel=0.2)


def test_nothing_of_the_study_sees_its_tasks_and_their_views_do(study, tmp_path):
    study["tasks"]["recall"] |= {"lr_scale": [1.0, 2.0], "seed": [0, 1]}
    record = study_file.write_record(tmp_path / "study.json", {"command": "", "study": study})
    losses = {(1.0, 0): 0.5, (1.0, 1): 0.7, (2.0, 0): 0.1, (2.0, 1): None}
    for run, cell in record.tasks.items():
        finish(tmp_path, run, cell, losses[cell.lr_scale, cell.seed])
    build(tmp_path)
    with connect(tmp_path / "store") as db:
        for view in ("status", "final", "outcomes", "chosen", "training", "planned"):
            query = f"SELECT count(*) FROM {view} WHERE run IN (SELECT run FROM tasks)"
            assert db.sql(query).fetchall() == [(0,)], view
        assert len(db.sql("FROM tasks").fetchall()) == 8
        # One seed at 2.0 diverged, so its mean is infinite.
        assert db.table("task_rates").df().lr_scale.unique().tolist() == [1.0]
        columns = "attention, seed, score, measure, learned"
        rows = db.sql(f"SELECT {columns} FROM task_scores ORDER BY ALL").fetchall()
    scores = [(0, 0.9, "accuracy", True), (1, 0.4, "accuracy", False)]
    assert rows == [(name, *score) for name in ("linear", "softmax") for score in scores]


def finish(folder: Path, run: str, cell: Cell, loss: float | None, scores=None):
    """A record and a log of a run; a seed of 1 guesses, and a run without a loss has diverged."""
    accuracy = 0.4 if cell.seed == 1 else (scores or {}).get(cell.attention, 0.9)
    groups = {name: {"targets": 10, "loss": 1.0, "accuracy": accuracy} for name in ("1", "2", "4")}
    status = "done" if loss else "diverged"
    rows = [replace(test_store.validation(n), val_loss=loss, groups=groups) for n in (1, 2)]
    rows = [test_store.update(2), *rows]
    made = test_store.log(*rows, test_store.end(2, status=status))
    test_store.record(folder, run, made, status, state_bytes=64)


def scored_study(values, folder):
    """A study of two attentions on recall with three seeds; seed 1 only guesses."""
    values["tasks"]["recall"]["seed"] = [0, 1, 2]
    record = study_file.write_record(folder / "study.json", {"command": "", "study": values})
    for run, cell in record.tasks.items():
        finish(folder, run, cell, 0.5, {"softmax": 0.99, "linear": 0.9 - cell.seed / 20})
    return record


@pytest.fixture
def scored(study, tmp_path):
    """The store of ``scored_study``, without a run of the grid."""
    scored_study(study, tmp_path)
    build(tmp_path)
    with connect(tmp_path / "store") as db:
        yield db


def test_the_scoreboard_has_a_column_for_each_task(scored):
    table = scoreboard.table(scored)
    assert table
    assert re.findall(r"recall|\d+|↑", table.head[1]) == ["recall", "4", "↑"]
    cells = {row[0]: re.findall(r"[★≈]|[\d.]+", row[1]) for row in table.rows}
    assert cells["softmax"] == ["★", "0.990", "0.990", "0.990", "2", "3"]  # 2 of 3 have learned
    # 0.9 and 0.8: mean 0.85, standard error 0.05, t of one degree 12.7, cut at 1.
    assert cells["linear"] == ["≈", "0.850", "0.215", "1.000", "2", "3"]


def test_the_scoreboard_has_losses_of_the_cell_that_most_attentions_have(study, tmp_path):
    study["axes"] |= {"size": ["s", "m"], "context": [16, 32]}
    record = scored_study(study, tmp_path)
    for run, cell in record.cells.items():
        if cell.size == "s" or cell.attention == "softmax":
            loss = {"softmax": 2.0, "linear": 3.0}[cell.attention] + cell.context / 100
            finish(tmp_path, run, cell, loss)
    build(tmp_path)
    with connect(tmp_path / "store") as db:
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
    assert np.asarray(softmax.lines[1].get_ydata(), dtype=float) == pytest.approx(0.99)
    # The numbers of pairs of seed 1 are crosses.
    assert len(np.asarray(softmax.collections[1].get_offsets())) == 3
    plt.close("all")


def test_intervals_over_three_seeds_hold_the_mean_as_often_as_they_say():
    random = np.random.default_rng(0)
    held = [1.0 in (seeds.mean(sample.tolist())[1] or ())
            for sample in random.normal(1.0, 0.1, (4000, 3))]  # fmt: skip
    assert binomtest(sum(held), 4000, 0.95).pvalue > 0.001
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
    noisy = exact * np.exp(np.random.default_rng(1).normal(0, 0.05, (2000, 6)))
    found = [slopes.exponent(lengths, one) for one in noisy]
    assert binomtest(sum(1.5 in one[1] for one in found if one), 2000, 0.95).pvalue > 0.001
