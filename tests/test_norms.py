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


def expected(cell, tokens):
    """What each measured update should say."""
    for n, (gpt, *_) in enumerate(plain(cell, Stream(tokens, "train"), UPDATES), 1):
        if n % norms.EVERY == 0:
            assert gpt.wpe is not None
            modules = [*gpt.blocks, gpt.norm]
            layers = [[gpt.wte.weight, gpt.wpe.weight], *(list(m.parameters()) for m in modules)]
            yield {
                "layer_grad_norms": [norm([p.grad for p in layer]) for layer in layers],
                "layer_weight_norms": [norm(layer) for layer in layers],
            }


def compare(path, expected):
    found = rows_of(path, "gradients")
    assert [r["update"] for r in found] == [norms.EVERY, 2 * norms.EVERY]
    whole = {r["update"]: r["grad_norm"] for r in rows_of(path, "update")}
    for row, true in zip(found, expected, strict=True):
        for column, value in true.items():
            assert row[column] == pytest.approx(value, rel=1e-3), column
        grad_norm = np.hypot.reduce(row["layer_grad_norms"])
        assert grad_norm == pytest.approx(whole[row["update"]], rel=1e-4)


def test_norms_are_those_of_the_whole_update_in_micro_batches(long, tokens, tmp_path):
    path = trained(tmp_path, long, tokens, micro_batch=1)[1]
    compare(path, expected(long, tokens))


@pytest.mark.ci
def test_norms_on_ranks_are_those_of_the_averaged_gradient(long, tokens, tmp_path):
    way = calibration(tmp_path, long, micro_batch=1)
    compare(on_ranks.trained(long, way, tokens, tmp_path / "results"), expected(long, tokens))


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


def test_the_store_has_the_norms_of_each_update_and_which_survived(study, runs):
    killed = log(header(runs[0]), update(1), update(2), gradients(2))
    rest = log(header(runs[0], 2, 1), update(2, 2), gradients(2, 2))
    record(study, runs[0], killed + rest + log(update(3, 2), gradients(3, 2)))
    query = "SELECT update, surviving, layer_grad_norms FROM gradients ORDER BY ALL"
    expected = [(2, False), (2, True), (3, True)]
    assert ask(study, query) == [(*key, "[1.0,2.0,null]") for key in expected]
