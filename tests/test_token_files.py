"""Tokens that llm.c and nanoGPT have made: none is lost, none is added, all documents are found."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from test_data import corpus, read

from lmscaling.data import document_positions, shards, token_files
from lmscaling.data.kinds import bin as kind
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.plan import text_needs

END = 256


def written(lengths, seed=0):
    """Documents of so many tokens, end-of-text included."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, END, n - 1).astype(np.uint16) for n in lengths]


def llm_c(path, tokens):
    with shards.writing(path) as writer:
        writer.write(np.asarray(tokens, dtype=np.uint16))
    return str(path)


def nanogpt(path, tokens):
    np.asarray(tokens, dtype="<u2").tofile(path)
    return str(path)


def stream(documents):
    """The documents with end-of-text before each."""
    return np.concatenate([np.concatenate([[END], d]) for d in documents]).astype(np.uint16)


def imported(layout, train, validation, folder):
    """All shards of a text, and the row that made them."""
    row = {"kind": "bin", "layout": layout, "train": train, "validation": validation}
    given = corpus(row)
    counts = {}
    for split in ("validation", "train"):
        counts[split] = len(given.source.files(split))
        for i in range(counts[split]):
            tokenize(given, split, i, folder / f"{split}-{i:05d}.bin")
    own = shards.write_manifest(folder / "manifest.json", counts)
    return given.source, own


LENGTHS = [1, 2, 700, 1, 1, 40, 3000, 5]


@pytest.fixture
def small(monkeypatch):
    """Blocks and shards that are shorter than a document."""
    monkeypatch.setattr(token_files, "BLOCK", 64)
    monkeypatch.setattr(kind, "SHARD_TOKENS", 500)


def check(folder, own, documents):
    tokens = stream(documents)
    made = Stream(folder / "manifest.json", "train")
    assert np.array_equal(made.read(0, made.tokens), tokens)
    found = document_positions.positions(tokens, END)
    assert own["train"] == np.bincount(document_positions.bins(found)).tolist()
    assert np.array_equal(made.positions(777, tokens[777:900]), found[777:900])


def test_files_of_llm_c_are_copied_byte_for_byte(tmp_path, small):
    documents = written(LENGTHS)
    tokens = stream(documents)
    cuts = [
        0,
        3,
        900,
        1000,
        len(tokens),
    ]  # a document begins in the second file, and ends in the last
    parts = [tokens[a:b] for a, b in pairwise(cuts)]
    files = [llm_c(tmp_path / f"{i}.bin", part) for i, part in enumerate(parts)]
    row, own = imported("llm.c", files, files[:1], tmp_path / "made")
    for i, file in enumerate(files):
        assert (tmp_path / "made" / f"train-{i:05d}.bin").read_bytes() == Path(file).read_bytes()
    assert text_needs.missing(row, tmp_path / "made", "train", len(files)) == []
    check(tmp_path / "made", own, documents)


def test_files_of_nanogpt_have_their_end_of_text_first_and_no_other_change(tmp_path, small):
    documents = written(LENGTHS)
    after = np.concatenate([np.concatenate([d, [END]]) for d in documents])
    file = nanogpt(tmp_path / "train.bin", after)
    row, own = imported("nanogpt", [file], [file], tmp_path / "made")
    n = len(row.files("train"))
    assert n == -(-len(after) // 500)
    assert text_needs.missing(row, tmp_path / "made", "train", n) == []
    joined = np.concatenate([read(tmp_path / "made" / f"train-{i:05d}.bin") for i in range(n)])
    assert np.array_equal(joined, np.roll(after, 1))
    check(tmp_path / "made", own, documents)


@pytest.mark.parametrize("seed", range(20))
def test_any_lengths_of_documents_and_shards_are_converted_exactly(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(token_files, "BLOCK", int(rng.integers(1, 20)))
    monkeypatch.setattr(kind, "SHARD_TOKENS", int(rng.integers(1, 30)))
    documents = written(rng.integers(1, 25, 12), seed)
    tokens = stream(documents)
    file = nanogpt(tmp_path / "t.bin", np.roll(tokens, -1))
    _, own = imported("nanogpt", [file], [file], tmp_path / "made")
    made = Stream(tmp_path / "made" / "manifest.json", "train")
    assert np.array_equal(made.read(0, made.tokens), tokens)
    found = document_positions.positions(tokens, END)
    assert own["train"] == np.bincount(document_positions.bins(found)).tolist()


def wrong_magic(path):
    nanogpt(path, range(600))


def wrong_count(path):
    llm_c(path, [END, 1, 2])
    with path.open("ab") as file:
        file.write(b"\0\0")


REFUSED = {
    "other header": ("llm.c", wrong_magic, r"begins with 65536, 196610; allowed: 20240520, 1"),
    "other size": ("llm.c", wrong_count, r"has 1032 bytes, but its header states 3 tokens"),
    "inside": ("llm.c", lambda p: llm_c(p, [1, END]), r"begins inside a document; .*token 256"),
    "token": ("llm.c", lambda p: llm_c(p, [END, 257]), r"has token 257; allowed: up to 256"),
    "odd": ("nanogpt", lambda p: p.write_bytes(b"\0\1\0"), r"has 3 bytes; allowed: two for each"),
    "no end": ("nanogpt", lambda p: nanogpt(p, [END, 1]), r"ends with token 1; .*after each doc"),
    "token ": ("nanogpt", lambda p: nanogpt(p, [300, END]), r"has token 300; allowed: up to 256"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_file_that_is_no_such_file_is_one_sentence_and_is_not_deleted(tmp_path, reason):
    layout, write, sentence = REFUSED[reason]
    write(tmp_path / "a.bin")
    row = {"kind": "bin", "layout": layout, "train": [f"{tmp_path}/*.bin"]}
    given = corpus(row | {"validation": [f"{tmp_path}/a.bin"]})
    with pytest.raises(UserError, match=sentence) as raised:
        tokenize(given, "train", 0, tmp_path / "made" / "train-00000.bin")
    assert "delete" not in str(raised.value)
    assert not list((tmp_path / "made").glob("*"))


ROW = {"kind": "bin", "layout": "llm.c", "train": ["a.bin"], "validation": ["v.bin"]}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"validation": []}, "validation is missing"),
        ({"decontaminate": 13}, "decontaminate needs text"),
        ({"shuffle": "documents"}, "shuffle needs text"),
    ],
)
def test_what_needs_text_is_refused(values, sentence):
    with pytest.raises(UserError, match=sentence):
        corpus(ROW | values)


def test_a_file_that_does_not_exist_is_named():
    with pytest.raises(UserError, match=r"dataset file a.bin does not exist"):
        corpus(ROW | {"layout": "nanogpt"}).source.files("train")
    with pytest.raises(UserError, match=r"dataset file a.bin does not exist"):
        corpus(ROW).source.tokens("train", 0, END)


def test_files_of_llm_c_for_large_vocabularies_have_wide_tokens(tmp_path):
    end, wide = 128_000, np.array([128_000, 7, 127_999, 128_000, 65_536], dtype=np.uint32)
    with shards.writing(tmp_path / "a.bin", shards.WIDE) as writer:
        writer.write(wide)
    tokens = token_files.of_llm_c([tmp_path / "a.bin"], end)
    assert np.concatenate(list(tokens.blocks)).tolist() == wide.tolist()
