"""Encodings: the ids of tiktoken, whatever the text, and one checked file of each vocabulary."""

import base64
import hashlib
import shutil

import numpy as np
import pytest
import tiktoken
from conftest import DATA, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_data import corpus, read
from tiktoken_ext import openai_public

from lmscaling.data import vocabulary
from lmscaling.data.rows import Tokenizer
from lmscaling.data.tokenize import encode, joined, tokenize
from lmscaling.errors import UserError
from lmscaling.files import sha256_of

GPT2 = Tokenizer(encoding="gpt2", vocab_size=50257)
GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
ODD = [
    "", " ", "\n\n\n", "a<|endoftext|>b", "<|endoftext|>", "tab\tand 've", "it's I'LL we'd\t'm",
    "naïve café — “quotes” … 日本語のテキスト 🙂🏳️‍🌈", "\0\x01\x7f",
    "١٢٣ ①② ½ x² \u00a0\u2003\u2028\u2029end",
    "a" * 5000, " " * 3000 + "x", "0" * 999, "\u200b\ufeffzero width",
]  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not on this machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(DATA / "tiktoken_cache"))
        path = tmp_path_factory.mktemp("ranks") / "gpt2.tiktoken"
        vocabulary.fetch(path)
    return path


@pytest.fixture(scope="module")
def encoder(ranks):
    return vocabulary.encoding(GPT2, ranks)


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1))
@example(texts=ODD)
def test_documents_get_the_ids_of_tiktoken_for_ordinary_text(encoder, texts):
    expected = [encoder.encode_ordinary(text) for text in texts]
    assert [ids.tolist() for ids in encode(encoder, texts)] == expected


def test_half_a_surrogate_pair_becomes_the_replacement_character(ranks, encoder, tmp_path):
    path, out = tmp_path / "half.jsonl", tmp_path / "train-00000.bin"
    path.write_text('{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude42"}\n')
    source = {"kind": "jsonl", "train": [str(path)], "holdout": 1e-9}
    made = tokenize(corpus(source, "gpt2"), "train", 0, out, ranks)
    assert made["source"]["sha256"] == sha256_of(path)
    documents = np.split(read(out), np.flatnonzero(read(out) == 50256))[1:]
    assert [encoder.decode(d[1:].tolist()) for d in documents] == ["a\ufffd", "🙂"]


@settings(max_examples=20)
@given(documents=st.lists(st.lists(st.integers(0, 8), max_size=4), min_size=1))
def test_joined_puts_one_separator_before_each_document_even_an_empty_one(documents):
    made = joined([np.array(ids, np.uint32) for ids in documents], 9)
    assert made.dtype == np.uint16
    assert made.tolist() == [t for ids in documents for t in (9, *ids)]


def test_the_vocabulary_is_one_file_that_is_checked(ranks, encoder, tmp_path):
    assert sha256_of(ranks) == GPT2_SHA256
    assert isinstance(encoder, tiktoken.Encoding)
    damaged = tmp_path / "gpt2.tiktoken"
    damaged.write_bytes(ranks.read_bytes().replace(b"IQ== 0", b"IQ== 1"))
    for tokenizer, path, *values in (
        (GPT2, damaged, "SHA-256", sha256_of(damaged), GPT2_SHA256),
        (GPT2, tmp_path / "nothing", "nothing", "gpt2.tiktoken"),
    ):
        with refused(UserError, *values):
            vocabulary.encoding(tokenizer, path)
    with refused(UserError, "'gpt3.tiktoken'", "'gpt2.tiktoken'"):
        vocabulary.fetch(tmp_path / "gpt3.tiktoken")


def test_both_files_of_tiktokens_cache_give_the_same_vocabulary(ranks, tmp_path, monkeypatch):
    """``ranks`` is made of the file of ``r50k_base``; those of ``gpt2`` lie alone here."""
    monkeypatch.setattr("tiktoken.load.read_file", open)  # there is no network
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        vocabulary.fetch(tmp_path / "gpt2.tiktoken")
    r50k_base = "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4"
    shutil.copytree(DATA / "tiktoken_cache", tmp_path, dirs_exist_ok=True)
    (tmp_path / r50k_base).unlink()
    vocabulary.fetch(tmp_path / "gpt2.tiktoken")
    assert (tmp_path / "gpt2.tiktoken").read_bytes() == ranks.read_bytes()


def test_ids_that_would_forge_a_boundary_are_refused():
    with refused(UserError, "id 256", "below 256"):
        joined([np.array([1, 256], np.uint32)], 256)


@pytest.mark.parametrize("name", vocabulary.ENCODINGS)
def test_the_table_states_what_tiktoken_states(name):
    """Its functions have the SHA-256 and the pattern as constants."""
    if name == "bytes":
        ranks = "".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
        assert hashlib.sha256(ranks.encode()).hexdigest() == vocabulary.ENCODINGS[name].sha256
        return
    stated = {}

    def load(url, expected_hash):
        stated["sha256"] = expected_hash
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_public, "load_tiktoken_bpe", load)
        pattern = openai_public.r50k_base()["pat_str"]
    assert (stated["sha256"], pattern) == vocabulary.ENCODINGS[name]
