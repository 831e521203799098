"""Tasks: sequences with marked targets, trained by the ordinary trainer beside a study's grid."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_store
import torch
import torch.nn.functional as F
from conftest import write_shard
from pydantic import TypeAdapter, ValidationError

from lmscaling.config import grid, new_study
from lmscaling.config.cell import Cell
from lmscaling.config.datasets import DatasetRow
from lmscaling.config.sequences import of_cell
from lmscaling.data import marks, shards
from lmscaling.data.kinds.copy import Copy
from lmscaling.data.kinds.images import Images
from lmscaling.data.kinds.recall import Recall
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.train import parallel, settings
from lmscaling.train.module import Training, micro_batches
from lmscaling.train.ranks import Rank

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


# Sequences and marks


@pytest.mark.parametrize("power", [0.0, 0.99])
def test_each_marked_target_of_recall_is_the_value_that_followed_its_key(power):
    row = Recall(**RECALL, power=power)
    _, rows = tokens_of(row, "validation")
    found = row.marks(rows)
    for x, own in zip(rows, found, strict=True):
        value, asked = {}, set()
        for at in range(1, row.length - 1, 2):
            key, following = int(x[at]), int(x[at + 1])
            first_time = key not in value
            assert following == value.setdefault(key, following)
            assert 0 <= key < 8 <= following < 16
            mark = 0 if first_time else 1 if key in asked else 2 + [1, 2, 4].index(pairs(x))
            asked |= set() if first_time else {key}
            assert own[at] == mark
        assert not own[0::2].any()  # what follows end-of-text or a value cannot be known


def pairs(x):
    """Pairs of a sequence: each key is asked for only after all pairs."""
    return len(set(x[1:-1:2].tolist()))


def test_each_update_has_equal_shares_of_every_number_of_pairs():
    _, rows = tokens_of(Recall(**RECALL))
    assert [pairs(x) for x in rows[:6]] == [1, 2, 4] * 2


def test_recent_pairs_are_asked_for_sooner_with_a_power():
    def lag(power):
        """Mean place of the last pair's key in the first round of queries."""
        four: dict[str, Any] = RECALL | {"pairs": [4], "power": power, "sequences": 2000}
        row = Recall(**four)
        _, rows = tokens_of(row)
        return np.mean([list(x[9:17:2]).index(x[7]) for x in rows])

    assert lag(0.0) == pytest.approx(1.5, abs=0.1)
    assert lag(3.0) < 0.5


def test_the_sequences_of_a_row_never_change():
    # A run's hash holds the row and not the tokens, so other tokens would be other results.
    digests = [
        hashlib.sha256(tokens_of(row, "train")[0].astype("<u2").tobytes()).hexdigest()[:16]
        for row in (Recall(**RECALL, sequences=500), Copy(kind="copy", copied=5, sequences=500))
    ]
    assert digests == DIGESTS


DIGESTS = ["88cf0097b14f42c4", "7059fb07fd366377"]


def test_training_and_validation_sequences_are_others():
    row = Recall(**RECALL)
    assert not np.array_equal(tokens_of(row)[1][:30], tokens_of(row, "validation")[1][:30])


def test_only_the_copy_counts():
    row = Copy(kind="copy", copied=3, symbols=4)
    _, rows = tokens_of(row)
    assert rows.shape[1] == row.length == 8
    assert (rows[:, [0, 4]] == [256, 0]).all()
    assert np.array_equal(rows[:, 1:4], rows[:, 5:])
    assert set(rows[:, 1:4].ravel().tolist()) == {1, 2, 3, 4}
    targets = np.roll(rows, -1, 1)
    marked = row.marks(rows) == 2
    assert np.array_equal(targets[marked].reshape(-1, 3), rows[:, 1:4])


def idx(path, images):
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in images.shape)
    data = head + images.astype("u1").tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_images_are_read_from_idx_files_row_by_row(tmp_path, name):
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 5))
    row = Images(kind="images", train=idx(tmp_path / name, images), holdout=0.3)
    _, rows = tokens_of(row)
    _, held = tokens_of(row, "validation")
    assert row.length == rows.shape[1] == 16
    assert 0 < len(held) < len(rows) < 40
    together = {tuple(x[1:]) for x in (*rows, *held)}
    assert together == {tuple(image.ravel()) for image in images}
    assert row.marks(rows).sum() == 15 * len(rows)
    assert row.provenance("train", 0) == {"shape": [3, 5]}


def test_digits_are_1797_images_of_64_pixels():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    row = Images(kind="images", train="digits")
    counts = [len(tokens_of(row, split)[1]) for split in ("train", "validation")]
    assert sum(counts) == 1797
    assert counts[1] == pytest.approx(0.2 * 1797, rel=0.15)
    assert tokens_of(row)[1][:, 1:].max() == 16


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "begins with nothing; allowed: 00 00 08 03"),
        (b"GIF89a" + bytes(20), "begins with 47 49 46 38; allowed: 00 00 08 03"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 9]), "its header states 2 images"),
    ],
)
def test_a_file_that_has_no_images_is_refused(tmp_path, content, sentence):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        tokens_of(Images(kind="images", train=str(path)))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (RECALL | {"keys": 200, "values": 100}, "allowed: up to 256, so write values: 56"),
        (RECALL | {"pairs": [16], "queries": 16}, "pairs 16 need as many different keys"),
        (RECALL | {"queries": 2}, "queries 2 ask for fewer than all pairs; write queries: 4"),
        (RECALL | {"decontaminate": 13}, "decontaminate 13 is not for kind recall"),
        ({"kind": "copy", "copied": 3, "shuffle": "documents"}, "shuffle documents is not for"),
    ],
)
def test_a_row_that_cannot_be_is_refused(row, sentence):
    with pytest.raises(ValidationError, match=sentence):
        TypeAdapter(DatasetRow).validate_python(row)


def test_a_row_comes_back_from_its_identity():
    for row in (Recall(**RECALL), Copy(kind="copy", copied=5, symbols=3)):
        assert of_cell(row.identity()) == row
    assert of_cell({"kind": "jsonl", "train": ["a"]}) is None
    assert of_cell({}) is None


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
    ({"dataset": "recal"}, "dataset 'recal' has no row under datasets; nearest is 'recall'"),
    ({"size": "s"}, "tasks.recall has size 's', which axes uses too"),
    ({"size": "q"}, "size 'q' has no row under sizes"),
    ({"attention": ["softmx"]}, "'softmx' has no file in attention/; nearest is 'softmax'"),
    ({"update_tokens": 57 * 2 + 1}, "every_tokens 114 is not a multiple of update_tokens 115"),
    ({"validation": {"tokens": 20, "every_tokens": 114}}, "does not divide validation.tokens 20"),
    ({"tokenizer": "byte"}, "tokenizer 'byte' has no row under tokenizers"),
    ({"skip": [{"size": "x", "reason": "?"}]}, "skip {size: x} matches no cell"),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES)
def test_a_mistake_in_a_task_is_one_sentence(study, change, sentence):
    study["tasks"]["recall"] |= change
    with pytest.raises(UserError) as caught:
        grid.expand(study)
    assert "tasks.recall" in str(caught.value)
    assert sentence in str(caught.value)


def test_a_tokenizer_other_than_bytes_is_refused(study):
    study["tokenizers"]["gpt2"] = {"encoding": "gpt2"}
    study["tasks"]["recall"]["tokenizer"] = "gpt2"
    with pytest.raises(UserError, match="allowed: a row with encoding: bytes"):
        grid.expand(study)


def test_more_validation_tokens_than_sequences_are_refused_before_anything_runs(study, tmp_path):
    study["tasks"]["recall"]["validation"] = {"tokens": 19 * 31, "every_tokens": 114}
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": "x" * 100}))
    study["datasets"]["lines"] |= {
        "train": [str(tmp_path / "a.jsonl")], "validation": [str(tmp_path / "v.jsonl")]
    }  # fmt: skip
    study["validation"] = {"tokens": 16, "every_tokens": 64}
    with pytest.raises(UserError, match=r"text of datasets\.recall can have, at most 570"):
        new_study.plan(study, folder=str(tmp_path))


def test_another_context_than_the_length_of_the_sequences_is_refused(study, tmp_path):
    study["tasks"]["recall"] |= {"context": 38, "validation": {"tokens": 228, "every_tokens": 114}}
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": "x" * 1000}))
    study["datasets"]["lines"] |= {
        "train": [str(tmp_path / "a.jsonl")], "validation": [str(tmp_path / "v.jsonl")]
    }  # fmt: skip
    with pytest.raises(UserError, match=r"38 is not the length of the sequences of datasets\.rec"):
        new_study.plan(study, folder=str(tmp_path))


def test_a_token_shift_does_not_cross_masked_documents(study):
    study["sizes"]["s"]["token_shift"] = True
    study["documents"] = "masked"
    with pytest.raises(UserError, match="write token_shift: false or documents: mixed"):
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
    torch.testing.assert_close(model._embed(x, 0)[0], expected)
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


def test_the_gradient_does_not_depend_on_the_micro_batch(study, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "clear_gradients", lambda *_: None)
    cell = task_cell(study)
    manifest = written(Recall(**study["datasets"]["recall"]), tmp_path)
    gradients = []
    for size in (6, 1, 2):  # sequences of one, two and four pairs have other numbers of targets
        module = trained(cell, manifest, size)
        slab = module.slabs()[0]
        assert len(list(micro_batches(slab, 19, size))) == 6 // size
        module.update(slab)
        gradients.append(
            torch.cat([p.grad.flatten() for p in module.model.parameters() if p.grad is not None])
        )
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
    from lmscaling.config import study_file
    from lmscaling.store.build import build, connect

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
        assert db.sql("SELECT count(*) FROM tasks").fetchall() == [(8,)]
        # One seed at 2.0 diverged, so its mean is infinite.
        assert db.sql("SELECT DISTINCT lr_scale FROM task_rates").fetchall() == [(1.0,)]
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
    from lmscaling.train.run import train

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
