"""Norms of gradients and weights in the log: those of a plain loop, whatever made the update."""

from dataclasses import replace

import numpy as np
import on_ranks
import pytest
import torch
from conftest import calibration
from test_store import ask, gradients, header, log, record, runs, study, update
from test_train import plain, rows_of, trained

from lmscaling.data.stream import Stream
from lmscaling.train import norms

__all__ = ["runs", "study"]

UPDATES = 2 * norms.EVERY + 3


@pytest.fixture
def long(cell):
    return replace(cell, budget=f"{UPDATES} updates")


def norm(tensors):
    return float(torch.cat([t.detach().flatten() for t in tensors]).norm())


def expected(cell, tokens, parts):
    """What each measured update should say; ``parts`` are the slices of an update's sequences whose
    gradients are the small batches."""
    for n, (gpt, x_BT, y_BT, _) in enumerate(plain(cell, Stream(tokens, "train"), UPDATES), 1):
        if n % norms.EVERY == 0:
            assert gpt.wpe is not None
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
    path = trained(tmp_path, long, tokens, micro_batch=1)[1]
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
    path = trained(tmp_path, long, tokens, micro_batch=4)[1]
    rows = rows_of(path, "gradients")
    assert [(r["small_tokens"], r["small_grad_norm"]) for r in rows] == [(None, None)] * 2
    assert all(len(r["layer_grad_norms"]) == 3 for r in rows)


def test_an_attention_that_says_its_smallest_divisor_has_it_in_the_log(long, tokens, tmp_path):
    for name, says in (("linear_parts", True), ("linear", False)):
        path = trained(tmp_path / name, replace(long, attention=name), tokens, micro_batch=4)[1]
        found = [row["smallest_divisor"] for row in rows_of(path, "gradients")]
        assert [divisor is not None and divisor > 0 for divisor in found] == [says] * 2


def test_measuring_changes_no_weight_and_no_loss(long, tokens, tmp_path, monkeypatch):
    def everything(name):
        _, path = trained(tmp_path / name, long, tokens, micro_batch=1)
        losses = [r["train_loss"] for r in rows_of(path, "update")]
        return losses, path.with_name("model.safetensors").read_bytes()

    with_norms = everything("with")
    monkeypatch.setattr(norms, "EVERY", 10**9)
    assert everything("without") == with_norms


def test_the_store_has_both_unknowns_of_each_surviving_update(study, runs):
    killed = log(header(runs[0]), update(1), update(2), gradients(2, 7.0))
    rest = log(header(runs[0], 2, 1), update(2, 2), gradients(2, 1.5, 2))
    record(study, runs[0], killed + rest + log(update(3, 2), gradients(3, None, 2, None)))
    query = "SELECT update, signal, noise FROM gradient_noise ORDER BY ALL"
    # The squares of the norms of 64 and 16 tokens, 1 and 2.25, are signal + noise / tokens.
    ((number, signal, noise),) = ask(study, query)
    found = number, signal + noise / 64, signal + noise / 16
    assert found == pytest.approx((2, 1.0, 2.25))
    query = "SELECT update, surviving, layer_grad_norms FROM gradients ORDER BY ALL"
    expected = [(2, False), (2, True), (3, True)]
    assert ask(study, query) == [(*key, "[1.0,2.0,null]") for key in expected]
