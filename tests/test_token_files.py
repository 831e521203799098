"""Tokens that llm.c and nanoGPT have made: none is lost, none is added, all documents are found."""

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

from lmscaling.data import document_positions, shards, token_files
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


def test_documents_that_are_longer_than_what_is_read_at_once_are_found(tmp_path):
    tokens = text([9, 2**23 + 5, 7])
    stop = 2**23 + 9
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
    row = {"kind": "bin", "layout": layout, "train": [f"{tmp_path}/a.bin"]}
    given = corpus(row | {"validation": row["train"]})
    with refused(UserError, *values) as caught:
        tokenize(given, "train", 0, tmp_path / "made" / "train-00000.bin")
    assert "delete" not in str(caught.value)
    assert not list((tmp_path / "made").glob("*"))


@pytest.mark.parametrize(
    "values", [{"validation": []}, {"decontaminate": 13}, {"shuffle": "documents"}]
)
def test_what_needs_text_is_refused(values):
    row = {"kind": "bin", "layout": "llm.c", "train": ["a.bin"], "validation": ["v.bin"]}
    with refused(UserError, *values):
        corpus(row | values)


def test_files_of_llm_c_for_large_vocabularies_have_wide_tokens(tmp_path):
    wide = [128_000, 7, 127_999, 128_000, 65_536]
    file = llm_c(tmp_path / "a.bin", wide, shards.WIDE)
    tokens = token_files.of_llm_c([Path(file)], 128_000)
    assert np.concatenate(list(tokens.blocks)).tolist() == wide
