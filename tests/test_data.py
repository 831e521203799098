"""Text to shards: what the tokens are, who made them, and that no split knows the other."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lmscaling.config import grid
from lmscaling.config.datasets import Corpus, Tokenizer
from lmscaling.config.validation import checked
from lmscaling.data import shards, sources
from lmscaling.data.tokenize import tokenize
from lmscaling.data.vocabulary import END_OF_TEXT, encoding
from lmscaling.errors import UserError
from lmscaling.files import sha256_of

BYTES = {"encoding": "bytes", "vocab_size": 257}
GPT2 = {"encoding": "gpt2", "vocab_size": 50257}


def corpus(source, tokenizer="bytes", values=None):
    row = values or (BYTES if tokenizer == "bytes" else GPT2)
    given = {"dataset": "d", "source": source, "tokenizer": tokenizer, "encoding": row}
    return checked(Corpus, given, "corpus")


def lines(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return str(path)


def read(path):
    return np.fromfile(path, dtype=shards.TOKEN, offset=shards.HEADER_BYTES)


@pytest.fixture
def c4(real_data, tmp_path, monkeypatch):
    """A local folder laid out like the hub repository allenai/c4."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    (tmp_path / "hub" / "en").mkdir(parents=True)
    for name, sample in (
        ("c4-train.00000-of-01024", "c4-train.00000-of-01024.first1000"),
        ("c4-validation.00000-of-00008", "c4-validation.sample.200"),
    ):
        shutil.copy(
            real_data / "c4" / f"{sample}.json.gz", tmp_path / "hub" / "en" / f"{name}.json.gz"
        )
    return {
        "kind": "hub",
        "repository": str(tmp_path / "hub"),
        "train": "en/c4-train.{shard:05d}-of-01024.json.gz",
        "validation": "en/c4-validation.{shard:05d}-of-00008.json.gz",
        "shards": 1,
    }


def test_a_thousand_real_documents_are_exactly_their_gpt2_tokens(c4, real_data, tmp_path):
    given = corpus(c4, "gpt2")
    made = tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert made["tokens"] == 485_006 + 1_000
    tokens = read(tmp_path / "train-00000.bin")
    starts = np.flatnonzero(tokens == 50256)
    assert len(starts) == 1_000
    with gzip.open(real_data / "c4" / "c4-train.00000-of-01024.first1000.json.gz") as file:
        texts = [json.loads(line)["text"] for line in file]
    encoder = encoding(Tokenizer(encoding="gpt2", vocab_size=50257))
    pieces = np.split(tokens, starts[1:])
    assert all(encoder.decode(p[1:].tolist()) == t for p, t in zip(pieces, texts, strict=True))


def test_no_validation_document_is_trained_on(c4, real_data, tmp_path):
    validation = tokenize(corpus(c4, "gpt2"), "validation", 0, tmp_path / "validation-00000.bin")
    assert validation["documents"] == 200
    # The validation file now also holds ten of the training documents.
    train = tmp_path / "hub" / "en" / "c4-train.00000-of-01024.json.gz"
    with gzip.open(train, "rt") as file:
        ten = [next(file) for _ in range(10)]
    with gzip.open(tmp_path / "hub" / "en" / "c4-validation.00000-of-00008.json.gz", "at") as file:
        file.writelines(ten)
    given = corpus(c4, "gpt2")
    tokenize(given, "validation", 0, tmp_path / "validation-00000.bin")
    made = tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert (made["documents"], made["documents_dropped"]) == (990, 10)


def test_the_header_is_that_of_llm_c(tmp_path):
    source = {"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", ["ab", "c"])], "holdout": 1e-9}
    made = tokenize(corpus(source), "train", 0, tmp_path / "train-00000.bin")
    header = np.fromfile(tmp_path / "train-00000.bin", dtype="<i4", count=256)
    assert header[:3].tolist() == [20240520, 1, 5]
    assert not header[3:].any()
    assert read(tmp_path / "train-00000.bin").tolist() == [256, 97, 98, 256, 99]
    assert made["sha256"] == sha256_of(tmp_path / "train-00000.bin", 1024)


def test_the_words_of_the_end_of_text_token_forge_no_boundary(tmp_path):
    source = {"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", [f"x{END_OF_TEXT}y"])]}
    given = corpus(source | {"holdout": 1e-9})
    tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert np.flatnonzero(read(tmp_path / "train-00000.bin") == 256).tolist() == [0]


def test_any_text_survives_the_bytes_encoding():
    encoder = encoding(Tokenizer(**BYTES))
    text = "a\n" * 100 + "\0\tß→🙂" + END_OF_TEXT
    assert encoder.decode(encoder.encode_ordinary(text)) == text
    assert len(encoder.encode_ordinary(text)) == len(text.encode())


def test_the_standard_library_splits_by_content_and_says_which_python(tmp_path):
    given = corpus({"kind": "stdlib"})
    validation = tokenize(given, "validation", 0, tmp_path / "validation-00000.bin")
    train = tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert validation["documents"] > 5
    assert train["tokens"] > 1_000_000
    assert train["documents_dropped"] == 0
    assert train["source"]["python"] == train["versions"]["python"]
    assert len(train["documents_sha256"]) == 64
    sides = [{*sources.read_shard(given, s, 0).texts} for s in ("train", "validation")]
    assert not sides[0] & sides[1]


def test_sources_of_packages_come_once_each_and_documents_of_others_validate(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    for name, text in {"a": "x = 1", "b": "x = 1", "c": "y = 2", "d": "shared"}.items():
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text(text)
    (packages / "notes.txt").write_text("no source")
    (tmp_path / "v.jsonl").write_text('{"text": "shared"}\n{"text": "prose"}\n')
    monkeypatch.setattr("sys.path", [str(packages)])
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "nothing")})
    row = {"kind": "stdlib", "packages": True, "validation": [str(tmp_path / "v.jsonl")]}
    given = corpus(row)
    tokenize(given, "validation", 0, tmp_path / "validation-00000.bin")
    made = tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert (made["documents"], made["documents_dropped"]) == (2, 1)
    assert [*sources.read_shard(given, "validation", 0).texts] == ["shared", "prose"]
    assert corpus({"kind": "stdlib"}).source.identity() == {"kind": "stdlib"}


def test_text_files_are_documents_and_a_shared_one_is_validation(tmp_path):
    for name, text in {"a": "one", "b": "two", "v": "two"}.items():
        (tmp_path / name).write_text(text)
    names = {n: str(tmp_path / n) for n in "abv"}
    source = {"kind": "text", "train": [names["a"], names["b"]], "validation": [names["v"]]}
    given = corpus(source)
    tokenize(given, "validation", 0, tmp_path / "validation-00000.bin")
    made = tokenize(given, "train", 0, tmp_path / "train-00000.bin")
    assert (made["documents"], made["documents_dropped"]) == (1, 1)


def test_documents_are_shuffled_within_a_file_and_every_one_stays(tmp_path):
    texts = [f"chapter {i // 10}, page {i}" for i in range(200)]
    source = {"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", texts)], "holdout": 0.05}
    orders = []
    for shuffle in ["none", "blocks", "documents"]:
        row = corpus(source | {"shuffle": shuffle})
        tokenize(row, "train", 0, tmp_path / "train-00000.bin")
        data = (read(tmp_path / "train-00000.bin") % 256).astype("u1").tobytes()  # end-of-text is 0
        orders.append(data.decode().split("\0")[1:])
    plain, blocks, documents = orders
    assert plain == blocks == [text for text in texts if text in plain]
    assert sorted(documents) == sorted(plain) != documents
    chapters = [text.partition(",")[0] for text in documents]
    assert sum(a == b for a, b in pairwise(chapters)) < len(documents) / 4


def test_held_out_documents_stay_held_out_when_files_are_added(tmp_path):
    texts = [f"document {i}" for i in range(400)]
    first, second = (lines(tmp_path / n, texts) for n in ("a.jsonl", "b.jsonl"))
    source = {"kind": "jsonl", "train": [first, second], "holdout": 0.1}
    made = corpus(source)
    held = {*sources.read_shard(made, "validation", 0).texts}
    assert 10 < len(held) < 100
    assert all(not held & {*sources.read_shard(made, "train", i).texts} for i in (0, 1))


KIND = """
import csv
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from lmscaling.config import grid
from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TwoTables(Dataset):
    kind: Literal["two_tables"]
    train: str
    validation: str

    def files(self, split):
        return [getattr(self, split)]

    def read(self, split, shard, file):
        rows = csv.DictReader(Path(self.files(split)[shard]).open())
        return Documents(row["text"] for row in rows)
"""

STEPS = """
import json, sys
from pathlib import Path
from lmscaling.config import grid
from lmscaling.data import shards
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.plan import text_needs

laid_out = grid.expand(json.load(sys.stdin))
(folder, corpus), = laid_out.corpora.items()
for split in ("validation", "train"):
    tokenize(corpus, split, 0, Path(folder, f"{split}-00000.bin"))
    assert not text_needs.missing(corpus.source, Path(folder), split, 1)
shards.write_manifest(Path(folder, "manifest.json"), {"train": 1, "validation": 1})
stream = Stream(Path(folder, "manifest.json"), "train")
print(bytes(stream.read(1, stream.tokens).astype("u1")).decode())
"""


def test_a_new_kind_of_dataset_is_one_file(values, tmp_path):
    package = Path(sources.__file__).parents[1]
    copy = tmp_path / "src" / "lmscaling"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "data" / "kinds" / "two_tables.py").write_text(KIND)
    (tmp_path / "t.csv").write_text("id,text\n1,to train\n2,shared\n")
    (tmp_path / "v.csv").write_text("id,text\n3,shared\n")
    row = {"kind": "two_tables", "train": "t.csv", "validation": "v.csv"}
    values |= {"datasets": {"tables": row}, "dataset": "tables"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], input=json.dumps(values), capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(copy.parent)}, check=False,
    )  # fmt: skip
    assert (done.stderr, done.stdout) == ("", "to train\n")
    assert len(list(tmp_path.glob("tables-bytes-*/*.bin"))) == 2
    row["kind"] = "two_table"
    with pytest.raises(UserError, match="kind is 'two_table'"):
        grid.expand(values)


BROKEN = [
    ("a.jsonl", '{"text": "x"}\n{"text": "y', "line 2: not valid JSON"),
    ("a.jsonl", '{"txt": "x"}\n', "line 1: no text under 'text'; nearest is 'txt'"),
    ("a.jsonl", "[1]\n", "line 1: no text under 'text'"),
    ("a.json.gz", "no gzip", "is not valid gzip"),
    ("b.jsonl", "", "a.jsonl does not exist; nearest is 'b.jsonl'"),
    ("a.jsonl", "", "the train split has no document"),
]


@pytest.mark.parametrize(("name", "text", "sentence"), BROKEN)
def test_a_broken_source_is_one_sentence_and_leaves_nothing(tmp_path, name, text, sentence):
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_text(text)
    wanted = "a.jsonl" if name == "b.jsonl" else name
    given = corpus({"kind": "jsonl", "train": [str(data / wanted)], "holdout": 1e-9})
    with pytest.raises(UserError, match=sentence):
        tokenize(given, "train", 0, tmp_path / "out" / "train-00000.bin")
    assert not list((tmp_path / "out").glob("*"))
    assert not list((tmp_path / "out").glob(".*"))


def test_a_file_missing_from_a_hub_folder_names_the_nearest(c4, tmp_path):
    given = corpus(c4 | {"train": "en/c4-train.{shard:05d}-of-01025.json.gz"}, "gpt2")
    with pytest.raises(UserError, match=r"does not exist; nearest is 'c4-train.00000-of-01024"):
        tokenize(given, "train", 0, tmp_path / "train-00000.bin")


def test_a_gzip_cut_short_on_a_hub_folder_is_refused(c4, tmp_path):
    file = tmp_path / "hub" / "en" / "c4-train.00000-of-01024.json.gz"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match="is not valid gzip"):
        tokenize(corpus(c4, "gpt2"), "train", 0, tmp_path / "train-00000.bin")
    assert not (tmp_path / "train-00000.bin").exists()


def test_a_row_with_the_wrong_vocabulary_is_told_the_right_one():
    with pytest.raises(UserError, match="bytes has 257 tokens, but its row states vocab_size 256"):
        checked(Tokenizer, {"encoding": "bytes", "vocab_size": 256}, "study file")


def test_a_missing_vocabulary_says_where_to_put_it(monkeypatch, tmp_path):
    import tiktoken

    def unreachable(name):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(UserError, match="set TIKTOKEN_CACHE_DIR"):
        encoding(Tokenizer(encoding="gpt2", vocab_size=50257))
