"""Norms of gradients and weights in the log: those of a plain loop, whatever made the update."""

from dataclasses import replace

import numpy as np
import on_ranks
import pytest
import torch
from conftest import calibration
from test_store import ask, gradients, header, log, record, runs, study, update
from test_train import plain, rows_of

from lmscaling.data.stream import Stream
from lmscaling.train import norms
from lmscaling.train.run import train

__all__ = ["runs", "study"]

UPDATES = 2 * norms.EVERY + 3


@pytest.fixture
def long(cell):
    return replace(cell, budget=f"{UPDATES} updates")


def trained(folder, cell, tokens, micro_batch):
    """The log of a run."""
    path, record = folder / "cell.json", folder / "r" / "run.json"
    path.write_text(cell.to_json())
    way = calibration(folder, cell, micro_batch=micro_batch)
    train(path, tokens, folder / "s" / "r", record, way)
    return record.with_name("log.jsonl")


def norm(tensors):
    return float(torch.cat([t.detach().flatten() for t in tensors]).norm())


def expected(cell, tokens, parts):
    """What each measured update should say; ``parts`` are the slices of an update's sequences whose
    gradients are the small batches."""
    for n, (gpt, x_BT, y_BT, _) in enumerate(plain(cell, Stream(tokens, "train"), UPDATES), 1):
        if n % norms.EVERY == 0:
            modules = [*gpt.blocks, gpt.norm]
            layers = [[gpt.wte.weight, gpt.wpe.weight], *(list(m.parameters()) for m in modules)]
            losses = (gpt.loss(x_BT[part], y_BT[part]) for part in parts)
            small = [norm(torch.autograd.grad(loss, list(gpt.parameters()))) for loss in losses]
            yield {
                "small_grad_norm": np.sqrt(np.mean(np.square(small))),
                "layer_grad_norms": [norm([p.grad for p in layer]) for layer in layers],
                "layer_weight_norms": [norm(layer) for layer in layers],
            }


def compare(path, expected, small_tokens):
    found = rows_of(path, "gradients")
    assert [r["update"] for r in found] == [norms.EVERY, 2 * norms.EVERY]
    whole = {r["update"]: r["grad_norm"] for r in rows_of(path, "update")}
    for row, true in zip(found, expected, strict=True):
        assert row["small_tokens"] == small_tokens
        for column, value in true.items():
            assert row[column] == pytest.approx(value, rel=1e-3), column
        grad_norm = np.hypot.reduce(row["layer_grad_norms"])
        assert grad_norm == pytest.approx(whole[row["update"]], rel=1e-4)


def test_the_first_micro_batch_is_the_small_batch(long, tokens, tmp_path):
    path = trained(tmp_path, long, tokens, micro_batch=1)
    compare(path, expected(long, tokens, [slice(0, 1)]), small_tokens=16)


@pytest.mark.ci
@pytest.mark.parametrize("micro_batch", [2, 1])
def test_on_ranks_the_first_micro_batches_of_all_are_small_batches(
    long, tokens, tmp_path, micro_batch
):
    """With a micro-batch of 2 each rank has one, which is averaged late."""
    way = calibration(tmp_path, long, micro_batch=micro_batch)
    path = on_ranks.trained(long, way, tokens, tmp_path / "results")
    parts = [slice(0, micro_batch), slice(2, 2 + micro_batch)]
    compare(path, expected(long, tokens, parts), small_tokens=16 * micro_batch)


def test_without_a_smaller_batch_there_is_no_norm_of_one(long, tokens, tmp_path):
    path = trained(tmp_path, long, tokens, micro_batch=4)
    rows = rows_of(path, "gradients")
    assert [(r["small_tokens"], r["small_grad_norm"]) for r in rows] == [(None, None)] * 2
    assert all(len(r["layer_grad_norms"]) == 3 for r in rows)


def test_measuring_changes_no_weight_and_no_loss(long, tokens, tmp_path, monkeypatch):
    def everything(name):
        (tmp_path / name).mkdir()
        path = trained(tmp_path / name, long, tokens, micro_batch=1)
        losses = [r["train_loss"] for r in rows_of(path, "update")]
        return losses, path.with_name("model.safetensors").read_bytes()

    with_norms = everything("with")
    monkeypatch.setattr(norms, "EVERY", 10**9)
    assert everything("without") == with_norms


def test_the_store_has_both_unknowns_of_each_surviving_update(study, runs):
    killed = log(header(runs[0]), update(1), update(2), gradients(2, 7.0))
    rest = log(header(runs[0], 2, 1), update(2, 2), gradients(2, 2.0, 2))
    record(study, runs[0], killed + rest + log(update(3, 2), gradients(3, None, 2, None)))
    query = "SELECT update, signal, noise FROM gradient_noise ORDER BY ALL"
    # grad_norm is 1 of 64 tokens, 2 of 16
    assert ask(study, query) == [(2, pytest.approx(0.0), pytest.approx(3 * 64 / 3))]
    query = "SELECT update, surviving, layer_grad_norms FROM gradients ORDER BY ALL"
    assert ask(study, query) == [
        (2, False, "[1.0,2.0,null]"),
        (2, True, "[1.0,2.0,null]"),
        (3, True, "[1.0,2.0,null]"),
    ]


def test_the_ratio_of_averages_finds_a_known_noise_scale(study, runs):
    """A gradient of norm 1 in 50 dimensions, and noise whose scale is 200 tokens."""
    rng = np.random.default_rng(0)
    true = np.full(50, 50**-0.5)
    per_token = np.sqrt(200 / 50)
    rows = [header(runs[0])]
    for n in range(1, 2001):
        parts = true + rng.normal(0, per_token / np.sqrt(16), (4, 50))
        big, small = (float(np.linalg.norm(g)) for g in (parts.mean(axis=0), parts[0]))
        rows += [replace(update(n), grad_norm=big), gradients(n, small)]
    record(study, runs[0], log(*rows), updates=2000)
    ((signal, noise),) = ask(study, "SELECT avg(signal), avg(noise) FROM gradient_noise")
    assert noise / signal == pytest.approx(200, rel=0.1)
