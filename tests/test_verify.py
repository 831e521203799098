"""Shards are read before the day begins: every fault is found, named and has its remedy."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
from conftest import write_shard, write_tokens
from test_data import corpus, lines

from lmscaling.data import shards, verify
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.files import write_record


@pytest.fixture
def text(tmp_path):
    """The manifest of a text of three training shards and one of validation."""
    train = [lines(tmp_path / f"{i}.jsonl", [f"{i} {k}" for k in range(50)]) for i in range(3)]
    given = corpus({"kind": "jsonl", "train": train, "holdout": 0.1})
    folder = tmp_path / "tokens"
    tokenize(given, "validation", 0, folder / "validation-00000.bin")
    for i in range(3):
        tokenize(given, "train", i, folder / f"train-{i:05d}.bin")
    shards.write_manifest(folder / "manifest.json", {"train": 3, "validation": 1})
    return folder / "manifest.json"


def change(manifest, name, **values):
    path = manifest.with_name(f"{name}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def at(manifest, name, offset, value):
    with manifest.with_name(f"{name}.bin").open("r+b") as file:
        file.seek(offset)
        file.write(value)


def rewritten(manifest, name, **values):
    """Other tokens whose hash every record states: of a fault before the hash was made."""
    path = manifest.with_name(f"{name}.bin")
    record = json.loads(path.with_suffix(".json").read_text())
    tokens = np.fromfile(path, dtype="<u2", offset=1024)
    tokens[values.pop("place")] = values.pop("token")
    write_shard(path, tokens)
    made = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(record | {"sha256": made["sha256"]}))
    shards.write_manifest(manifest, {"train": 3, "validation": 1})


FAULTS = {
    "a flipped bit": (lambda m: at(m, "train-00001", 1100, b"\7"), "has SHA-256 .* its manifest"),
    "a short file": (
        lambda m: m.with_name("train-00001.bin").write_bytes(bytes(900)),
        "begins with 0, 0",
    ),
    "a missing file": (lambda m: m.with_name("train-00001.bin").unlink(), "does not exist"),
    "no sidecar": (lambda m: m.with_name("train-00001.json").unlink(), "json does not exist"),
    "a token beyond": (
        lambda m: rewritten(m, "train-00001", place=5, token=300),
        "has token 300; allowed: up to 256",
    ),
    "a separator too many": (
        lambda m: rewritten(m, "train-00001", place=5, token=256),
        r"number of documents \d+, but its sidecar states \d+",
    ),
    "a start inside": (
        lambda m: rewritten(m, "train-00001", place=[0, 5], token=[7, 256]),
        "begins with token 7; allowed: end-of-text",
    ),
    "positions that do not add up": (
        lambda m: change(m, "train-00001", own_context=[1]),
        "number of positions 1, but",
    ),
    "another shard's sidecar": (
        lambda m: change(m, "train-00001", source={"shard": 2}),
        "belongs to train shard 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_and_named_with_what_to_type(text, capsys, fault):
    assert re.search(r": 4 shards of [\d,]+ tokens are right$", verify.verify(text))
    damage, sentence = FAULTS[fault]
    damage(text)
    with pytest.raises(UserError, match=r"1 of 4 shards .*: train-00001; type: cd \S+ && rm -f"):
        verify.verify(text)
    assert re.search(sentence, capsys.readouterr().err)


def test_all_bad_shards_are_named_and_not_the_first_alone(text, capsys):
    for name in ("train-00000", "train-00002", "validation-00000"):
        at(text, name, 1030, b"\7")
    said = (
        r"3 of 4 shards .*: train-00000, train-00002, validation-00000; type: cd .*tokens && rm -f"
    )
    with pytest.raises(UserError, match=said):
        verify.verify(text, threads=3)
    assert capsys.readouterr().err.count("has SHA-256") == 3


def test_a_text_that_grows_costs_only_its_new_shards(text, tmp_path):
    mark = tmp_path / "verified.json"
    shards.write_manifest(text, {"train": 2, "validation": 1})
    assert "3 shards of" in verify.verify(text, mark)
    shards.write_manifest(text, {"train": 3, "validation": 1})
    assert re.search(r": 1 shards of [\d,]+ tokens are right; 3 others", verify.verify(text, mark))
    assert re.search(r": 0 shards of 0 tokens are right; 4 others", verify.verify(text, mark))


@pytest.mark.parametrize("content", ['{"train": 3}', "[]", "no", '{"train": {"shards": -1}}'])
def test_a_mark_of_other_shards_or_of_nothing_marks_nothing(text, tmp_path, content):
    mark = tmp_path / "verified.json"
    mark.write_text(content)
    assert ": 4 shards of" in verify.verify(text, mark)
    write_record(mark, {"train": {"shards": 3, "id": "x"}, "validation": {"shards": 1, "id": "x"}})
    assert ": 4 shards of" in verify.verify(text, mark)


def test_a_shard_that_is_found_wrong_leaves_no_mark(text, tmp_path):
    at(text, "train-00002", 1030, b"\7")
    with pytest.raises(UserError):
        verify.verify(text, tmp_path / "verified.json")
    assert not (tmp_path / "verified.json").exists()


FORGED = [None, -1, 10**30, 1.5, "x", [], {}, [[]], {"shard": "x"}, {"shard": -1}, ["x"], True]


def test_forged_sidecars_are_sentences(tmp_path, capsys):
    """Every field left out, or of another type, negative or huge."""
    manifest = write_tokens(tmp_path, [700], [1000])
    path = tmp_path / "train-00000.json"
    record = json.loads(path.read_text())
    for name in record:
        for value in [*FORGED, KeyError]:
            changed = dict(record)
            changed.pop(name, None)
            if value is not KeyError:
                changed[name] = value
            path.write_text(json.dumps(changed))
            for check in (
                lambda: shards.write_manifest(tmp_path / "m.json", {"train": 1, "validation": 1}),
                lambda: verify.verify(manifest),
            ):
                with suppress(UserError):  # any other error fails the test
                    check()
    for whole in ("[]", "null", "3", '"x"', "{}", ""):
        path.write_text(whole)
        with pytest.raises(UserError, match="train-00000"):
            shards.write_manifest(tmp_path / "m.json", {"train": 1, "validation": 1})


def test_wide_tokens_are_verified(tmp_path):
    documents, end = np.array([70_000, 5, 6, 70_000, 65_536], dtype=np.uint32), 70_000
    for split in ("train", "validation"):
        path = tmp_path / f"{split}-00000.bin"
        values = {"end_of_text": end, "documents": 2, "own_context": [2, 2, 1]}
        write_shard(path, documents, **values)
    shards.write_manifest(tmp_path / "manifest.json", {"train": 1, "validation": 1})
    assert "2 shards of 10 tokens are right" in verify.verify(tmp_path / "manifest.json")
    write_shard(tmp_path / "train-00000.bin", documents + 1, **values)
    with pytest.raises(UserError, match="1 of 2 shards"):
        verify.verify(tmp_path / "manifest.json")
