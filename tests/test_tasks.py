"""Tasks: sequences with marked targets, trained by the ordinary trainer beside a study's grid."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_store
import torch
import torch.nn.functional as F
from conftest import refused, write_shard

from lmscaling.config import grid, new_study, study_file
from lmscaling.config.cell import Cell
from lmscaling.config.sequences import of_cell
from lmscaling.data import marks, shards
from lmscaling.data.kinds.recall import Recall
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.store.build import build, connect
from lmscaling.train import settings
from lmscaling.train.module import Training, micro_batches
from lmscaling.train.ranks import Rank
from lmscaling.train.run import train

RECALL: dict[str, Any] = {
    "kind": "recall",
    "pairs": [1, 2, 4],
    "queries": 5,
    "keys": 8,
    "values": 8,
}
TASK = {
    "dataset": "recall", "size": "r", "context": 19, "position": "none", "update_tokens": 114,
    "budget": "3 updates", "validation": {"tokens": 228, "every_tokens": 114},
    "optimizer": {"warmup_updates": 1},
}  # fmt: skip


@pytest.fixture
def study(values):
    """A study with a task of recall."""
    values["datasets"]["recall"] = RECALL | {"sequences": 60, "validation_sequences": 30}
    shape = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2, "token_shift": True}
    values["sizes"]["r"] = shape | {"init_std": 0.1}
    values["tasks"] = {"recall": dict(TASK)}
    return values


def task_cell(study):
    return next(iter(grid.expand(study).tasks.values()))


def tokens_of(row, split="train"):
    """All tokens of a split, and the sequences as rows."""
    flat = np.concatenate(list(row.tokens(split, 0, 256).blocks))
    return flat, flat[:-1].reshape(-1, row.length)


def written(row, folder):
    """Shards of both splits, and their manifest."""
    for split in ("train", "validation"):
        write_shard(folder / f"{split}-00000.bin", tokens_of(row, split)[0])
    shards.write_manifest(folder / "manifest.json", {"train": 1, "validation": 1})
    return folder / "manifest.json"


def trained(cell, manifest, micro_batch=None):
    """The trainer of a cell on this CPU, ready for its first update."""
    chosen = settings.guessed(cell)
    if micro_batch:
        chosen = replace(chosen, micro_batch=micro_batch)
    module = Training(cell, Stream(manifest, "train"), Stream(manifest, "validation"), chosen)
    module.start(Rank(1, False, manifest.parent))
    return module


# The grid


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


@pytest.mark.parametrize(
    ("change", "characters", "value"),
    [
        ({"validation": {"tokens": 19 * 31, "every_tokens": 114}}, 100, 570),
        ({"context": 38, "validation": {"tokens": 228, "every_tokens": 114}}, 1000, 38),
    ],
)
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


# The model


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
    assert dict(model.named_parameters())["blocks.0.down.weight"].detach().std() == pytest.approx(
        0.1 / 2**0.5, rel=0.2
    )


# Training


def test_the_loss_is_the_mean_over_the_targets_that_count(study, tmp_path):
    cell = task_cell(study)
    module = trained(cell, written(Recall(**study["datasets"]["recall"]), tmp_path))
    slab = module.slabs()[0]
    x, y = slab.unflatten(1, (-1, 19))
    with torch.no_grad():
        logits = module.model(x)
    expected = F.cross_entropy(logits[y >= 0], y[y >= 0])
    row = of_cell(cell.data.source)
    assert row
    assert torch.equal(y >= 0, torch.from_numpy(row.marks(x.numpy()) > 0))
    loss, _ = module.update(slab)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_gradient_does_not_depend_on_the_micro_batch(study, tmp_path):
    cell = task_cell(study)
    manifest = written(Recall(**study["datasets"]["recall"]), tmp_path)
    gradients = []
    for size in (6, 1, 2):  # sequences of one, two and four pairs have other numbers of targets
        module = trained(cell, manifest, size)
        slab = module.slabs()[0]
        assert len(list(micro_batches(slab, 19, size))) == 6 // size
        summed = {}
        for name, p in module.model.named_parameters():
            keep = partial(lambda summed, name, p: summed.update({name: p.grad.clone()}), summed)
            p.register_post_accumulate_grad_hook(partial(keep, name))
        module.update(slab)
        assert summed
        gradients.append(summed)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_validation_counts_hits_by_group(study, tmp_path):
    cell = task_cell(study)
    row = Recall(**study["datasets"]["recall"])
    module = trained(cell, written(row, tmp_path), 4)
    loss = module.validation_loss()
    _, rows = tokens_of(row, "validation")
    x = torch.from_numpy(rows[:12].astype("int64"))
    y = torch.from_numpy(np.roll(rows, -1, 1)[:12].astype("int64"))
    found = torch.from_numpy(row.marks(rows)[:12])
    with torch.no_grad():
        logits = module.model(x)
    assert loss == pytest.approx(F.cross_entropy(logits[found > 0], y[found > 0]).item(), rel=1e-5)
    assert module.groups
    assert list(module.groups) == ["1", "2", "4"]
    for g, name in enumerate(module.groups):
        scored = found == 2 + g
        hits = logits[scored].argmax(-1) == y[scored]
        own = module.groups[name]
        assert own["targets"] == int(scored.sum())
        assert own["accuracy"] == pytest.approx(hits.float().mean().item())
        assert own["loss"] == pytest.approx(
            F.cross_entropy(logits[scored], y[scored]).item(), rel=1e-4
        )


def test_text_has_no_marks(cell):
    assert marks.of(cell) is None


# The store


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
        rows = db.sql(
            "SELECT attention, seed, score, measure, learned FROM task_scores ORDER BY ALL"
        ).fetchall()
    assert rows == [
        (attention, seed, [0.9, 0.4][seed], "accuracy", seed == 0)
        for attention in ("linear", "softmax")
        for seed in (0, 1)
    ]


def finish(
    folder: Path, run: str, cell: Cell, loss: float | None, scores: dict[str, float] | None = None
):
    """A record and a log of a run; a seed of 1 guesses, and a run without a loss has diverged."""
    accuracy = 0.4 if cell.seed == 1 else (scores or {}).get(cell.attention, 0.9)
    groups = {name: {"targets": 10, "loss": 1.0, "accuracy": accuracy} for name in ("1", "2", "4")}
    status = "done" if loss else "diverged"
    rows = [replace(test_store.validation(n), val_loss=loss, groups=groups) for n in (1, 2)]
    rows = [test_store.update(2), *rows]
    test_store.record(folder, run, test_store.log(*rows, test_store.end(2, status=status)), status)
    path = folder / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state_bytes": 64}))


def test_the_log_of_a_task_has_its_groups(study, tmp_path):
    cell = task_cell(study)
    manifest = written(Recall(**study["datasets"]["recall"]), tmp_path / "tokens")
    path = tmp_path / "cell.json"
    path.write_text(cell.to_json())
    record = tmp_path / "runs" / cell.run / "run.json"
    run = train(path, manifest, tmp_path / "scratch" / cell.run, record)
    assert run
    assert run.status == "done"
    lines = [json.loads(line) for line in record.with_name("log.jsonl").read_text().splitlines()]
    found = [line["groups"] for line in lines if line["record"] == "validation"]
    assert len(found) == 3
    assert set(found[0]) == {"1", "2", "4"}
