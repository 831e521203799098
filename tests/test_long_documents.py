"""Folders of long documents: what a shard is made from, and a whole book from text to its loss."""

import gzip
import json
from dataclasses import replace

import pytest
from conftest import refused
from test_data import corpus, read
from test_evaluate import finish, rows

from lmscaling.config.cell import Model, Validation
from lmscaling.data import document_positions, shards, sources
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """Seven files for training, two for validation, and metadata that are no document."""
    for split, names in (("train", "abcdefg"), ("validation", "yz")):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / f"{name}.txt").write_text(f"text of {name}")
    (tmp_path / "train" / "metadata.csv").write_text("a,b")
    return tmp_path


def row(folder, **values):
    folders = {split: str(folder / split) for split in ("train", "validation")}
    return corpus({"kind": "folder", **folders, "n_files": 7, "files_per_shard": 3} | values)


def names(given, split, shard):
    return "".join(text[-1] for text in sources.read_shard(given, split, shard).texts)


def test_a_shard_is_made_from_so_many_files_by_name_and_says_from_which(folder):
    given = row(folder)
    assert [names(given, "train", i) for i in range(3)] == ["abc", "def", "g"]
    assert names(given, "validation", 0) == "yz"
    assert [len(given.source.files(split)) for split in ("train", "validation")] == [3, 1]
    made = tokenize(given, "train", 1, folder / "out" / "train-00001.bin")
    assert (made["source"]["first"], made["source"]["last"]) == ("d.txt", "f.txt")
    assert made["source"]["files"].startswith(f"{folder}/train/*.txt, 4")
    assert made["documents"] == 3


def test_files_behind_the_others_change_the_last_shard_alone(folder):
    short = row(folder)
    (folder / "train" / "h.txt").write_text("text of h")
    long = row(folder, n_files=8)
    assert names(short, "train", 2) == "g"
    assert names(long, "train", 2) == "gh"
    for i in (1, 2):  # what the jobs of full shards are given
        assert short.to_json(i) == long.to_json(i)
    assert short.to_json(3) != long.to_json(3)
    assert short.source.identity() == long.source.identity()


def test_a_folder_without_validation_holds_out_documents_of_its_first_shard(folder):
    for i in range(200):
        (folder / "train" / f"{i:03d}.txt").write_text(f"text {i}")
    given = row(folder, validation="", holdout=0.2, n_files=207, files_per_shard=150)
    held = [*sources.read_shard(given, "validation", 0).texts]
    first, second = ([*sources.read_shard(given, "train", i).texts] for i in range(2))
    assert held
    assert len({*held, *first}) == len(held) + len(first) == 150
    assert not {*second} & {*held, *first}


def test_a_folder_with_too_few_files_is_refused(folder):
    with refused(UserError, "7 files", "shard 2", "7 to 9"):
        names(row(folder, n_files=9), "train", 2)
    for values in ({"pattern": "*.md"}, {"train": f"{folder}/no"}):
        with refused(UserError, *values.values()):
            names(row(folder, **values), "train", 0)


@pytest.fixture
def books(real_data, tmp_path, monkeypatch):
    """Two books laid out as PG-19 is, each in both splits' folders in turn."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    with gzip.open(real_data / "long" / "pg19_two_books.jsonl.gz") as file:
        long, short = (json.loads(line)["text"] for line in file)
    texts = {"train": [long, short], "validation": [short[:10_000], short[10_000:20_000]]}
    for split, found in texts.items():
        (tmp_path / split).mkdir()
        for i, text in enumerate(found):
            (tmp_path / split / f"{10_000 + i}.txt").write_bytes(text.encode())
    return tmp_path


def test_a_book_of_357388_tokens_is_one_document_of_the_stream(books):
    source = {"kind": "folder", "train": f"{books}/train", "validation": f"{books}/validation"}
    given = corpus(source | {"n_files": 2, "files_per_shard": 1}, "gpt2")
    out = books / "tokens"
    tokenize(given, "validation", 0, out / "validation-00000.bin")
    made = [tokenize(given, "train", i, out / f"train-0000{i}.bin") for i in range(2)]
    counts = shards.write_manifest(out / "manifest.json", {"train": 2, "validation": 1})["train"]
    assert [part["tokens"] for part in made] == [357_389, 41_531]
    stream = Stream(out / "manifest.json", "train")
    positions = stream.positions(0, stream.read(0, stream.tokens))
    assert positions.tolist() == [*range(357_389), *range(41_531)]
    assert document_positions.own_context([357_389, 41_531]) == counts
    longer = (357_389 - 131_072) / stream.tokens
    assert document_positions.shares(counts)[131_072] == pytest.approx(longer)


def test_a_book_has_losses_at_positions_to_half_a_million(books, cell, tmp_path):
    source = {"kind": "folder", "train": f"{books}/validation", "validation": f"{books}/train"}
    given = corpus(source | {"n_files": 1})
    out = books / "tokens" / "validation-00000.bin"
    made = tokenize(given, "validation", 0, out)
    shards.write_manifest(out.with_name("manifest.json"), {"train": 0, "validation": 1})
    assert (read(out) == 256).sum() == made["documents"] == 2

    shape = Model(n_layer=1, n_head=1, d_model=4, vocab_size=257)
    judged = Validation(tokens=2**19, every_tokens=2**19)
    small = replace(cell, context=64, model=shape, validation=judged)
    found = rows(finish(tmp_path, small), out.with_name("manifest.json"))
    in_book = {r["start"]: r["tokens"] for r in found if r["axis"] == "document"}
    assert in_book == {0: 1} | {2**i: 2**i for i in range(19)}
    assert all(r["loss"] > 0 for r in found)
