"""Checkpoints: what is kept and refused. The optimizer: what decays, and that it goes on alike."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file

from lmscaling.model import optimizer, tensor_file
from lmscaling.model.gpt import GPT
from lmscaling.train import checkpoint
from lmscaling.train.checkpoint import Expected, Progress

TIMES = {"train_seconds": 1.5, "update_seconds": 0.5}
PROGRESS = Progress(run="r", update=3, shard=2, tokens_id="abc", **TIMES)


def text(*reached, tokens=None):
    """A text of which so many tokens, or any number, had reached this shard."""

    def go_on(read, *found):
        if found != reached or tokens not in (None, read):
            raise ValueError("the tokens are others")

    return go_on


EXPECTED = Expected(run="r", update_tokens=64, go_on=text(2, "abc"))


@pytest.fixture
def trained(cell):
    """A model and its optimizer after two updates."""
    gpt = GPT(cell)
    adam = optimizer.build(gpt, cell)
    for _ in range(2):
        update(gpt, adam)
    return gpt, adam


def update(gpt, adam):
    generator = torch.Generator().manual_seed(1)
    for p in gpt.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    adam.step()


def save(folder, progress, model, adam):
    """A checkpoint on the disk, beside the one before it."""
    saver, path = checkpoint.Saver(), checkpoint.path_of(folder, progress.update)
    saver.save(path, progress, model, adam, then=lambda: checkpoint.prune(folder))
    saver.wait()
    return path


def test_the_two_newest_are_kept_and_one_that_is_refused_is_named(trained, tmp_path, capsys):
    for n in (9, 10, 100):
        path = save(tmp_path, replace(PROGRESS, update=n), *trained)
    found = sorted(checkpoint.load(p)[0].update for p in tmp_path.glob("checkpoint-*"))
    assert found == [10, 100]
    for size, update in ((None, 100), (100, 10), (0, 10)):
        path.write_bytes(path.read_bytes()[:size])
        newest = checkpoint.newest(tmp_path, EXPECTED)
        assert newest
        assert newest[0] == replace(PROGRESS, update=update)
        assert (path.name in capsys.readouterr().err) == (update == 10)
    assert checkpoint.newest(tmp_path / "nowhere", EXPECTED) is None


def test_a_restored_optimizer_makes_the_same_next_update(trained, cell, tmp_path):
    gpt, adam = trained
    path = save(tmp_path, replace(PROGRESS, update=2), gpt, adam)
    start = checkpoint.load(path)
    other = GPT(cell)
    fresh = optimizer.build(other, cell)
    checkpoint.restore_weights(start.tensors, other)
    checkpoint.restore_moments(start, other, fresh)
    update(gpt, adam)
    update(other, fresh)
    for (name, p), q in zip(gpt.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_a_checkpoint_before_the_first_update_has_no_moments(cell, tmp_path):
    gpt = GPT(cell)
    names = load_file(save(tmp_path, PROGRESS, gpt, optimizer.build(gpt, cell)))
    assert all(name.startswith("model.") for name in names)
    assert len(names) == len(list(gpt.parameters()))


@pytest.mark.parametrize(
    "expected",
    [
        replace(EXPECTED, run="other"),
        replace(EXPECTED, go_on=text(1, "abc")),
        replace(EXPECTED, go_on=text(2, "xyz")),
        replace(EXPECTED, update_tokens=65, go_on=text(2, "abc", tokens=192)),
    ],
)
def test_a_checkpoint_of_another_run_or_of_other_tokens_is_refused(trained, tmp_path, expected):
    path = save(tmp_path, PROGRESS, *trained)
    assert checkpoint.read(path, EXPECTED)[0] == PROGRESS
    with pytest.raises(ValueError, match=r"run|tokens"):
        checkpoint.read(path, expected)


@pytest.mark.parametrize(
    "metadata", [{}, {"other": "x"}, {"progress": json.dumps(asdict(PROGRESS) | {"new": 1})}]
)
def test_a_file_that_does_not_say_what_it_is_is_refused(tmp_path, metadata):
    path = tmp_path / "checkpoint-000000003.safetensors"
    tensor_file.write(path, {"model.x": torch.zeros(1)}, **metadata)
    with pytest.raises(ValueError, match=r"run|version"):
        checkpoint.load(path)


def test_only_matrices_decay(cell):
    gpt = GPT(cell)
    decayed, plain = optimizer.build(gpt, cell).param_groups
    names = {id(p): name for name, p in gpt.named_parameters()}
    matrices = {name for name, p in gpt.named_parameters() if p.dim() == 2}
    assert {names[id(p)] for p in decayed["params"]} == matrices
    assert {names[id(p)] for p in plain["params"]} == {*names.values()} - matrices
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(names) == len(decayed["params"]) + len(plain["params"])


def test_it_is_adamw_of_pytorch_in_every_bit(cell):
    def updated(build):
        gpt = GPT(cell)
        adam = build(optimizer.build(gpt, cell))
        for _ in range(3):
            update(gpt, adam)
        return list(gpt.parameters())

    def theirs(ours):
        names = "params", "weight_decay", "lr", "betas", "eps"
        groups = [{name: group[name] for name in names} for group in ours.param_groups]
        return torch.optim.AdamW(groups)

    assert all(map(torch.equal, updated(lambda ours: ours), updated(theirs)))
