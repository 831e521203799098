"""Checkpoints: what is kept and refused. The optimizer: what decays, and that it goes on alike."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lmscaling.model import optimizer, tensor_file
from lmscaling.model.gpt import GPT
from lmscaling.plan import footprint
from lmscaling.train import checkpoint
from lmscaling.train.checkpoint import Progress
from lmscaling.train.data import Text

TIMES = {"train_seconds": 1.5, "update_seconds": 0.5}
PROGRESS = Progress(run="r", update=3, shard=2, tokens_id="abc", **TIMES)


def text(*reached, tokens=None):
    """A text of which so many tokens, or any number, had reached this shard."""

    def go_on(read, *found):
        if found != reached or tokens not in (None, read):
            raise ValueError("the tokens are others")

    return go_on


def expected(run="r", update_tokens=64, go_on=None):
    """The check of a text."""
    cell = SimpleNamespace(update_tokens=update_tokens)
    stream = SimpleNamespace(go_on=go_on or text(2, "abc"))
    own: Any = SimpleNamespace(cell=cell, train=stream)
    return partial(Text.check, own, run=run)


def after_two_updates(cell):
    """A model and its optimizer."""
    gpt = GPT(cell)
    steps = optimizer.build(gpt, cell)
    for _ in range(2):
        update(gpt, steps)
    return gpt, steps


@pytest.fixture
def trained(cell):
    return after_two_updates(cell)


@pytest.fixture
def by_muon(cell):
    return replace(cell, optimizer=replace(cell.optimizer, kind="muon"))


def update(gpt, adam):
    generator = torch.Generator().manual_seed(1)
    for p in gpt.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    adam.step()


def content(progress, model, adam):
    """What Lightning would save."""
    times = {name: getattr(progress, name) for name in TIMES}
    text = {name: getattr(progress, name) for name in ("run", "shard", "tokens_id")}
    return {
        "global_step": progress.update,
        "callbacks": {"Budget": times},
        "Text": text,
        "state_dict": {f"model.{name}": p for name, p in model.named_parameters()},
        "optimizer_states": [adam.state_dict()],
    }


def save(folder, progress, model, adam):
    """A checkpoint on the disk, beside the one before it."""
    io, path = checkpoint.SafetensorsIO(), checkpoint.path_of(folder, progress.update)
    io.save_checkpoint(content(progress, model, adam), path, lambda: checkpoint.prune(folder))
    io.wait()
    return path


def test_the_two_newest_are_kept_and_one_that_is_refused_is_named(trained, tmp_path, capsys):
    for n in (9, 10, 100):
        path = save(tmp_path, replace(PROGRESS, update=n), *trained)
    found = sorted(checkpoint.load(p).progress.update for p in tmp_path.glob("checkpoint-*"))
    assert found == [10, 100]
    for size, update in ((None, 100), (100, 10), (0, 10)):
        path.write_bytes(path.read_bytes()[:size])
        newest = checkpoint.newest(tmp_path, expected())
        assert newest
        assert newest.progress == replace(PROGRESS, update=update)
        assert (path.name in capsys.readouterr().err) == (update == 10)
    assert checkpoint.newest(tmp_path / "nowhere", expected()) is None


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_optimizer_makes_the_same_next_update(cell, tmp_path, kind):
    cell = replace(cell, optimizer=replace(cell.optimizer, kind=kind))
    gpt, adam = after_two_updates(cell)
    path = save(tmp_path, replace(PROGRESS, update=2), gpt, adam)
    start = checkpoint.load(path).content
    other = GPT(cell)
    fresh = optimizer.build(other, cell)
    weights = {name.removeprefix("model."): p for name, p in start["state_dict"].items()}
    other.load_state_dict(weights)
    fresh.load_state_dict(start["optimizer_states"][0])
    for group in [*adam.param_groups, *fresh.param_groups]:
        group["lr"] *= 3  # as a schedule sets it, before and after the states are restored
    update(gpt, adam)
    update(other, fresh)
    for (name, p), q in zip(gpt.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_everything_comes_back_as_it_was_saved(tmp_path):
    tree = {
        "loops": {"ready": 3, 0: None, "names": ["a", {"b": (0.9, 0.95)}]},
        "state": [{"step": torch.tensor(3.0)}, torch.zeros(0, 2), torch.arange(4)[::2]],
    }
    io, path = checkpoint.SafetensorsIO(), tmp_path / "c.safetensors"
    io.save_checkpoint(tree, path)
    io.wait()
    back = io.load_checkpoint(path)
    assert back["loops"] == tree["loops"]
    for mine, theirs in zip(back["state"][1:], tree["state"][1:], strict=True):
        assert torch.equal(mine, theirs)
    assert back["state"][0]["step"] == 3
    io.remove_checkpoint(path)
    assert not path.exists()


def test_no_flipped_bit_of_a_header_is_accepted(trained, tmp_path):
    path = save(tmp_path, PROGRESS, *trained)
    data = path.read_bytes()
    whole = checkpoint.load(path)
    header = 8 + int.from_bytes(data[:8], "little")
    for at in range(0, header, 61):
        for bit in (0, 3, 6):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                found = checkpoint.load(path)
            except checkpoint.UNUSABLE:
                continue
            assert found.digest == whole.digest, at  # a space, or the order of keys
    path.write_bytes(data)
    other = checkpoint.path_of(tmp_path, 4)
    path.rename(other)
    with pytest.raises(ValueError, match="of update 3"):
        checkpoint.load(other)


@pytest.mark.parametrize(
    "wrong",
    [
        expected(run="other"),
        expected(go_on=text(1, "abc")),
        expected(go_on=text(2, "xyz")),
        expected(update_tokens=65, go_on=text(2, "abc", tokens=192)),
    ],
)
def test_a_checkpoint_of_another_run_or_of_other_tokens_is_refused(trained, tmp_path, wrong):
    path = save(tmp_path, PROGRESS, *trained)
    assert checkpoint.load(path, expected()).progress == PROGRESS
    with pytest.raises(ValueError, match=r"run|tokens"):
        checkpoint.load(path, wrong)


@pytest.mark.parametrize("metadata", [{}, {"other": "x"}, {"checkpoint": '{"dict": []}'}])
def test_a_file_that_does_not_say_what_it_is_is_refused(tmp_path, metadata):
    path = tmp_path / "checkpoint-000000003.safetensors"
    tensor_file.write(path, {"model.x": torch.zeros(1)}, **metadata)
    with pytest.raises(ValueError, match=r"checkpoint|version"):
        checkpoint.load(path)
    save_file({"model.x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="SHA-256"):
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


def test_muon_is_that_of_pytorch_for_matrices_of_blocks_and_adamw_for_all_else(by_muon):
    gpt, other = GPT(by_muon), GPT(by_muon)
    ours = optimizer.build(gpt, by_muon)
    matrices = [p for p in other.blocks.parameters() if p.dim() == 2]
    assert other.wpe
    decayed = [other.wte.weight, other.wpe.weight]
    plain = [p for p in other.parameters() if p.dim() < 2]
    given = {"lr": by_muon.lr, "weight_decay": 0.1}
    muon = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **given)
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, **given, betas=by_muon.optimizer.betas)
    for _ in range(3):
        update(gpt, ours)
        update(other, muon)
        adam.step()
    assert all(map(torch.equal, gpt.parameters(), other.parameters()))
    ours.zero_grad()
    assert all(p.grad is None for p in gpt.parameters())


def test_muon_keeps_one_moment_and_the_plan_counts_it(by_muon, cell):
    _, steps = after_two_updates(by_muon)
    muon, adam = steps.state_dict()["parts"]
    assert {tuple(state) for state in muon["state"].values()} == {("momentum_buffer",)}
    assert all({"exp_avg", "exp_avg_sq"} <= state.keys() for state in adam["state"].values())
    gpt = GPT(cell)
    less = footprint.state_bytes(cell, gpt.params_total) - footprint.state_bytes(
        by_muon, gpt.params_total
    )
    assert less == 4 * gpt.params


def test_muon_has_runs_and_calibrations_of_its_own_and_adamw_those_of_before(by_muon, cell):
    assert "kind" not in json.loads(cell.to_json())["optimizer"]
    assert json.loads(by_muon.to_json())["optimizer"]["kind"] == "muon"
    assert by_muon.run != cell.run
    assert by_muon.calibration != cell.calibration
