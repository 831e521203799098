"""Loss by position is a plain loop over whole logits, on the same targets at every context."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import write_shard
from test_main import lmscaling

from lmscaling.config.cell import Model, Validation
from lmscaling.data import shards
from lmscaling.errors import UserError
from lmscaling.evaluate import loss_by_position
from lmscaling.evaluate.loss_by_position import binned, blocks, evaluate, standard_error
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.train.checkpoint import save_weights

SEPARATOR = 256
CONTEXTS = [256, 128, 64]


@pytest.fixture(params=["softmax learned", "softmax none", "linear rope"])
def long(request, cell):
    """A cell of context 256 with four windows of targets."""
    attention, position = request.param.split()
    return replace(
        cell,
        attention=attention,
        position=position,
        context=256,
        model=Model(n_layer=1, n_head=2, d_model=16, vocab_size=257),
        validation=Validation(tokens=1024, every_tokens=1024),
    )


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
    asked = []
    monkeypatch.setattr(
        loss_by_position.gate, "pass_or_fall_back", lambda *given, **_: asked.append(given)
    )
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
    return [json.loads(line) for line in out.read_text().splitlines()]


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


def test_it_is_a_plain_loop_over_whole_logits(run, tmp_path):
    tokens = text()
    made = rows(run, write(tmp_path, tokens))
    gpt = finished_run.model(run)
    assert [*dict.fromkeys(row["context"] for row in made)] == CONTEXTS
    for context in CONTEXTS:
        expected = plain(gpt, tokens, context, 1024)
        part = {(r["axis"], r["stop"]): r for r in made if r["context"] == context}
        assert part.keys() == expected.keys()
        for key, losses in expected.items():
            assert part[key]["tokens"] == len(losses)
            assert part[key]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
            assert part[key]["start"] == part[key]["stop"] // 2


def test_every_context_and_axis_has_the_same_targets(run, tmp_path):
    tokens = text()
    made = rows(run, write(tmp_path, tokens))
    gpt = finished_run.model(run)
    ids = torch.from_numpy(tokens[:1025].astype("int64"))
    for context in CONTEXTS:
        whole = float(gpt.loss(ids[:-1].view(-1, context), ids[1:].view(-1, context)).detach())
        for axis in ("sequence", "document"):
            part = [r for r in made if (r["context"], r["axis"]) == (context, axis)]
            assert sum(r["tokens"] for r in part) == 1024
            mean = sum(r["tokens"] * r["loss"] for r in part) / 1024
            assert mean == pytest.approx(whole, rel=1e-5)


def test_a_window_never_sees_what_stands_before_it(run):
    gpt, tokens = finished_run.model(run), text()[:1025]
    before = loss_by_position.token_losses(gpt, tokens, 128)
    tokens[127] = (tokens[127] + 1) % SEPARATOR  # the last input of the first window
    after = loss_by_position.token_losses(gpt, tokens, 128)
    assert after[128:].tolist() == before[128:].tolist()
    assert after[126] != before[126]
    assert after[127] != before[127]


def test_the_parts_in_which_a_text_is_computed_change_nothing(run, monkeypatch):
    gpt, tokens = finished_run.model(run), text()[:1025]
    expected = loss_by_position.token_losses(gpt, tokens, 128)
    monkeypatch.setattr("lmscaling.model.gpt.LOGITS_AT_ONCE", 50 * 320)  # 50 rows at a time
    monkeypatch.setattr(loss_by_position, "PASS_TOKENS", 3 * 128)
    assert loss_by_position.token_losses(gpt, tokens, 128) == pytest.approx(expected, rel=1e-6)


def test_bins_double_and_empty_ones_have_no_row():
    positions = np.array([0, 0, 1, 2, 3, 8, 15])
    made = list(binned(np.arange(7.0), positions, np.zeros(7, dtype=int)))
    assert [(r["start"], r["stop"], r["tokens"], r["loss"]) for r in made] == [
        (0, 1, 2, 0.5), (1, 2, 1, 2.0), (2, 4, 2, 3.5), (8, 16, 2, 5.5),
    ]  # fmt: skip


@pytest.mark.parametrize(("windows", "expected"), [(1, 1), (5, 5), (32, 32), (33, 32), (100, 32)])
def test_blocks_are_whole_windows_and_as_equal_as_can_be(windows, expected):
    found = blocks(windows * 16, 16).reshape(windows, 16)
    assert (found == found[:, :1]).all()
    assert (np.diff(found[:, 0]) >= 0).all()
    counts = np.bincount(found[:, 0])
    assert len(counts) == expected
    assert counts.max() - counts.min() <= 1


def test_the_error_of_equal_blocks_is_that_of_their_mean():
    sums, counts = np.array([3.0, 5.0, 10.0]), np.array([2, 2, 2])
    expected = np.std(sums / 2, ddof=1) / math.sqrt(3)
    assert standard_error(sums, counts) == pytest.approx(expected)
    with_an_empty_block = standard_error(np.append(sums, 0.0), np.append(counts, 0))
    assert with_an_empty_block == pytest.approx(expected)


def test_the_error_covers_the_truth_where_blocks_differ_in_size():
    rng = np.random.default_rng(0)
    errors, claimed = [], []
    for _ in range(2000):
        counts = rng.integers(1, 60, 32)
        shared = rng.normal(0, 0.5, 32)  # tokens of a block are alike
        sums = counts * (2.0 + shared) + rng.normal(0, np.sqrt(counts))
        errors.append(sums.sum() / counts.sum() - 2.0)
        claimed.append(standard_error(sums, counts))
    assert np.mean(claimed) == pytest.approx(np.std(errors), rel=0.1)


def test_one_block_has_no_error(long, tmp_path):
    short = replace(long, validation=Validation(tokens=256, every_tokens=256))
    made = rows(finish(tmp_path, short), write(tmp_path, text()))
    assert all(row["loss_se"] is None and row["loss"] > 0 for row in made)
    assert sum(row["tokens"] for row in made) == 256 * 2 * len(CONTEXTS)


def test_a_short_text_gives_fewer_targets_and_its_own_name(run, tmp_path):
    made = rows(run, write(tmp_path, text(600), dataset="other"))
    assert {row["dataset"] for row in made} == {"other"}
    assert sum(row["tokens"] for row in made) == 512 * 2 * len(CONTEXTS)
    assert rows(run, write(tmp_path, text(256), dataset="tiny")) == []
    assert len(rows(run, write(tmp_path, text(257), dataset="enough"))) > 0


@pytest.mark.parametrize("context", [16, 63, 100, 258, 1000, 131072])
def test_contexts_are_halves_that_cut_the_same_tokens_evenly(context):
    found = loss_by_position.contexts(context)
    assert found[0] == context
    assert all(context % c == 0 for c in found)
    assert min(found) >= min(context, loss_by_position.SHORTEST)
    if context == 131072:
        assert found == [2**i for i in range(17, 5, -1)]


def test_a_run_without_weights_leaves_an_empty_file_and_says_so(run, long, tmp_path):
    (run / "model.safetensors").unlink()
    done = lmscaling(
        "evaluate", run, "--manifest", write(tmp_path, text()), "--out", tmp_path / "out.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"evaluate: {long.name} has no weights\n"
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_damaged_record_leaves_an_empty_file_and_says_so(run, tmp_path):
    (run / "run.json").write_text('{"cell"')
    out = tmp_path / "out.jsonl"
    assert f"run record {run / 'run.json'} is not valid JSON" in evaluate(
        run, write(tmp_path, text()), out
    )
    assert out.read_bytes() == b""


def test_an_evaluation_of_these_weights_stays_and_one_of_earlier_weights_is_made_again(
    run, tmp_path
):
    manifest, out = write(tmp_path, text()), tmp_path / "out.jsonl"
    out.write_text("made before\n")
    assert evaluate(run, manifest, out) == f"{out} exists and stays as it is"
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


def test_what_cannot_be_evaluated_is_one_sentence_and_leaves_no_file(run, tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(UserError, match="have encoding gpt2; allowed: bytes"):
        evaluate(run, write(tmp_path, text(), encoding="gpt2"), out)
    manifest = write(tmp_path, text())
    record = json.loads((run / "run.json").read_text())
    trained = record | {"ranks_sha256": "another"}
    (run / "run.json").write_text(json.dumps(trained))
    with pytest.raises(UserError, match="with SHA-256 r; allowed: another, the tokenizer of run"):
        evaluate(run, manifest, out)
    (run / "run.json").write_text(json.dumps(record))
    shard = manifest.with_name("validation-00000.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match="its header states"):
        evaluate(run, manifest, out)
    with pytest.raises(UserError, match=r"run record .* does not exist"):
        evaluate(run.with_name("other"), manifest, out)
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_run_of_a_gpu_is_refused_where_there_is_none(long, tmp_path):
    run = finish(tmp_path, replace(long, gpus=1))
    with pytest.raises(UserError, match="trained on a GPU and this machine has none"):
        evaluate(run, write(tmp_path, text()), tmp_path / "out.jsonl")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_agrees_with_the_cpu_to_bfloat16(run):
    tokens, gpt = text()[:1025], finished_run.model(run)
    expected = loss_by_position.token_losses(gpt, tokens, 256)
    assert loss_by_position.token_losses(gpt.cuda(), tokens, 256) == pytest.approx(
        expected, abs=0.2
    )
