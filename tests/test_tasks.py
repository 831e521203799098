"""Tasks: sequences with marked targets, trained by the ordinary trainer beside a study's grid."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_store
import torch
from conftest import refused

from lmscaling.config import grid, new_study, study_file
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
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
def test_what_sequences_cannot_give_is_refused_before_anything_runs(
    study, tmp_path, change, characters, value
):
    """More validation tokens than they have, and another context than their length."""
    study["tasks"]["recall"] |= change
    for split in ("train", "validation"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text(json.dumps({"text": "x" * characters}))
        study["datasets"]["lines"][split] = [str(path)]
    study["validation"] = {"tokens": 16, "every_tokens": 64}
    with refused(UserError, "datasets.recall", value):
        new_study.plan(study, folder=str(tmp_path))


def test_a_token_shift_does_not_cross_masked_documents(study):
    study["sizes"]["s"]["token_shift"] = True
    study["documents"] = "masked"
    with refused(UserError, "token_shift", "documents"):
        grid.expand(study)


def test_the_shift_adds_a_share_of_the_embedding_before(study):
    cell = task_cell(study)
    model, plain = (
        GPT(replace(cell, model=replace(cell.model, token_shift=shift))) for shift in (True, False)
    )
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


def test_the_initial_scale_is_that_of_the_size(study):
    model = GPT(task_cell(study))
    assert model.wte.weight.detach().std() == pytest.approx(0.1, rel=0.1)
    down = dict(model.named_parameters())["blocks.0.down.weight"].detach()
    assert down.std() == pytest.approx(0.1 / 2**0.5, rel=0.2)


def test_nothing_of_the_study_sees_its_tasks_and_their_views_do(study, tmp_path):
    folder = tmp_path / "results" / "tiny"
    folder.mkdir(parents=True)
    study["tasks"]["recall"] |= {"lr_scale": [1.0, 2.0], "seed": [0, 1]}
    record = study_file.write_record(folder / "study.json", {"command": "", "study": study})
    losses = {(1.0, 0): 0.5, (1.0, 1): 0.7, (2.0, 0): 0.1, (2.0, 1): None}
    for run, cell in record.tasks.items():
        finish(folder, run, cell, losses[cell.lr_scale, cell.seed])
    build(folder)
    with connect(folder / "store") as db:
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


Scores = dict[str, float] | None


def finish(folder: Path, run: str, cell: Cell, loss: float | None, scores: Scores = None):
    """A record and a log of a run; a seed of 1 guesses, and a run without a loss has diverged."""
    accuracy = 0.4 if cell.seed == 1 else (scores or {}).get(cell.attention, 0.9)
    groups = {name: {"targets": 10, "loss": 1.0, "accuracy": accuracy} for name in ("1", "2", "4")}
    status = "done" if loss else "diverged"
    rows = [replace(test_store.validation(n), val_loss=loss, groups=groups) for n in (1, 2)]
    rows = [test_store.update(2), *rows]
    test_store.record(folder, run, test_store.log(*rows, test_store.end(2, status=status)), status)
    path = folder / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state_bytes": 64}))
