"""Tokens that llm.c and nanoGPT have made: none is lost, none is added, all documents are found."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data import corpus
from test_documents import plain, text

from lmscaling.data import document_positions, shards, sources, token_files
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.plan import text_needs

END = 256
LENGTHS = st.lists(st.integers(1, 25), min_size=1, max_size=12)


def llm_c(path, tokens, token: np.dtype = shards.TOKEN):
    with shards.writing(path, token) as writer:
        writer.write(np.asarray(tokens, dtype=token))
    return str(path)


def nanogpt(path, tokens):
    np.asarray(tokens, dtype="<u2").tofile(path)
    return str(path)


def imported(layout, files, folder):
    """The stream of a text of such files, after a look at all that is written beside it."""
    given = corpus({"kind": "bin", "layout": layout, "train": files, "validation": files[:1]})
    counts = {}
    for split in ("validation", "train"):
        counts[split] = n = len(given.source.files(split))
        for i in range(n):
            tokenize(given, split, i, folder / f"{split}-{i:05d}.bin")
        assert text_needs.missing(given.source, folder, split, n) == []
    own = shards.write_manifest(folder / "manifest.json", counts)
    stream = Stream(folder / "manifest.json", "train")
    tokens = stream.read(0, stream.tokens)
    positions = plain(tokens)
    assert own["train"] == np.bincount(document_positions.bins(np.array(positions))).tolist()
    assert stream.positions(0, tokens).tolist() == positions
    return tokens.tolist()


@given(LENGTHS, st.lists(st.integers(1, 300), max_size=3))
@settings(max_examples=25)
def test_files_of_llm_c_are_copied_byte_for_byte(lengths, cuts):
    """Files are cut anywhere: a document ends in a later one."""
    tokens = text(lengths)
    places = sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    with TemporaryDirectory() as name:
        folder = Path(name)
        parts = [tokens[a:b] for a, b in pairwise(places)]
        files = [llm_c(folder / f"{i}.bin", part) for i, part in enumerate(parts)]
        assert imported("llm.c", files, folder / "made") == tokens.tolist()
        for i, file in enumerate(files):
            made = folder / "made" / f"train-{i:05d}.bin"
            assert made.read_bytes() == Path(file).read_bytes()


@given(LENGTHS, st.integers(1, 60))
@settings(max_examples=25)
def test_files_of_nanogpt_have_their_end_of_text_first_and_no_other_change(lengths, n):
    tokens = text(lengths)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = nanogpt(folder / "t.bin", np.roll(tokens, -1))
        assert imported("nanogpt", [file], folder / "made") == tokens.tolist()
        positions = plain(tokens)
        for start in range(0, len(tokens), n):  # in shards of n tokens
            part = token_files.of_nanogpt(Path(file), start, n, END)
            found = np.concatenate(list(part.blocks)).tolist()
            assert found == tokens[start : start + n].tolist()
            assert tokens[start] == END or part.before == positions[start]


def test_documents_longer_than_what_is_read_at_once_and_wide_tokens_are_found(tmp_path):
    tokens, stop = text([9, 2**23 + 5, 7]), 2**23 + 9
    after = Path(nanogpt(tmp_path / "t.bin", np.roll(tokens, -1)))
    files = [llm_c(tmp_path / f"{i}.bin", part) for i, part in enumerate(np.split(tokens, [stop]))]
    for part in (
        token_files.of_nanogpt(after, stop, 2**23, END),
        token_files.of_llm_c([*map(Path, files)], END),
    ):
        assert part.before == 2**23
        assert np.concatenate(list(part.blocks)).tolist() == tokens[stop:].tolist()
    whole = token_files.of_nanogpt(after, 0, 2**27, END)
    assert np.array_equal(np.concatenate(list(whole.blocks)), tokens)
    wide = [128_000, 7, 127_999, 128_000, 65_536]  # of large vocabularies
    file = Path(llm_c(tmp_path / "a.bin", wide, shards.WIDE))
    blocks = token_files.of_llm_c([file], 128_000).blocks
    assert np.concatenate(list(blocks)).tolist() == wide


def wrong_count(path):
    llm_c(path, [END, 1, 2])
    with path.open("ab") as file:
        file.write(b"\0\0")


REFUSED = {
    "header": (
        "llm.c",
        lambda p: nanogpt(p, range(600)),
        ["a.bin", "65536, 196610", "20240520, 1"],
    ),
    "size": ("llm.c", wrong_count, ["a.bin", 1032, "3 tokens"]),
    "inside": ("llm.c", lambda p: llm_c(p, [1, END]), ["a.bin", "token 256"]),
    "token": ("llm.c", lambda p: llm_c(p, [END, 257]), ["token 257", 256]),
    "odd": ("nanogpt", lambda p: p.write_bytes(b"\0\1\0"), ["a.bin", "3 bytes"]),
    "no end": ("nanogpt", lambda p: nanogpt(p, [END, 1]), ["a.bin", "token 1;", 256]),
    "token of nanogpt": ("nanogpt", lambda p: nanogpt(p, [300, END]), ["token 300", 256]),
    "missing": ("nanogpt", lambda p: None, ["a.bin"]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_file_that_is_no_such_file_is_refused_and_is_not_deleted(tmp_path, reason):
    layout, write, values = REFUSED[reason]
    write(tmp_path / "a.bin")
    files = [f"{tmp_path}/a.bin"]
    given = corpus({"kind": "bin", "layout": layout, "train": files, "validation": files})
    with refused(UserError, *values) as caught:
        tokenize(given, "train", 0, tmp_path / "made" / "train-00000.bin")
    assert "delete" not in str(caught.value)
    assert not list((tmp_path / "made").glob("*"))


def test_what_needs_text_is_refused():
    row = {"kind": "bin", "layout": "llm.c", "train": ["a.bin"], "validation": ["v.bin"]}
    for values in ({"validation": []}, {"decontaminate": 13}, {"shuffle": "documents"}):
        with refused(UserError, *values):
            corpus(row | values)


# Folders of long documents: what a shard is made from, and a whole book
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


def test_a_shard_is_made_from_so_many_files_by_name_and_more_change_the_last_alone(folder):
    with refused(UserError, "7 files", "shard 2", "7 to 9"):
        names(row(folder, n_files=9), "train", 2)
    for values in ({"pattern": "*.md"}, {"train": f"{folder}/no"}):
        with refused(UserError, *values.values()):
            names(row(folder, **values), "train", 0)
    given = row(folder)
    assert [names(given, "train", i) for i in range(3)] == ["abc", "def", "g"]
    assert names(given, "validation", 0) == "yz"
    assert [len(given.source.files(split)) for split in ("train", "validation")] == [3, 1]
    made = tokenize(given, "train", 1, folder / "out" / "train-00001.bin")
    assert (made["source"]["first"], made["source"]["last"]) == ("d.txt", "f.txt")
    assert made["source"]["files"].startswith(f"{folder}/train/*.txt, 4")
    assert made["documents"] == 3
    (folder / "train" / "h.txt").write_text("text of h")
    long = row(folder, n_files=8)
    assert [names(each, "train", 2) for each in (given, long)] == ["g", "gh"]
    # What the jobs of shards are given: full ones stay.
    assert [given.to_json(i) == long.to_json(i) for i in (1, 2, 3)] == [True, True, False]
    assert given.source.identity() == long.source.identity()


def test_a_folder_without_validation_holds_out_documents_of_its_first_shard(folder):
    for i in range(200):
        (folder / "train" / f"{i:03d}.txt").write_text(f"text {i}")
    given = row(folder, validation="", holdout=0.2, n_files=207, files_per_shard=150)
    held = [*sources.read_shard(given, "validation", 0).texts]
    first, second = ([*sources.read_shard(given, "train", i).texts] for i in range(2))
    assert held
    assert len({*held, *first}) == len(held) + len(first) == 150
    assert not {*second} & {*held, *first}


def test_a_book_of_357388_tokens_is_one_document_of_the_stream(real_data, tmp_path, monkeypatch):
    """Two books laid out as PG-19 is."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    with gzip.open(real_data / "long" / "pg19_two_books.jsonl.gz") as file:
        books = [json.loads(line)["text"] for line in file]
    for split, parts in {"train": books, "validation": [books[1][:10_000]]}.items():
        (tmp_path / split).mkdir()
        for i, part in enumerate(parts):
            (tmp_path / split / f"{10_000 + i}.txt").write_bytes(part.encode())
    source = {"kind": "folder", "train": f"{tmp_path}/train", "n_files": 2, "files_per_shard": 1}
    given = corpus(source | {"validation": f"{tmp_path}/validation"}, "gpt2")
    out = tmp_path / "tokens"
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
