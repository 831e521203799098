"""A tokenizer.json: the ids are those of ordinary text, and a file that changes text is refused."""

import gzip
import json
import re

import numpy as np
import pytest
import tokenizer_files
import tokenizing
from conftest import refused
from test_backends import ODD
from test_data import corpus, lines
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from lmscaling.config.datasets import Tokenizer as Row
from lmscaling.config.types import Split
from lmscaling.config.validation import checked
from lmscaling.data import encoders, shards, tokenizer_file, vocabulary
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError


def made(source, encoding, out, split: Split = "train", ranks=None):
    given = corpus(source, values=encoding)
    return tokenize(given, split, 0, out, ranks=ranks)


def ids(tmp_path, tokenizer, text, n_vocab=258):
    """Ids of one text by a tokenizer, as they are in a shard."""
    source = {"kind": "jsonl", "train": [lines(tmp_path / "t.jsonl", [text])], "holdout": 1e-9}
    row = tokenizer_files.row(tokenizer, tmp_path / "t.json", n_vocab)
    made(source, row, tmp_path / "train-00000.bin")
    return read(tmp_path / "train-00000.bin").tolist()


def read(path):
    return np.fromfile(path, shards.token_type(path), offset=shards.HEADER_BYTES)


def test_gpt2_as_a_file_gives_the_shard_that_tiktoken_gives(real_data, ranks, tmp_path):
    file = tokenizer_files.row(tokenizer_files.gpt2(ranks), tmp_path / "gpt2.json", 50257)
    with gzip.open(real_data / "c4" / "c4-validation.sample.200.json.gz") as packed:
        texts = [json.loads(line)["text"] for line in packed]
    path = lines(tmp_path / "a.jsonl", [*ODD, *texts])
    source = {"kind": "jsonl", "train": [path], "holdout": 1e-9}
    ours = made(source, file, tmp_path / "file" / "train-00000.bin")
    theirs = made(source, {"encoding": "gpt2"}, tmp_path / "gpt2" / "train-00000.bin", ranks=ranks)
    assert ours["end_of_text"] == theirs["end_of_text"] == 50256
    assert ours["sha256"] == theirs["sha256"]
    assert ours["bytes"] == sum(len(text.encode()) for text in [*ODD, *texts])
    assert ours["backend"] == "tokenizers"
    assert [*ours["versions"]] == ["lmscaling", "python", "tokenizers"]
    assert ours["ranks_sha256"] == file["sha256"]


def test_special_tokens_in_a_text_are_text_and_other_added_tokens_are_tokens(tmp_path):
    tokenizer = tokenizer_files.small()
    tokenizer.add_special_tokens(["<|endoftext|>", "<s>"])
    tokenizer.add_tokens(["    "])
    text = "a<|endoftext|><s>b    c"
    found = ids(tmp_path, tokenizer, text, 261)
    assert found == [260, *b"a<|endoftext|><s>b", 259, ord("c")]


def test_a_file_whose_text_can_reach_end_of_text_is_refused(tmp_path):
    """A special token in the vocabulary of the model, which splits and merges nothing."""
    words = json.loads(tokenizer_files.small(ignore_merges=True).to_str())
    words["pre_tokenizer"]["use_regex"] = False
    words["model"]["vocab"]["<end>"] = 257
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    words["added_tokens"] = [{"id": 257, "content": "<end>", "special": True, **special}]
    with refused(UserError, "id 257"):
        ids(tmp_path, words, "<end>")
    assert not (tmp_path / "train-00000.bin").exists()


def test_nothing_is_added_to_a_text_and_nothing_is_cut_off(tmp_path):
    tokenizer = tokenizer_files.small()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 257)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    assert ids(tmp_path, tokenizer, "the end") == [257, 256, *b"e end"]


def test_text_is_normalized_to_nfc_and_its_own_bytes_are_counted(tmp_path):
    tokenizer = tokenizer_files.small()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    assert ids(tmp_path, tokenizer, "e\u0301") == [257, *"é".encode()]
    assert json.loads((tmp_path / "train-00000.json").read_text())["bytes"] == 3


ISOLATED = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|[^\s\p{N}]+|\s+"), "isolated")


@pytest.mark.parametrize("first", [pre_tokenizers.Digits(individual_digits=True), ISOLATED])
@pytest.mark.parametrize("ignores", [False, True])
def test_text_may_be_split_in_any_way_that_keeps_it(first, ignores, tmp_path):
    tokenizer = tokenizer_files.small(ignore_merges=ignores)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=first != ISOLATED)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    text = "the 1234 <|endoftext|> th\n"
    found = ids(tmp_path, tokenizer, text)
    assert found[:2] == [257, 256]
    assert tokenizer.decode(found[1:]) == text


def changed(**values):
    return json.loads(tokenizer_files.small().to_str()) | values


def with_model(**values):
    return changed(model=changed()["model"] | values)


def stripping():
    tokenizer = tokenizer_files.small()
    tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    return tokenizer


def deleting():
    tokenizer = tokenizer_files.small()
    parts = [pre_tokenizers.Split("b", "removed"), tokenizer.pre_tokenizer]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
UNFIT = {
    "a unigram model": (lambda: Tokenizer(models.Unigram([("a", -1.0)])), ["Unigram"]),
    "a BPE of characters": (lambda: Tokenizer(models.BPE({"a": 0, "b": 1}, [])), ["BPE"]),
    "small letters": (lambda: changed(normalizer={"type": "Lowercase"}), ["Lowercase"]),
    "random merges": (lambda: with_model(dropout=0.1), [0.1]),
    "few bytes": (lambda: with_model(vocab={"a": 0}, merges=[]), [255]),
    "a space before the text": (
        lambda: changed(pre_tokenizer=SPACED), ["add_prefix_space"],
    ),
    "an added token that strips": (stripping, ['"a <x> b"', '"a<x>']),
    "deleted characters": (deleting, ["deletes"]),
    "another file": (lambda: {"a": 1}, []),
    "no JSON": (lambda: "{", ["JSON"]),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_a_file_that_does_not_keep_every_text_is_refused(what, tmp_path):
    make, values = UNFIT[what]
    with refused(UserError, "t.json", *values):
        ids(tmp_path, make(), "text")
    assert not (tmp_path / "train-00000.bin").exists()


def test_a_file_that_is_not_that_of_the_row_is_refused_and_a_copy_says_the_row(tmp_path):
    file, new = tmp_path / "a.json", tmp_path / "made" / "b.json"
    row = tokenizer_files.row(tokenizer_files.small(), file)
    copied = tokenizer_file.copy(file, new)
    assert (copied.sha256, copied.n_vocab) == (row["sha256"], row["vocab_size"])
    assert new.read_bytes() == file.read_bytes()
    for values, said in (
        ({"sha256": "0" * 64}, [row["sha256"], "0" * 64]),
        ({"vocab_size": 9}, ["vocab_size 9", 258]),
        ({"file": str(tmp_path / "b.json")}, ["b.json"]),
    ):
        with refused(UserError, *said):
            vocabulary.load(checked(Row, row | values, "row"))
    with refused(UserError, "a.json", "0" * 64):
        other = checked(Row, row | {"sha256": "0" * 64}, "row")
        tokenizer_file.copy(file, tmp_path / "c.json", other)
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize(("n_vocab", "type_"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_the_type_of_a_shard_changes_above_65536_tokens(tmp_path, n_vocab, type_):
    first = n_vocab - 258
    found = ids(tmp_path, tokenizer_files.small(first), "a", n_vocab)
    assert found == [n_vocab - 1, first + ord("a")]
    assert shards.token_type(tmp_path / "train-00000.bin") == type_


def test_a_shard_has_no_more_tokens_than_its_header_can_count(tmp_path):
    most = 2**31 - 1
    with shards.writing(tmp_path / "a.bin") as writer:
        writer.tokens = most - 1
        writer.write(np.zeros(1, dtype=np.uint16))
    assert np.fromfile(tmp_path / "a.bin", "<i4", count=3)[2] == most
    with refused(UserError, f"{most:,}"), shards.writing(tmp_path / "b.bin") as writer:
        writer.tokens = most
        writer.write(np.zeros(1, dtype=np.uint16))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_every_way_is_timed_by_stage_and_one_with_other_ids_is_called_different(
    real_data, ranks, monkeypatch
):
    """The shuffled ids are those of the two ways in Python."""

    def other(encoder, texts):
        made = encoders.buffers(encoder, texts)
        return encoders.Ids(np.roll(made.flat, 1), made.lengths)

    monkeypatch.setattr(encoders, "simple", other)
    monkeypatch.setattr(tokenizing, "ROUNDS", 1)
    monkeypatch.setattr(tokenizing, "SOURCE_BYTES", 1)
    made = tokenizing.bench([real_data / "c4" / "c4-validation.sample.200.json.gz"], ranks)
    head, *rows, last = made.splitlines()
    assert all(name in head for name in tokenizing.STAGES)
    assert [row.split()[0] for row in rows] == ["nanoGPT-like", "simple", "tiktoken", "gigatoken"]
    assert [row.split()[-1] for row in rows] == ["DIFFERENT"] * 2 + ["identical"] * 2
    assert all(re.search(r"\d+ MB", row) for row in rows[1:])
    assert " 200 " in last
