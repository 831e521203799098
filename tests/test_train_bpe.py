"""A tokenizer of the study's own text: from which documents, always the same, and never two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, refused
from hub import COMMIT
from test_data import corpus, lines
from test_text_workflow import FILES, hub, manifest  # noqa: F401
from test_workflow import product

from lmscaling.config import grid
from lmscaling.data import shards, tokenizer_file, train_bpe
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.files import sha256_of
from lmscaling.plan import jobs

WORDS = ["the", "of", "for", "while", "return", "import", "class", "self", "none", "true", "print"]


def texts(n, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, 30)) + f" {i}\n" for i in range(n)]


def given(tmp_path, train=None, validation=None, **settings):
    source = {"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", train or texts(200))]}
    source["validation"] = [lines(tmp_path / "v.jsonl", validation or texts(20, seed=1))]
    return corpus(source, values={"train_bpe": {"vocab_size": 300, **settings}})


def test_a_tokenizer_has_so_many_tokens_and_shards_of_two_never_mix(tmp_path):
    corpus, tokens, bpe = given(tmp_path), tmp_path / "tokens", tmp_path / "bpe.json"
    made = train_bpe.train(corpus, bpe)
    loaded = tokenizer_file.load(corpus.encoding, bpe)
    assert (loaded.n_vocab, loaded.tokenizer.token_to_id("<|endoftext|>")) == (300, 299)
    assert loaded.sha256 == made["sha256"] == sha256_of(bpe)
    kept = tokenizer_file.described_at(bpe).read_bytes()
    assert json.loads(kept) == made
    sidecar = tokenize(corpus, "validation", 0, tokens / "validation-00000.bin", ranks=bpe)
    assert (sidecar["end_of_text"], sidecar["encoding"]) == (299, "train_bpe")
    assert sidecar["ranks_sha256"] == made["sha256"]
    assert sidecar["tokens"] < sidecar["bytes"] / 3
    other = given(tmp_path, train=texts(200, seed=9))
    bpe.unlink()
    train_bpe.train(other, bpe)
    shard = tokens / "train-00000.bin"
    tokenize(other, "train", 0, shard, ranks=bpe)
    with refused(UserError, "train-00000.bin", "ranks_sha256"):
        shards.write_manifest(tokens / "manifest.json", {"train": 1, "validation": 1})
    tokenizer_file.described_at(bpe).write_bytes(kept)  # as if the file had changed
    with refused(UserError, "bpe.json", "SHA-256"):
        tokenize(other, "train", 0, shard, ranks=bpe)
    with refused(UserError, "--vocabulary"):
        tokenize(other, "train", 0, shard)


def test_it_reads_training_documents_alone_and_no_more_than_asked(tmp_path):
    shared, own = texts(5, seed=3), ["zebra " * 40 for _ in range(30)]
    train, sizes = [*shared, *own, *texts(50)], {"vocab_size": 262, "sample_bytes": 7000}
    given_, bpe = given(tmp_path, train=train, validation=shared, **sizes), tmp_path / "bpe.json"
    made = train_bpe.train(given_, bpe)
    assert (made["documents"], made["bytes"], made["documents_dropped"]) == (30, 7200, 5)
    vocabulary = json.loads(bpe.read_text())["model"]["vocab"]
    assert "Ġzebra" in vocabulary
    assert not {"Ġthe", "Ġreturn", "return"} & {*vocabulary}
    source = {"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", texts(300))], "holdout": 0.2}
    held = corpus(source, values={"train_bpe": {"vocab_size": 300}})
    made = train_bpe.train(held, tmp_path / "held.json")
    shard = tokenize(held, "train", 0, tmp_path / "train-00000.bin", ranks=tmp_path / "held.json")
    assert 200 < made["documents"] == shard["documents"] < 280


def test_equal_text_gives_equal_bytes_in_any_process_and_with_any_threads(tmp_path):
    corpus, files = given(tmp_path, vocab_size=420), []
    for threads in (1, 3, 8):
        files.append(tmp_path / f"{threads}.json")
        parallel = {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        command = [sys.executable, "-m", "lmscaling", "train-bpe", files[-1]]
        subprocess.run(
            command, input=corpus.to_json(1), text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | parallel,
        )  # fmt: skip
    assert len({path.read_bytes() for path in files}) == 1


def test_too_little_text_or_a_source_that_is_broken_or_gone_leaves_nothing(tmp_path):
    bpe, few = tmp_path / "bpe.json", {"train": ["ab ab ab"]}
    with refused(UserError, "8 bytes", "vocab_size: 259"):
        train_bpe.train(given(tmp_path, **few, vocab_size=5000), bpe)
    broken = given(tmp_path)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("no json\n")
    with refused(UserError, "a.jsonl", "line 201"):
        train_bpe.train(broken, bpe)
    row = {"kind": "hub", "repository": "o/t", "revision": COMMIT, "shards": 2, **FILES}
    used_up = corpus(row, values={"train_bpe": {"vocab_size": 300}})
    with refused(UserError, "v.00000.json.gz"):
        train_bpe.train(used_up, bpe, tmp_path / "sources")
    assert not list(tmp_path.glob("bpe*"))
    train_bpe.train(given(tmp_path, **few, vocab_size=259), bpe)


def test_settings_and_text_of_a_trained_tokenizer_name_its_file_and_the_cells(values):
    def laid_out(**settings):
        values["tokenizers"]["own"] = {"train_bpe": {"vocab_size": 300, **settings}}
        return grid.expand(values)

    values["tokenizer"] = "own"
    values["datasets"]["others"] = {**values["datasets"]["lines"], "validation": ["w.jsonl"]}
    values["evaluate"] = {"datasets": ["lines", "others"]}
    first = laid_out()
    assert {cell.model.vocab_size for cell in first.cells.values()} == {300}
    assert len(first.corpora) == 2
    made = jobs.counts(first)
    assert (made["train_bpe"], "vocabulary" in made) == (1, False)
    for other in (laid_out(vocab_size=301), laid_out(sample_bytes=5)):
        assert other.vocabulary != first.vocabulary
        assert not {*other.cells, *other.corpora} & {*first.cells, *first.corpora}
    assert {*laid_out().corpora} == {*first.corpora}
    values["dataset"] = "others"
    assert not {*laid_out().corpora} & {*first.corpora}


def test_a_tokenizer_of_fetched_text_is_trained_before_it_is_tokenized(tmp_path, hub):  # noqa: F811
    place = product(tmp_path / "product")
    row = {"kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 2}
    place.study(
        datasets={"texts": row | FILES}, dataset="texts", evaluate=None,
        tokenizers={"own": {"train_bpe": {"vocab_size": 262}}}, tokenizer="own",
    )  # fmt: skip
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    (path,) = place.results.glob("vocabulary/own-*.json")
    sidecar = json.loads((place.root / target).with_name("train-00001.json").read_text())
    assert sidecar["ranks_sha256"] == sha256_of(path)
    described = json.loads(tokenizer_file.described_at(path).read_text())
    assert (described["files"], described["documents"]) == ("en/t.00000.json.gz", 200)
    assert not list((place.results / "sources").rglob("*.json.gz"))
    os.utime(path, (2e9, 2e9))
    assert place.plan(target) == []


@pytest.mark.ci
def test_the_study_of_a_tokenizer_of_python_runs_from_text_to_report(tmp_path):
    """config/python_bpe.yaml with one cell, two updates and a small vocabulary."""
    place = product(tmp_path / "product")
    changes = [
        "axes={attention: [linear], size: [6k], context: [64], seed: [0], lr_scale: [1.0]}",
        "budget=4 updates", "validation={tokens: 512, every_tokens: 4096}",
        "tokenizers={python: {train_bpe: {vocab_size: 300, sample_bytes: 100000}}}",
        "optimizer={warmup_updates: 2}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile"]
    done = subprocess.run(
        [*command, "config/python_bpe.yaml", "--config", *changes], cwd=place.root, text=True,
        env=os.environ | {"PYTHONPATH": str(place.root / "src")}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = place.root / "results" / "python_bpe"
    (record,) = [json.loads(path.read_text()) for path in results.glob("runs/*/run.json")]
    sidecar = json.loads(next(results.glob("tokens/*/validation-00000.json")).read_text())
    assert record["bytes_per_token"] == sidecar["bytes"] / sidecar["tokens"]
    assert record["ranks_sha256"] == sidecar["ranks_sha256"]
    assert record["cell"]["data"]["vocabulary"]["train_bpe"]["vocab_size"] == 300
    log = next(results.glob("runs/*/log.jsonl")).read_text().splitlines()
    shown = json.loads(log[-2])["val_loss"] / np.log(2) / record["bytes_per_token"]
    assert Path(results, "report.html").read_text().count(f"{shown:.4f}") == 2
