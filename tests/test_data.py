"""Text to shards: what the tokens are, who made them, and that no split knows the other."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling.config import grid
from lmscaling.config.validation import checked
from lmscaling.data import document_positions, shards
from lmscaling.data.documents import read_shard
from lmscaling.data.rows import Corpus, Tokenizer
from lmscaling.data.tokenize import tokenize
from lmscaling.data.vocabulary import END_OF_TEXT, encoding
from lmscaling.errors import UserError

BYTES = {"encoding": "bytes", "vocab_size": 257}


def corpus(source, tokenizer="bytes", values=None):
    row = values or (BYTES if tokenizer == "bytes" else {"encoding": "gpt2", "vocab_size": 50257})
    given = {"dataset": "d", "source": source, "tokenizer": tokenizer, "encoding": row}
    return checked(Corpus, given, "corpus")


def lines(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return str(path)


def read(path):
    return np.fromfile(path, dtype=shards.TOKEN, offset=shards.HEADER_BYTES)


def both(given, folder):
    """What is said about a validation and a training shard, and the tokens of the latter."""
    held = tokenize(given, "validation", 0, folder / "validation-00000.bin")
    made = tokenize(given, "train", 0, folder / "train-00000.bin")
    return held, made, read(folder / "train-00000.bin")


@settings(max_examples=25)
@given(st.lists(st.text() | st.just(f"x{END_OF_TEXT}y"), min_size=1, max_size=9, unique=True))
def test_any_documents_come_back_from_their_shard_and_forge_no_boundary(texts):
    with TemporaryDirectory() as folder:
        source = {"kind": "jsonl", "train": [lines(Path(folder, "a.jsonl"), texts)]}
        out = Path(folder, "train-00000.bin")
        made = tokenize(corpus(source | {"holdout": 1e-9}), "train", 0, out)
        tokens = read(out)
    pieces = np.split(tokens, np.flatnonzero(tokens == 256)[1:])
    assert [bytes(piece[1:].tolist()).decode() for piece in pieces] == texts
    assert made["documents"] == len(texts)
    assert made["bytes"] == sum(len(text.encode()) for text in texts)
    assert made["tokens"] == made["bytes"] + len(texts)
    assert made["sha256"] == hashlib.sha256(tokens.tobytes()).hexdigest()
    assert made["own_context"] == document_positions.own_context([len(p) for p in pieces])
    encoder = encoding(Tokenizer(**BYTES))
    assert [encoder.decode(encoder.encode_ordinary(text)) for text in texts] == texts


def test_the_standard_library_splits_by_content_and_says_which_python(tmp_path):
    given = corpus({"kind": "stdlib"})
    validation, train, _ = both(given, tmp_path)
    assert validation["documents"] > 5
    assert (train["tokens"] > 1_000_000, train["documents_dropped"]) == (True, 0)
    assert train["source"]["python"] == train["versions"]["python"]
    assert len(train["documents_sha256"]) == 64
    sides = [{*read_shard(given, s, 0).texts} for s in ("train", "validation")]
    assert not sides[0] & sides[1]


def test_sources_of_packages_come_once_each_and_documents_of_others_validate(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    for name, text in {"a": "x = 1", "b": "x = 1", "c": "y = 2", "d": "shared"}.items():
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text(text)
    (packages / "notes.txt").write_text("no source")
    validation = lines(tmp_path / "v.jsonl", ["shared", "prose"])
    monkeypatch.setattr("sys.path", [str(packages)])
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "nothing")})
    given = corpus({"kind": "stdlib", "packages": True, "validation": [validation]})
    _, made, _ = both(given, tmp_path)
    assert (made["documents"], made["documents_dropped"]) == (2, 1)
    assert [*read_shard(given, "validation", 0).texts] == ["shared", "prose"]
    assert corpus({"kind": "stdlib"}).source.identity() == {"kind": "stdlib"}
    # Text files are a document each, and one of both splits is validation.
    paths = {name: f"{packages}/{name}/__init__.py" for name in "abc"}
    files = {"train": [paths["b"], paths["c"]], "validation": [paths["a"]]}
    _, made, tokens = both(corpus({"kind": "text"} | files), tmp_path)
    assert (made["documents_dropped"], tokens.tolist()) == (1, [256, *b"y = 2"])


def test_training_has_no_copy_of_a_validation_document_in_other_case_or_white_space(tmp_path):
    held = ["def f():\n    return 1\n", "Straße", "kept apart"]
    near = ["def f():\n\treturn 1", "\nDEF F(): RETURN 1 ", "STRASSE", "kept  apart", held[0]]
    other = ["def f():\n    return 2\n", "kept part"]
    files = {"train": [lines(tmp_path / "t.jsonl", near + other)],
             "validation": [lines(tmp_path / "v.jsonl", held)]}  # fmt: skip
    _, made, tokens = both(corpus({"kind": "jsonl"} | files), tmp_path)
    assert (made["documents"], made["documents_dropped"]) == (2, 5)
    assert tokens.tolist() == [256, *other[0].encode(), 256, *other[1].encode()]


def test_documents_are_shuffled_within_a_file_and_held_out_of_every_file(tmp_path):
    texts = [f"chapter {i // 10}, page {i}" for i in range(400)]
    files = [lines(tmp_path / name, texts) for name in ("a.jsonl", "b.jsonl")]
    source, orders = {"kind": "jsonl", "train": files, "holdout": 0.1}, []
    for shuffle in ["none", "blocks", "documents"]:
        tokens = both(corpus(source | {"shuffle": shuffle}), tmp_path)[2] % 256  # end-of-text is 0
        orders.append(tokens.astype("u1").tobytes().decode().split("\0")[1:])
    plain, blocks, documents = orders
    assert plain == blocks == [text for text in texts if text in plain]
    assert sorted(documents) == sorted(plain) != documents
    chapters = [text.partition(",")[0] for text in documents]
    assert sum(a == b for a, b in pairwise(chapters)) < len(documents) / 4
    held = {*read_shard(corpus(source), "validation", 0).texts}
    assert 10 < len(held) < 100
    for shard in (0, 1):
        assert {*read_shard(corpus(source), "train", shard).texts} == {*texts} - held


KIND = """
from typing import Literal
from pydantic.dataclasses import dataclass
from lmscaling.data.dataset import Dataset, Documents
from lmscaling.types import STRICT

@dataclass(frozen=True, kw_only=True, config=STRICT)
class Words(Dataset):
    kind: Literal["words"]
    train: str
    validation: str
    def files(self, split):
        return [split]
    def read(self, split, shard):
        return Documents(iter(getattr(self, self.files(split)[shard]).split()))
"""

STEPS = """
import json, sys
from pathlib import Path
from lmscaling.config import grid
from lmscaling.data.tokenize import tokenize
from lmscaling.plan import text_needs

((folder, corpus),) = grid.expand(json.load(sys.stdin)).corpora.items()
for split in ("validation", "train"):
    tokenize(corpus, split, 0, Path("tokens", f"{split}-00000.bin"))
    assert not text_needs.missing(corpus.source, Path("tokens"), split, 1)
"""


def test_a_new_kind_of_dataset_is_one_file(values, package, tmp_path):
    package.write("data/kinds/words", KIND)
    row = {"kind": "words", "train": "train shared", "validation": "shared"}
    values |= {"datasets": {"tables": row}, "dataset": "tables"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], input=json.dumps(values), capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package.src)}, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert read(tmp_path / "tokens" / "train-00000.bin").tolist() == [256, *b"train"]
    row["kind"] = "two_table"
    with refused(UserError, "kind", "'two_table'"):
        grid.expand(values)


WITHOUT = """
import sys
sys.modules |= dict.fromkeys(("datasets", "pyarrow", "huggingface_hub"))
import lmscaling.train.run, lmscaling.evaluate.loss_by_position
from lmscaling.data.stream import Stream
from pathlib import Path
print(Stream(Path(sys.argv[1]), "train").slab(1, 64).shape)
"""


def test_shards_are_trained_on_where_neither_datasets_nor_pyarrow_is_installed(tokens):
    command = [sys.executable, "-c", WITHOUT, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "(2, 64)\n")


def test_text_without_the_package_datasets_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    given = corpus({"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", ["x"])]})
    with refused(UserError, "pip install datasets"):
        tokenize(given, "train", 0, tmp_path / "train-00000.bin")


def test_a_source_without_documents_is_refused_and_leaves_nothing(tmp_path):
    given = corpus({"kind": "jsonl", "train": [lines(tmp_path / "a.jsonl", [])], "holdout": 1e-9})
    with refused(UserError, "train"):
        tokenize(given, "train", 0, tmp_path / "out" / "train-00000.bin")
    assert not list((tmp_path / "out").rglob("*"))


def test_a_wrong_vocabulary_is_told_the_right_one_and_a_missing_one_where_to_put_it(monkeypatch):
    def unreachable(name):
        raise ConnectionError("no route to host")

    with refused(UserError, "vocab_size", 256, 257):
        checked(Tokenizer, {"encoding": "bytes", "vocab_size": 256}, "study file")
    monkeypatch.setattr("tiktoken.get_encoding", unreachable)
    with refused(UserError, "TIKTOKEN_CACHE_DIR"):
        encoding(Tokenizer(encoding="gpt2", vocab_size=50257))
