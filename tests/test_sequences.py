"""Datasets of sequences: what a sequence is, which of its targets count, and in which group."""

import gzip
import hashlib
import sys
from typing import Any

import numpy as np
import pytest
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lmscaling.data.documents import read_shard
from lmscaling.data.marks import Marks
from lmscaling.data.rows import Corpus, DatasetRow, Tokenizer, of_cell
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError

ROW = TypeAdapter(DatasetRow)
END = 256

RECALL: dict[str, Any] = {
    "kind": "recall", "pairs": [2, 4, 8], "queries": 12, "keys": 10, "values": 20,
    "sequences": 5000, "validation_sequences": 300,
}  # fmt: skip
COPY: dict[str, Any] = {"kind": "copy", "copied": 3}
IMAGES = {"kind": "images", "train": "no-file", "validation": "neither"}


def row(**values) -> Any:
    return ROW.validate_python(values)


def recall(**values):
    return row(**RECALL | values)


def made(source, split="train"):
    """All sequences of a split with end-of-text, ``[N, T]``."""
    stream = np.concatenate(list(source.tokens(split, END)))
    assert stream[-1] == END
    sequences = stream[:-1].reshape(-1, source.length)
    assert (sequences[:, 0] == END).all()
    assert source.most_tokens(split) == sequences.size
    return sequences


def idx(images):
    """An idx file of uint8 images ``[N, rows, columns]``."""
    sizes = b"".join(n.to_bytes(4, "big") for n in images.shape)
    return bytes([0, 0, 8, images.ndim]) + sizes + images.astype("u1").tobytes()


@pytest.fixture
def images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 4))
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(idx(pixels))
    return pixels, path


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), st.integers(0, 4),
       st.integers(0, 3), st.integers(1, 20), st.sampled_from([0, 0.99, 5]))  # fmt: skip
@settings(max_examples=20)
def test_a_value_that_is_recalled_is_the_one_that_followed_its_key(pairs, more, spare, n, power):
    keys = max(2, max(pairs) + spare)
    sizes = {"keys": keys, "values": 20, "queries": max(pairs) + more}
    source = recall(pairs=pairs, power=power, sequences=n, **sizes)
    sequences = made(source)
    marks = source.marks(sequences)
    assert sequences.shape == (n, 1 + 2 * (2 * max(pairs) + more)) == marks.shape
    assert source.groups == tuple(map(str, sorted(pairs)))
    for i, (tokens, found) in enumerate(zip(sequences.tolist(), marks.tolist(), strict=True)):
        known, asked, expected = {}, [], [0] * len(tokens)
        for at in range(1, len(tokens), 2):
            key, value = tokens[at], tokens[at + 1]
            assert 0 <= key < keys <= value < keys + 20
            assert known.setdefault(key, value) == value
            if at >= 1 + 2 * len(known):  # a pair before has this key
                expected[at] = 1 if key in asked else 2
                asked.append(key)
        own = len(known)
        assert own == sorted(pairs)[i % len(pairs)]  # equal shares of each batch
        for start in range(0, len(asked), own):  # every round asks for each key once
            part = asked[start : start + own]
            assert len({*part}) == len(part)
        group = sorted(pairs).index(own)
        assert found == [mark + group * (mark == 2) for mark in expected]


@pytest.mark.parametrize("power", [0.0, 0.99])
def test_recent_pairs_are_asked_sooner_if_there_is_a_power(power):
    sequences, weights = made(recall(pairs=[8], power=power)), np.arange(1.0, 9) ** -power
    # Later rounds are in any order.
    for place, expected in ((17, weights / weights.sum()), (33, [1 / 8] * 8)):
        # How often the key at a place is the last one, the one before, and so on.
        ages = [8 - tokens[1:17:2].tolist().index(tokens[place]) for tokens in sequences]
        assert np.bincount(ages, minlength=9)[1:] / len(ages) == pytest.approx(expected, abs=0.02)


@given(st.integers(1, 30), st.integers(2, 255), st.integers(1, 9))
@settings(max_examples=20)
def test_a_copy_counts_from_its_separator_on(n, symbols, number):
    source = row(kind="copy", copied=n, symbols=symbols, sequences=number, validation_sequences=3)
    sequences = made(source)
    assert sequences.shape == (number, 2 * n + 2)
    assert (sequences[:, 1 : n + 1] == sequences[:, n + 2 :]).all()
    assert (sequences[:, n + 1] == 0).all()
    assert {*np.unique(sequences[:, 1 : n + 1])} <= {*range(1, symbols + 1)}
    assert source.marks(sequences).tolist() == [[0] * (n + 1) + [2] * n + [0]] * number
    assert source.groups == ("copy",)
    assert made(source, "validation").shape == (3, 2 * n + 2)


@pytest.mark.parametrize(("source", "sha256"), [
    (recall(), "5090c75912d68241714511a7a748b295"),
    (recall(power=0, keys=16), "c8c46ee3556e2b18a72cf0e42c65f128"),
    (row(kind="copy", copied=31), "e71046430e00df76160850282683ac2a"),
], ids=["recall", "recall in any order", "copy"])  # fmt: skip
def test_sequences_are_the_same_bytes_in_every_version(source, sha256):
    """A run's hash holds the row and not the tokens, so other tokens would be other results."""
    found = made(source)
    assert hashlib.sha256(found.astype("<u2").tobytes()).hexdigest()[:32] == sha256
    n = source.validation_sequences
    assert (found[:n] != made(source, "validation")[:n]).any()
    assert (made(source) == found).all()


def test_images_of_a_file_are_read_row_by_row(images):
    pixels, path = images
    packed, other = path.with_name("images.gz"), path.with_name("other")
    packed.write_bytes(gzip.compress(idx(pixels)))
    other.write_bytes(idx(pixels[:, :2]))
    for each in (path, packed):
        source = row(kind="images", train=str(each), validation=str(each))
        sequences = made(source)
        assert (source.length, source.number("validation")) == (13, 50)
        assert (sequences[:, 1:] == pixels.reshape(50, -1)).all()
        assert source.marks(sequences).tolist() == [[1] * 12 + [0]] * 50
        assert source.provenance("train", 0) == {"shape": [3, 4]}
    with refused(UserError, other, 8, 12):
        made(row(kind="images", train=str(path), validation=str(other)), "validation")
    # A share of them is held out, and equal ones stay together.
    path.write_bytes(idx(np.concatenate((pixels, pixels[:20]))))
    source = row(kind="images", train=str(path), holdout=0.3)
    parts = [{*map(tuple, made(source, split).tolist())} for split in ("train", "validation")]
    assert len(parts[0] | parts[1]) == 50
    assert not parts[0] & parts[1]
    assert 5 <= len(parts[1]) <= 25


def test_colours_of_a_pixel_follow_each_other_in_cifar_10_and_in_idx_files(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3))
    planes = pixels.transpose(0, 3, 1, 2).reshape(4, -1)
    labelled = np.concatenate((np.arange(4)[:, None], planes), axis=1)
    files = {"data_batch_1.bin": labelled.astype("u1").tobytes(), "idx4": idx(pixels)}
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        source = row(kind="images", train=str(path), validation=str(path))
        assert (source.length, source.number("validation")) == (3073, 4)
        assert (made(source)[:, 1:] == pixels.reshape(4, -1)).all()
        assert source.provenance("train", 0) == {"shape": [32, 32, 3]}


def test_digits_are_those_of_scikit_learn(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    source = row(kind="images", train="digits")
    train, validation = (made(source, split)[:, 1:].tolist() for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(datasets.load_digits().data.astype(int).tolist())
    assert 0.17 < len(validation) / 1797 < 0.23
    assert source.local() == []
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused(UserError, "scikit-learn"):
        made(source)


DAMAGED = {
    "no idx": (".txt", lambda _: b"P5 28 28 255", "50 35 20 32"),
    "empty": (".bin", lambda _: b"", "00 00 08 03"),
    "labels": (".bin", lambda x: idx(x[:, 0, 0]), "00 00 08 01"),
    "short": (".bin", lambda x: idx(x)[:-1], "599"),
    "long": (".bin", lambda x: idx(x) + b"0", "601"),
    "no image": (".bin", lambda x: idx(x[:0]), "no images"),
    "part of CIFAR-10": (".bin", lambda _: b"1" * 3072, "CIFAR-10"),
    "not packed": (".gz", idx, "gzip"),
    "truncated": (".gz", lambda x: gzip.compress(idx(x))[:-20], "ended"),
    "damaged": (".gz", lambda x: gzip.compress(idx(x))[:10] + b"\xff" * 50, "-3"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_is_no_file_of_images_is_refused(images, tmp_path, case):
    end, data, value = DAMAGED[case]
    path = tmp_path / f"file{end}"
    path.write_bytes(data(images[0]))
    # zlib's own words differ between versions
    with pytest.raises(UserError) if end == ".gz" else refused(UserError) as caught:
        made(row(kind="images", train=str(path)))
    assert all(part in str(caught.value) for part in (str(path), value))


@pytest.mark.parametrize(("values", "said"), [
    (RECALL | {"keys": 200, "values": 100}, "values: 56"),
    (RECALL | {"pairs": [16], "queries": 16}, "pairs 16"),
    (RECALL | {"queries": 2}, "queries: 8"),
    (COPY | {"block_tokens": 64}, "block_tokens 64"),
    (COPY | {"shuffle": "documents"}, "shuffle documents"),
])  # fmt: skip
def test_a_row_that_cannot_be_is_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        row(**values)


@pytest.mark.parametrize("source", [RECALL, COPY, IMAGES], ids=lambda source: source["kind"])
def test_a_cell_knows_its_sequences_by_their_identity_and_without_files(source):
    # A study whose files are gone is still trained, stored and reported.
    found = of_cell(row(**source).identity())
    assert found
    assert found == row(**source)
    assert len(found.files("train")) == 1
    assert found.blocks(1, 13) == 32 * 13
    assert row(**source, shuffle="none").blocks(2, 13) is None
    x = np.full(26, 7)
    x[[0, 13]] = END
    assert Marks(found, 13).of(x).shape == (26,)
    assert [of_cell(text) for text in ({"kind": "jsonl", "train": ["a"]}, {})] == [None] * 2


def test_a_shard_of_sequences_has_their_tokens_and_no_other_targets_count(tmp_path):
    source, encoding = row(**COPY, validation_sequences=5), Tokenizer(encoding="bytes")
    corpus = Corpus(dataset="c", source=source, tokenizer="bytes", encoding=encoding)
    sidecar = tokenize(corpus, "validation", 0, tmp_path / "validation-00000.bin")
    assert sidecar["tokens"] == source.most_tokens("validation") + 1 == 41
    shard = np.fromfile(tmp_path / "validation-00000.bin", "<u2")
    assert shard[-41:].tolist() == [*made(source, "validation").ravel(), END]
    with refused(UserError, "copy"):
        read_shard(corpus, "train", 0)
    marks = Marks(row(kind="copy", copied=2), 6)
    counted = marks.counted(np.array([[END, 3, 4, 0, 3, 4], [3, 4, 0, 3, 4, END]], dtype="uint16"))
    assert counted.tolist() == [[END, 3, 4, 0, 3, 4], [-1, -1, -1, 3, 4, -1]]
