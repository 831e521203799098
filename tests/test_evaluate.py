"""Loss by position is a plain loop over whole logits, on the same targets at every context."""

import json
import math
import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import refused, sentence, write_shard
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.config.cell import Model, Validation
from lmscaling.data import shards
from lmscaling.errors import UserError
from lmscaling.evaluate import loss_by_position
from lmscaling.evaluate.loss_by_position import binned, blocks, evaluate, standard_error
from lmscaling.files import read_lines
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.train.checkpoint import save_weights

SEPARATOR = 256
CONTEXTS = [256, 128, 64]


def of_context_256(cell, attention="softmax", position="learned"):
    """A cell of context 256 with four windows of targets."""
    return replace(
        cell,
        attention=attention,
        position=position,
        context=256,
        model=Model(n_layer=1, n_head=2, d_model=16, vocab_size=257),
        validation=Validation(tokens=1024, every_tokens=1024),
    )


@pytest.fixture
def long(cell):
    return of_context_256(cell)


@pytest.fixture
def run(long, tmp_path):
    return finish(tmp_path, long)


def finish(folder, cell, status="done"):
    """A finished run with weights that tell tokens and positions well apart."""
    run = folder / "runs" / cell.run
    run.mkdir(parents=True)
    record = {"cell": json.loads(cell.to_json()), "status": status}
    (run / "run.json").write_text(json.dumps(record))
    gpt = GPT(cell)
    with torch.no_grad():
        for p in gpt.parameters():
            p.mul_(4.0)
    save_weights(run / "model.safetensors", gpt)
    return run


def text(n=1500, documents=23, seed=0):
    """Documents of many lengths, the first separator at 0."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SEPARATOR, n).astype(np.uint16)
    tokens[rng.choice(n, documents, replace=False)] = SEPARATOR
    tokens[0] = SEPARATOR
    return tokens


def test_the_kernels_are_checked_beside_the_run(run, long, tmp_path, monkeypatch):
    asked, gate = [], loss_by_position.gate
    monkeypatch.setattr(gate, "require", lambda *given, **_: asked.append(given))
    evaluate(run, write(tmp_path, text()), tmp_path / "out.jsonl")
    ((path, model, batch, device),) = asked
    assert path == tmp_path / "checks" / f"{long.check}.json"
    assert (isinstance(model, GPT), batch, device.type) == (True, 64, "cpu")


def write(folder, tokens, dataset="lines", encoding="bytes"):
    """The only shard of a text for evaluation, and its manifest."""
    path = folder / f"{dataset}-bytes-0" / "validation-00000.bin"
    write_shard(path, tokens, dataset=dataset, encoding=encoding)
    shards.write_manifest(path.with_name("manifest.json"), {"train": 0, "validation": 1})
    return path.with_name("manifest.json")


def rows(run, manifest):
    out = run.parents[1] / "evaluations" / run.name / f"{manifest.parent.name}.jsonl"
    evaluate(run, manifest, out)
    return [json.loads(line) for line in read_lines(out, "evaluation")]


def plain(gpt, tokens, context, n):
    """Per bin and axis, the losses of its targets: one window and one target at a time."""
    found = {}
    for begin in range(0, n, context):
        window = torch.from_numpy(tokens[begin : begin + context + 1].astype("int64"))
        with torch.no_grad():
            logits = gpt(window[None, :-1])[0].double()
        for i in range(context):
            loss = float(torch.logsumexp(logits[i], 0) - logits[i, window[i + 1]])
            separators = [j for j in range(begin + i + 1) if tokens[j] == SEPARATOR]
            for axis, position in (("sequence", i), ("document", begin + i - separators[-1])):
                bin = next(b for b in range(99) if position < 2**b)
                found.setdefault((axis, 2**bin), []).append(loss)
    return found


@pytest.mark.parametrize(
    ("attention", "position"), [("softmax", "learned"), ("softmax", "none"), ("linear", "rope")]
)
def test_it_is_a_plain_loop_over_whole_logits(cell, tmp_path, attention, position):
    run = finish(tmp_path, of_context_256(cell, attention, position))
    tokens = text()
    made = rows(run, write(tmp_path, tokens))
    gpt, ids = finished_run.model(run), torch.from_numpy(tokens[:1025].astype("int64"))
    assert [*dict.fromkeys(row["context"] for row in made)] == CONTEXTS
    for context in CONTEXTS:
        expected = plain(gpt, tokens, context, 1024)
        part = {(r["axis"], r["stop"]): r for r in made if r["context"] == context}
        assert part.keys() == expected.keys()
        for key, losses in expected.items():
            assert part[key]["tokens"] == len(losses)
            assert part[key]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
            assert part[key]["start"] == part[key]["stop"] // 2
        whole = float(gpt.loss(ids[:-1].view(-1, context), ids[1:].view(-1, context)).detach())
        for axis in ("sequence", "document"):
            own = [r for r in made if (r["context"], r["axis"]) == (context, axis)]
            assert sum(r["tokens"] for r in own) == 1024
            mean = sum(r["tokens"] * r["loss"] for r in own) / 1024
            assert mean == pytest.approx(whole, rel=1e-5)


def test_a_window_never_sees_what_stands_before_it_and_parts_change_nothing(run, monkeypatch):
    gpt, tokens = finished_run.model(run), text()[:1025]
    before = loss_by_position.token_losses(gpt, tokens, 128)
    with monkeypatch.context() as patch:
        patch.setattr("lmscaling.model.gpt.LOGITS_AT_ONCE", 50 * 320)  # 50 rows at a time
        patch.setattr(loss_by_position, "PASS_TOKENS", 3 * 128)
        found = loss_by_position.token_losses(gpt, tokens, 128)
    assert found == pytest.approx(before, rel=1e-6)
    tokens[127] = (tokens[127] + 1) % SEPARATOR  # the last input of the first window
    after = loss_by_position.token_losses(gpt, tokens, 128)
    assert after[128:].tolist() == before[128:].tolist()
    assert (after[126:128] != before[126:128]).all()


def test_bins_double_and_empty_ones_have_no_row():
    positions = np.array([0, 0, 1, 2, 3, 8, 15])
    made = list(binned(np.arange(7.0), positions, np.zeros(7, dtype=int)))
    assert [(r["start"], r["stop"], r["tokens"], r["loss"]) for r in made] == [
        (0, 1, 2, 0.5), (1, 2, 1, 2.0), (2, 4, 2, 3.5), (8, 16, 2, 5.5),
    ]  # fmt: skip


@given(st.integers(1, 300), st.sampled_from([1, 16, 64]))
def test_blocks_are_whole_windows_and_as_equal_as_can_be(windows, context):
    found = blocks(windows * context, context).reshape(windows, context)
    assert (found == found[:, :1]).all()
    assert (np.diff(found[:, 0]) >= 0).all()
    counts = np.bincount(found[:, 0])
    assert len(counts) == min(windows, 32)
    assert counts.max() - counts.min() <= 1


def test_the_error_is_that_of_the_mean_of_blocks_also_where_they_differ_in_size():
    sums, counts = np.array([3.0, 5.0, 10.0]), np.array([2, 2, 2])
    expected = np.std(sums / 2, ddof=1) / math.sqrt(3)
    assert standard_error(sums, counts) == pytest.approx(expected)
    with_an_empty_block = standard_error(np.append(sums, 0.0), np.append(counts, 0))
    assert with_an_empty_block == pytest.approx(expected)
    rng = np.random.default_rng(0)
    errors, claimed = [], []
    for _ in range(2000):
        counts = rng.integers(1, 60, 32)
        shared = rng.normal(0, 0.5, 32)  # tokens of a block are alike
        sums = counts * (2.0 + shared) + rng.normal(0, np.sqrt(counts))
        errors.append(sums.sum() / counts.sum() - 2.0)
        claimed.append(standard_error(sums, counts))
    assert np.mean(claimed) == pytest.approx(np.std(errors), rel=0.1)


def test_a_short_text_gives_fewer_targets_its_own_name_and_one_block_no_error(run, tmp_path):
    made = rows(run, write(tmp_path, text(600), dataset="other"))
    assert {row["dataset"] for row in made} == {"other"}
    assert sum(row["tokens"] for row in made) == 512 * 2 * len(CONTEXTS)
    assert rows(run, write(tmp_path, text(256), dataset="tiny")) == []
    made = rows(run, write(tmp_path, text(257), dataset="enough"))
    assert sum(row["tokens"] for row in made) == 256 * 2 * len(CONTEXTS)
    assert all(row["loss_se"] is None and row["loss"] > 0 for row in made if row["context"] == 256)


@given(st.integers(1, 5000) | st.sampled_from([2**17]))
def test_contexts_are_halves_that_cut_the_same_tokens_evenly(context):
    found = loss_by_position.contexts(context)
    assert found[0] == context
    assert all(one == 2 * other for one, other in pairwise(found))
    assert min(found) >= min(context, loss_by_position.SHORTEST)
    assert found[-1] % 2 or found[-1] < 2 * loss_by_position.SHORTEST


def test_a_run_without_weights_or_record_leaves_an_empty_file_and_says_so(run, tmp_path):
    manifest, out = write(tmp_path, text()), tmp_path / "out.jsonl"
    for spoil, told in (
        ((run / "model.safetensors").unlink, "weights"),
        (lambda: (run / "run.json").write_text('{"cell"'), str(run / "run.json")),
    ):
        spoil()
        said = evaluate(run, manifest, out)
        assert told in said
        sentence("evaluate", said)
        assert out.read_bytes() == b""
        out.unlink()


def test_an_evaluation_stays_and_one_of_earlier_weights_is_made_again(run, tmp_path):
    manifest, out = write(tmp_path, text()), tmp_path / "out.jsonl"
    out.write_text("made before\n")
    assert str(out) in evaluate(run, manifest, out)
    assert out.read_text() == "made before\n"
    os.utime(run / "run.json", (2e9, 2e9))
    evaluate(run, manifest, out)
    assert json.loads(out.read_text().splitlines()[0])["run"] == run.name


def test_a_diverged_run_has_losses_that_are_null(long, tmp_path):
    run = finish(tmp_path, long, "diverged")
    gpt = finished_run.model(run)
    with torch.no_grad():
        gpt.norm.weight.fill_(float("nan"))
    save_weights(run / "model.safetensors", gpt)
    made = rows(run, write(tmp_path, text()))
    assert made
    assert all(row["loss"] is None and row["loss_se"] is None for row in made)


def test_what_cannot_be_evaluated_is_one_sentence_and_leaves_no_file(run, long, tmp_path):
    out, record = tmp_path / "out.jsonl", (run / "run.json").read_text()
    with refused(UserError, "encoding gpt2", "bytes"):
        evaluate(run, write(tmp_path, text(), encoding="gpt2"), out)
    manifest = write(tmp_path, text())
    (run / "run.json").write_text(json.dumps(json.loads(record) | {"ranks_sha256": "another"}))
    with refused(UserError, "SHA-256 r;", "another"):
        evaluate(run, manifest, out)
    (run / "run.json").write_text(record)
    shard = manifest.with_name("validation-00000.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    with refused(UserError, "validation-00000.bin"):
        evaluate(run, manifest, out)
    with refused(UserError, "other/run.json"):
        evaluate(run.with_name("other"), manifest, out)
    if not torch.cuda.is_available():
        of_gpu = finish(tmp_path, replace(long, gpus=1))
        with refused(UserError, "GPU"):
            evaluate(of_gpu, write(tmp_path, text()), out)
    assert not out.exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_agrees_with_the_cpu_to_bfloat16(run):
    tokens, gpt = text()[:1025], finished_run.model(run)
    expected = loss_by_position.token_losses(gpt, tokens, 256)
    found = loss_by_position.token_losses(gpt.cuda(), tokens, 256)
    assert found == pytest.approx(expected, abs=0.2)
