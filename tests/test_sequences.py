"""Datasets of sequences: what a sequence is, which of its targets count, and in which group."""

import gzip
import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from lmscaling.config.datasets import Corpus, DatasetRow, Tokenizer
from lmscaling.config.sequences import of_cell
from lmscaling.data import sources
from lmscaling.data.marks import Marks
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError

ROW = TypeAdapter(DatasetRow)
END = 256
"""End-of-text of the tokenizer ``bytes``."""

RECALL = {
    "kind": "recall", "pairs": [2, 4, 8], "queries": 12, "keys": 10, "values": 20,
    "sequences": 5000, "validation_sequences": 300,
}  # fmt: skip


def row(**values) -> Any:
    return ROW.validate_python(values)


def recall(**values):
    return row(**RECALL | values)


def made(source, split="train"):
    """All sequences of a split with end-of-text, ``[N, T]``."""
    stream = np.concatenate(list(source.tokens(split, 0, END).blocks))
    assert stream[-1] == END
    return stream[:-1].reshape(-1, source.length)


def idx(images):
    """An idx file of uint8 images ``[N, rows, columns]``."""
    sizes = b"".join(n.to_bytes(4, "big") for n in images.shape)
    return bytes([0, 0, 8, images.ndim]) + sizes + images.astype("u1").tobytes()


@pytest.fixture
def images(tmp_path):
    """Images of 3 x 4 pixels, and the file that has them."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 4))
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(idx(pixels))
    return pixels, path


def test_a_value_that_is_recalled_is_the_one_that_followed_its_key():
    source = recall()
    sequences = made(source)
    marks = source.marks(sequences)
    assert sequences.shape == (5000, 1 + 2 * (8 + 12)) == marks.shape
    for tokens, found in zip(sequences[:300].tolist(), marks[:300].tolist(), strict=True):
        assert tokens[0] == END
        known, asked, expected = {}, set(), [0] * len(tokens)
        for at in range(1, len(tokens), 2):
            key, value = tokens[at], tokens[at + 1]
            assert 0 <= key < 10 <= value < 30
            assert known.setdefault(key, value) == value
            if at >= 1 + 2 * len(known):  # a pair before has this key
                expected[at] = 1 if key in asked else 2
                asked.add(key)
        group = [2, 4, 8].index(len(known))
        assert asked == set(known)
        assert found == [mark and mark + group * (mark == 2) for mark in expected]


def test_every_round_of_queries_asks_for_each_key_once():
    for tokens in made(recall(), "validation").tolist():
        n = len(set(tokens[1::2]))
        asked = tokens[1 + 2 * n :: 2]
        for start in range(0, len(asked), n):
            part = asked[start : start + n]
            assert len(set(part)) == len(part)
            assert len(part) == n or start + n > len(asked)


def test_numbers_of_pairs_have_equal_shares_of_each_batch():
    sequences = made(recall(pairs=[1, 2, 4, 8]))
    pairs = [len(set(tokens[1::2])) for tokens in sequences.tolist()]
    batches = {tuple(sorted(Counter(pairs[i : i + 32]).items())) for i in range(0, 4992, 32)}
    assert batches == {((1, 8), (2, 8), (4, 8), (8, 8))}


@pytest.mark.parametrize(("power", "is_recent"), [(0.0, False), (0.99, True)])
def test_recent_pairs_are_asked_sooner_if_there_is_a_power(power, is_recent):
    sequences = made(recall(pairs=[8], power=power))
    ages = [8 - tokens[1:17:2].tolist().index(tokens[17]) for tokens in sequences]
    counts = np.bincount(ages, minlength=9)[1:] / len(ages)
    weights = np.arange(1.0, 9) ** -power
    assert counts == pytest.approx(weights / weights.sum(), abs=0.02)
    assert (counts[0] > 2 * counts[7]) == is_recent
    # Later rounds are in any order.
    later = [8 - tokens[1:17:2].tolist().index(tokens[33]) for tokens in sequences]
    assert np.bincount(later, minlength=9)[1:] / len(ages) == pytest.approx(1 / 8, abs=0.02)


def test_a_copy_counts_from_its_separator_on():
    source = row(kind="copy", copied=5, symbols=7, sequences=40, validation_sequences=3)
    sequences = made(source)
    assert sequences.shape == (40, 12)
    assert (sequences[:, 1:6] == sequences[:, 7:]).all()
    assert (sequences[:, 6] == 0).all()
    assert set(np.unique(sequences[:, 1:6])) == set(range(1, 8))
    assert source.marks(sequences).tolist() == [[0] * 6 + [2] * 5 + [0]] * 40
    assert source.groups == ("copy",)
    assert made(source, "validation").shape == (3, 12)


@pytest.mark.parametrize(
    ("source", "sha256"),
    [
        (recall(), "5090c75912d68241714511a7a748b295dca397c7df4e72bb67dc1c532e882be2"),
        (
            recall(power=0, keys=16),
            "c8c46ee3556e2b18a72cf0e42c65f128c8b171b029760ce6826b37bfbb4503e5",
        ),
        (
            row(kind="copy", copied=31),
            "e71046430e00df76160850282683ac2aaa5d34f807081b9be6d604d25d15e259",
        ),
    ],
    ids=["recall", "recall in any order", "copy"],
)
def test_sequences_are_the_same_bytes_in_every_version(source, sha256):
    assert hashlib.sha256(made(source).astype("<u2").tobytes()).hexdigest() == sha256


def test_training_and_validation_differ_and_a_row_is_the_same_each_time():
    source = recall(sequences=300)
    assert (made(source) == made(recall(sequences=300))).all()
    assert (made(source) != made(source, "validation")).any()
    assert (made(source)[:300] != made(recall(sequences=300, power=1))).any()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_images_of_a_file_are_read_row_by_row(images, tmp_path, end):
    pixels, path = images
    if end:
        path = path.with_name("images.gz")
        path.write_bytes(gzip.compress(idx(pixels)))
    source = row(kind="images", train=str(path), validation=str(path))
    sequences = made(source)
    assert (source.length, source.number("validation")) == (13, 50)
    assert (sequences[:, 0] == END).all()
    assert (sequences[:, 1:] == pixels.reshape(50, -1)).all()
    assert source.marks(sequences).tolist() == [[1] * 12 + [0]] * 50
    assert source.provenance("train", 0) == {"shape": [3, 4]}


def test_a_share_of_the_images_is_held_out_and_equal_ones_stay_together(images):
    pixels, path = images
    path.write_bytes(idx(np.concatenate((pixels, pixels[:20]))))
    source = row(kind="images", train=str(path), holdout=0.3)
    parts = [
        {tuple(one) for one in made(source, split).tolist()} for split in ("train", "validation")
    ]
    assert len(parts[0] | parts[1]) == 50
    assert not parts[0] & parts[1]
    assert 5 <= len(parts[1]) <= 25
    assert source.most_tokens("validation") == 13 * len(made(source, "validation"))


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    source = row(kind="images", train="digits")
    parts = [made(source, split) for split in ("train", "validation")]
    both = np.concatenate(parts)[:, 1:]
    expected = datasets.load_digits().data
    assert both.shape == expected.shape
    assert sorted(both.tolist()) == sorted(expected.astype(int).tolist())
    assert 0.15 < len(parts[1]) / 1797 < 0.25
    assert source.local() == []


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match="needs the package scikit-learn; pip install scikit-learn"):
        made(row(kind="images", train="digits"))


def damaged(case, pixels):
    """A file that is no idx file of images, and what is said of it."""
    whole = idx(pixels)
    packed = gzip.compress(whole)
    return {
        "no idx": (".txt", b"P5 28 28 255", "begins with 50 35 20 32; allowed: 00 00 08 03"),
        "empty": (".bin", b"", "begins with nothing; allowed: 00 00 08 03"),
        "labels": (".bin", idx(pixels[:, 0, 0]), "begins with 00 00 08 01; allowed: 00 00 08 03"),
        "short": (".bin", whole[:-1], "has 599 pixels, but its header states 50 images of 3 x 4"),
        "long": (".bin", whole + b"0", "has 601 pixels, but its header states 50 images of 3 x 4"),
        "no image": (".bin", idx(pixels[:0]), "has 0 images of 3 x 4 pixels; name one with images"),
        "not packed": (".gz", whole, "cannot be read: Not a gzipped file"),
        "truncated": (".gz", packed[:-20], "cannot be read: Compressed file ended before"),
        "damaged": (".gz", packed[:10] + b"\xff" * 50, "cannot be read: Error -3"),
    }[case]


@pytest.mark.parametrize(
    "case",
    [
        "no idx",
        "empty",
        "labels",
        "short",
        "long",
        "no image",
        "not packed",
        "truncated",
        "damaged",
    ],
)
def test_a_file_that_is_no_file_of_images_is_one_sentence(images, tmp_path, case):
    end, data, sentence = damaged(case, images[0])
    path = tmp_path / f"file{end}"
    path.write_bytes(data)
    with pytest.raises(UserError, match=sentence) as caught:
        made(row(kind="images", train=str(path)))
    assert str(path) in str(caught.value)


def test_files_of_two_sizes_are_refused(images, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(idx(images[0][:, :2]))
    source = row(kind="images", train=str(images[1]), validation=str(other))
    with pytest.raises(UserError, match=r"has images of 8 pixels, and .* of 12; name files of one"):
        made(source, "validation")


@pytest.mark.parametrize(
    "source",
    [
        RECALL,
        {"kind": "copy", "copied": 3},
        {"kind": "images", "train": "no-file", "validation": "neither"},
    ],
    ids=lambda source: source["kind"],
)
def test_a_cell_knows_its_sequences_by_their_identity_and_without_files(source):
    # A study whose files are gone is still trained, stored and reported.
    found = of_cell(row(**source).identity())
    assert found
    assert found == row(**source)
    assert len(found.files("train")) == 1
    assert found.blocks(1, 13) == 32 * 13
    assert row(**source, shuffle="none").blocks(2, 13) is None
    assert of_cell({"kind": "jsonl"}) is None
    x = np.full(26, 7)
    x[[0, 13]] = END
    assert Marks(found, 13).of(x).shape == (26,)


def test_targets_that_do_not_count_are_minus_one():
    marks = Marks(row(kind="copy", copied=2), 6)
    counted = marks.counted(np.array([[END, 3, 4, 0, 3, 4], [3, 4, 0, 3, 4, END]], dtype="uint16"))
    assert counted.tolist() == [[END, 3, 4, 0, 3, 4], [-1, -1, -1, 3, 4, -1]]


def test_a_shard_of_sequences_has_their_tokens_and_their_number(tmp_path):
    source = row(kind="copy", copied=3, validation_sequences=5)
    corpus = Corpus(
        dataset="c", source=source, tokenizer="bytes", encoding=Tokenizer(encoding="bytes")
    )
    sidecar = tokenize(corpus, "validation", 0, tmp_path / "validation-00000.bin")
    assert sidecar["tokens"] == source.most_tokens("validation") + 1 == 41
    shard = np.fromfile(tmp_path / "validation-00000.bin", "<u2")
    assert shard[-41:].tolist() == [*made(source, "validation").ravel(), END]
    with pytest.raises(UserError, match="kind copy has sequences of tokens and no text"):
        sources.read_shard(corpus, "train", 0)
