"""A tokenizer.json: the ids are those of ordinary text, and a file that changes text is refused."""

import gzip
import json
from contextlib import nullcontext
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
from conftest import refused
from test_backends import ODD
from test_data import corpus, lines
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from lmscaling.config.validation import checked
from lmscaling.data import shards, tokenizer_file, vocabulary
from lmscaling.data.rows import Tokenizer as Row
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.files import sha256_of
from lmscaling.types import Split


@cache
def characters():
    """The character that stands for each byte in a byte-level BPE: GPT-2's table."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def named(token):
    return "".join(characters()[byte] for byte in token)


def halves(token, ranks):
    """The two tokens that are merged last into a token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = (ranks.get(a + b, len(ranks)) for a, b in pairwise(parts))
        i = min(enumerate(pairs), key=lambda pair: pair[1])[0]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def gpt2(ranks):
    encoder: tiktoken.Encoding = vocabulary.encoding(Row(encoding="gpt2"), ranks)
    known = {encoder.decode_single_token_bytes(i): i for i in range(encoder.n_vocab - 1)}
    merged = sorted((token for token in known if len(token) > 1), key=known.__getitem__)
    merges = [tuple(map(named, halves(token, known))) for token in merged]
    made = byte_level({named(token): rank for token, rank in known.items()}, merges)
    made.add_special_tokens(["<|endoftext|>"])
    return made


def byte_level(vocab, merges=None, **options):
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges or [], **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def small(first=0, **options):
    """The 256 bytes from an id on, after tokens that no text has, and one merge."""
    vocab = {f"unused {i}": i for i in range(first)}
    vocab |= {characters()[byte]: first + byte for byte in range(256)} | {"th": first + 256}
    return byte_level(vocab, [("t", "h")], **options)


def row(tokenizer, path, n_vocab=258):
    text = tokenizer.to_str() if isinstance(tokenizer, Tokenizer) else tokenizer
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return {"file": str(path), "sha256": sha256_of(path), "vocab_size": n_vocab}


def made(source, encoding, out, split: Split = "train", ranks=None):
    given = corpus(source, values=encoding)
    return tokenize(given, split, 0, out, ranks)


def ids(tmp_path, tokenizer, text, n_vocab=258):
    """Ids of one text by a tokenizer, as they are in a shard."""
    source = {"kind": "jsonl", "train": [lines(tmp_path / "t.jsonl", [text])], "holdout": 1e-9}
    made(source, row(tokenizer, tmp_path / "t.json", n_vocab), tmp_path / "train-00000.bin")
    return read(tmp_path / "train-00000.bin").tolist()


def read(path):
    return np.fromfile(path, shards.token_type(path), offset=shards.HEADER_BYTES)


def test_gpt2_as_a_file_gives_the_shard_that_tiktoken_gives(real_data, ranks, tmp_path):
    file = row(gpt2(ranks), tmp_path / "gpt2.json", 50257)
    with gzip.open(real_data / "c4" / "c4-validation.sample.200.json.gz") as packed:
        texts = [json.loads(line)["text"] for line in packed]
    path = lines(tmp_path / "a.jsonl", [*ODD, *texts])
    source = {"kind": "jsonl", "train": [path], "holdout": 1e-9}
    ours = made(source, file, tmp_path / "file" / "train-00000.bin")
    theirs = made(source, {"encoding": "gpt2"}, tmp_path / "gpt2" / "train-00000.bin", ranks=ranks)
    assert ours["end_of_text"] == theirs["end_of_text"] == 50256
    assert ours["sha256"] == theirs["sha256"]
    assert ours["bytes"] == sum(len(text.encode()) for text in [*ODD, *texts])
    assert [*ours["versions"]] == ["lmscaling", "python", "tokenizers"]
    assert ours["ranks_sha256"] == file["sha256"]


def test_a_file_whose_text_can_reach_end_of_text_is_refused(tmp_path):
    """A special token in the vocabulary of the model, which splits and merges nothing."""
    words = json.loads(small(ignore_merges=True).to_str())
    words["pre_tokenizer"]["use_regex"] = False
    words["model"]["vocab"]["<end>"] = 257
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    words["added_tokens"] = [{"id": 257, "content": "<end>", "special": True, **special}]
    with refused(UserError, "id 257"):
        ids(tmp_path, words, "<end>")
    assert not (tmp_path / "train-00000.bin").exists()


def test_ordinary_text_becomes_tokens_and_nothing_else_does(tmp_path):
    tokenizer = small()
    tokenizer.add_special_tokens(["<|endoftext|>", "<s>"])  # in a text they are text
    tokenizer.add_tokens(["    "])  # which is a token
    found = ids(tmp_path, tokenizer, "a<|endoftext|><s>b    c", 261)
    assert found == [260, *b"a<|endoftext|><s>b", 259, ord("c")]
    tokenizer = small()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 257)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    assert ids(tmp_path, tokenizer, "the e\u0301nd") == [257, 256, *"e énd".encode()]
    # The bytes that are counted are those of the text as it came.
    assert json.loads((tmp_path / "train-00000.json").read_text())["bytes"] == 9


ISOLATED = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|[^\s\p{N}]+|\s+"), "isolated")


@pytest.mark.parametrize("first", [pre_tokenizers.Digits(individual_digits=True), ISOLATED])
@pytest.mark.parametrize("ignores", [False, True])
def test_text_may_be_split_in_any_way_that_keeps_it(first, ignores, tmp_path):
    tokenizer = small(ignore_merges=ignores)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=first != ISOLATED)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    text = "the 1234 <|endoftext|> th\n"
    found = ids(tmp_path, tokenizer, text)
    assert found[:2] == [257, 256]
    assert tokenizer.decode(found[1:]) == text


def changed(**values):
    return json.loads(small().to_str()) | values


def stripping():
    tokenizer = small()
    tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    return tokenizer


def deleting():
    tokenizer = small()
    parts = [pre_tokenizers.Split("b", "removed"), tokenizer.pre_tokenizer]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
FEW = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
UNFIT = {
    "a unigram model": (lambda: Tokenizer(models.Unigram([("a", -1.0)])), []),
    "a BPE of characters": (lambda: Tokenizer(models.BPE({"a": 0, "b": 1}, [])), []),
    "small letters": (lambda: changed(normalizer={"type": "Lowercase"}), ["changes"]),
    "random merges": (lambda: changed(model=changed()["model"] | {"dropout": 0.1}), ["dropout"]),
    "few bytes": (lambda: changed(model=FEW), ["changes"]),
    "a space before the text": (lambda: changed(pre_tokenizer=SPACED), ["changes"]),
    "an added token that strips": (stripping, ["'a <x> b'", "'a<x>"]),
    "deleted characters": (deleting, ["changes"]),
    "another file": (lambda: {"a": 1}, []),
    "no JSON": (lambda: "{", []),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_file_that_does_not_keep_every_text_is_refused(what, tmp_path):
    make, values = UNFIT[what]
    with refused(UserError, "t.json", *values):
        ids(tmp_path, make(), "text")
    assert not (tmp_path / "train-00000.bin").exists()


def test_a_file_that_is_not_that_of_the_row_is_refused_and_a_copy_says_the_row(tmp_path):
    file, new = tmp_path / "a.json", tmp_path / "made" / "b.json"
    right = row(small(), file)
    copied = tokenizer_file.copy(file, new)
    assert (copied.sha256, copied.n_vocab) == (right["sha256"], right["vocab_size"])
    assert new.read_bytes() == file.read_bytes()
    for values, *said in (
        ({"sha256": "0" * 64}, right["sha256"]), ({"vocab_size": 9}, "vocab_size: 258"),
        ({"file": str(tmp_path / "b.json")}, "b.json"),
    ):  # fmt: skip
        with refused(UserError, *said):
            vocabulary.load(checked(Row, right | values, "row"))
    with refused(UserError, "a.json", right["sha256"]):
        other = checked(Row, right | {"sha256": "0" * 64}, "row")
        tokenizer_file.copy(file, tmp_path / "c.json", other)
    assert not (tmp_path / "c.json").exists()


def test_a_shard_has_the_type_of_its_ids_and_no_more_than_its_header_can_count(tmp_path):
    for n_vocab, type_ in ((65_536, np.uint16), (65_537, np.uint32)):
        first = n_vocab - 258
        found = ids(tmp_path, small(first), "a", n_vocab)
        assert found == [n_vocab - 1, first + ord("a")]
        assert shards.token_type(tmp_path / "train-00000.bin") == type_
    most, folder = 2**31 - 1, tmp_path / "made"
    for name, tokens in (("a", most - 1), ("b", most)):
        expected = refused(UserError, f"{most:,}") if name == "b" else nullcontext()
        with expected, shards.writing(folder / f"{name}.bin") as writer:
            writer.tokens = tokens
            writer.write(np.zeros(1, dtype=np.uint16))
    assert np.fromfile(folder / "a.bin", "<i4", count=3)[2] == most
    assert [path.name for path in folder.iterdir()] == ["a.bin"]
