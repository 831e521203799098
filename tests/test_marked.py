"""Training on sequences with marked targets: only these count, and each as much as any other."""

from dataclasses import replace

import on_ranks
import pytest
import torch
import torch.nn.functional as F
from conftest import calibration
from safetensors.torch import load_file
from test_train import assert_close, close, plain, rows_of, trained

from lmscaling.config import grid
from lmscaling.data import shards
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.model.gpt import GPT

RECALL = {
    "kind": "recall", "pairs": [1, 2, 4], "queries": 4, "keys": 8, "values": 8, "sequences": 640,
    "validation_sequences": 40,
}  # fmt: skip
LENGTH = 17
TARGETS = {"1": 12, "2": 24, "4": 48}


@pytest.fixture
def study(values):
    """A study with a task. The fewer pairs a sequence has, the more queries, so that the targets of
    micro-batches and of ranks are not equally many."""
    values["datasets"]["recall"] = RECALL
    values["sizes"]["w"] = values["sizes"]["m"] | {"token_shift": True, "init_std": 0.1}
    values["tasks"] = {"recall": {
        "dataset": "recall", "size": "w", "context": LENGTH, "attention": ["linear"],
        "update_tokens": 8 * LENGTH, "budget": "6 updates", "position": "none",
        "validation": {"tokens": 36 * LENGTH, "every_tokens": 24 * LENGTH},
    }}  # fmt: skip
    return grid.expand(values)


@pytest.fixture
def task(study):
    return next(iter(study.tasks.values()))


@pytest.fixture
def source(study, task):
    return study.corpora[task.data.folder].source


@pytest.fixture
def manifest(study, task, tmp_path):
    """The tokens of the task, as its jobs make them."""
    folder = tmp_path / "tokens"
    for split in ("validation", "train"):
        tokenize(study.corpora[task.data.folder], split, 0, folder / f"{split}-00000.bin")
    shards.write_manifest(folder / "manifest.json", {"train": 1, "validation": 1})
    return folder / "manifest.json"


def run(folder, cell, manifest, world=1, **way):
    """The log of a run."""
    if world == 1:
        return trained(folder, cell, manifest, **way)[1]
    folder.mkdir()
    return on_ranks.trained(cell, calibration(folder, cell, **way), manifest, folder, world)


def weights(log):
    return load_file(log.with_name("model.safetensors"))


def losses(gpt, source, x_BT, y_BT):
    """Losses of all targets, and their marks."""
    marks_BT = torch.from_numpy(source.marks(x_BT.numpy()))
    return F.cross_entropy(gpt(x_BT).transpose(1, 2), y_BT, reduction="none"), marks_BT


@pytest.mark.parametrize("micro_batch", [1, 4, 8])
def test_the_loss_is_the_mean_over_marked_targets_of_a_plain_loop(
    task, manifest, source, tmp_path, micro_batch
):
    def loss(gpt, x_BT, y_BT):
        assert (x_BT[:, 0] == 256).all()
        losses_BT, marks_BT = losses(gpt, source, x_BT, y_BT)
        return losses_BT[marks_BT > 0].mean()

    log = run(tmp_path / "run", task, manifest, micro_batch=micro_batch)
    stream = Stream(manifest, "train", order=Order(task.block_tokens, task.seed))
    made = [*plain(task, stream, 6, loss)]
    expected = [loss.item() for *_, loss in made]
    assert [r["train_loss"] for r in rows_of(log, "update")] == pytest.approx(expected, rel=1e-5)
    close(weights(log), dict(made[-1][0].named_parameters()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_ranks_change_nothing_but_rounding(task, manifest, tmp_path, micro_batch):
    one = run(tmp_path / "one", task, manifest)
    two = run(tmp_path / "two", task, manifest, world=2, micro_batch=micro_batch)
    assert_close(one, two, rtol=1e-3, atol=1e-5)
    for a, b in zip(rows_of(one, "validation"), rows_of(two, "validation"), strict=True):
        assert {name: group["targets"] for name, group in a["groups"].items()} == TARGETS
        for name, group in a["groups"].items():
            assert group | {"loss": None} == b["groups"][name] | {"loss": None}


@pytest.mark.parametrize("micro_batch", [2, 8])  # 8 leaves a shorter last pass
def test_accuracy_and_loss_of_each_group_are_those_of_the_predictions(
    task, manifest, source, tmp_path, micro_batch
):
    task = replace(task, budget="24 updates")
    log = run(tmp_path / "run", task, manifest, micro_batch=micro_batch)
    gpt = GPT(task)
    gpt.load_state_dict(weights(log))
    text = Stream(manifest, "validation").read(0, 36 * LENGTH + 1)
    tokens = torch.from_numpy(text.astype("int64"))
    x_BT, y_BT = tokens[:-1].view(-1, LENGTH), tokens[1:].view(-1, LENGTH)
    with torch.no_grad():
        losses_BT, marks_BT = losses(gpt, source, x_BT, y_BT)
        hits_BT = gpt(x_BT).argmax(-1) == y_BT
    last = rows_of(log, "validation")[-1]
    assert last["update"] == 24
    assert last["val_loss"] == pytest.approx(losses_BT[marks_BT > 0].mean().item(), rel=1e-5)
    for mark, name in ((2, "1"), (3, "2"), (4, "4")):
        found, own = last["groups"][name], marks_BT == mark
        assert found["targets"] == own.sum() == TARGETS[name]
        assert found["accuracy"] == pytest.approx(hits_BT[own].double().mean().item())
        assert found["loss"] == pytest.approx(losses_BT[own].mean().item(), rel=1e-5)
    assert last["groups"].keys() == TARGETS.keys()


def test_text_has_no_groups(cell, tokens, tmp_path):
    log = run(tmp_path / "run", cell, tokens)
    assert [row["groups"] for row in rows_of(log, "validation")] == [None, None]


@pytest.mark.ci
def test_a_run_recalls_what_it_has_read(task, manifest, tmp_path):
    # Without marked targets, most of the loss would be that of random keys and values.
    task = replace(task, budget="400 updates", epochs=6)
    log = run(tmp_path / "run", task, manifest)
    assert rows_of(log, "validation")[-1]["groups"]["1"]["accuracy"] > 0.6
    assert rows_of(log, "update")[-1]["train_loss"] < 2.0
