"""Shards are read before the day begins: every fault is found, named and has its remedy."""

import json
from contextlib import suppress

import numpy as np
import pytest
from conftest import refused, sentence, write_shard, write_tokens
from hypothesis import given
from hypothesis import strategies as st
from test_data import corpus, lines

from lmscaling.data import shards, verify
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.files import write_record


def make(folder):
    """The manifest of a text of three training shards and one of validation."""
    train = [lines(folder / f"{i}.jsonl", [f"{i} {k}" for k in range(50)]) for i in range(3)]
    given, tokens = corpus({"kind": "jsonl", "train": train, "holdout": 0.1}), folder / "tokens"
    tokenize(given, "validation", 0, tokens / "validation-00000.bin")
    for i in range(3):
        tokenize(given, "train", i, tokens / f"train-{i:05d}.bin")
    shards.write_manifest(tokens / "manifest.json", {"train": 3, "validation": 1})
    return tokens / "manifest.json"


@pytest.fixture
def text(tmp_path):
    return make(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make(tmp_path_factory.mktemp("verify"))


def change(manifest, **values):
    path = manifest.with_name(f"{SHARD}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def at(manifest, name, offset, value):
    data = bytearray(manifest.with_name(f"{name}.bin").read_bytes())
    data[offset] = value
    manifest.with_name(f"{name}.bin").write_bytes(data)


def rewritten(manifest, place, token):
    """Other tokens whose hash every record states: of a fault before the hash was made."""
    path, sidecar = (manifest.with_name(f"{SHARD}.{end}") for end in ("bin", "json"))
    record = json.loads(sidecar.read_text())
    tokens = np.fromfile(path, dtype="<u2", offset=1024)
    tokens[place] = token
    write_shard(path, tokens)
    made = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps(record | {"sha256": made["sha256"]}))
    shards.write_manifest(manifest, {"train": 3, "validation": 1})


SHARD = "train-00001"
FAULTS = {
    "a flipped bit": (lambda m: at(m, SHARD, 1100, 7), "SHA-256"),
    "a short file": (lambda m: m.with_name(f"{SHARD}.bin").write_bytes(bytes(900)), "0, 0"),
    "a missing file": (lambda m: m.with_name(f"{SHARD}.bin").unlink(), f"{SHARD}.bin"),
    "no sidecar": (lambda m: m.with_name(f"{SHARD}.json").unlink(), f"{SHARD}.json"),
    "a token beyond": (lambda m: rewritten(m, 5, 300), "300"),
    "a separator too many": (lambda m: rewritten(m, 5, 256), "documents"),
    "a start inside": (lambda m: rewritten(m, [0, 5], [7, 256]), "token 7,"),
    "wrong positions": (lambda m: change(m, own_context=[1]), "positions 1,"),
    "another's sidecar": (lambda m: change(m, source={"shard": 2}), "shard 2"),
}


@pytest.mark.parametrize(("damage", "value"), FAULTS.values(), ids=FAULTS)
def test_every_fault_is_found_and_named_with_what_to_type(text, capsys, damage, value):
    damage(text)
    with refused(UserError, "1 of 4", SHARD, "rm -f"):
        verify.verify(text)
    said = capsys.readouterr().err
    assert value in said
    sentence("verify", said.removeprefix("verify: ").strip())


def test_all_bad_shards_are_named_and_leave_no_mark(text, tmp_path, capsys):
    bad = ["train-00000", "train-00002", "validation-00000"]
    for name in bad:
        at(text, name, 1030, 7)
    with refused(UserError, "3 of 4", *bad):
        verify.verify(text, tmp_path / "verified.json", threads=3)
    assert capsys.readouterr().err.count("SHA-256") == 3
    assert not (tmp_path / "verified.json").exists()


@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from([SHARD, "validation-00000"]))
def test_no_damaged_token_passes(shared, place, change, name):
    whole = shared.with_name(f"{name}.bin").read_bytes()
    place = 1024 + place % (len(whole) - 1024)
    at(shared, name, place, whole[place] ^ change)
    with pytest.raises(UserError, match=name):
        verify.verify(shared)
    at(shared, name, place, whole[place])


def test_a_text_that_grows_costs_only_its_new_shards(text, tmp_path):
    mark = tmp_path / "verified.json"
    shards.write_manifest(text, {"train": 2, "validation": 1})
    assert ": 3 shards" in verify.verify(text, mark)
    shards.write_manifest(text, {"train": 3, "validation": 1})
    for n in (1, 0):
        said = verify.verify(text, mark)
        assert (f": {n} shards" in said, f"; {4 - n} others" in said) == (True, True)
        sentence("verify", said.removeprefix("verify: "))


@pytest.mark.parametrize("content", ['{"train": 3}', "[]", "no", '{"train": {"shards": -1}}'])
def test_a_mark_of_other_shards_or_of_nothing_marks_nothing(shared, tmp_path, content):
    mark = tmp_path / "verified.json"
    mark.write_text(content)
    assert ": 4 shards" in verify.verify(shared, mark)
    write_record(mark, {"train": {"shards": 3, "id": "x"}, "validation": {"shards": 1, "id": "x"}})
    assert ": 4 shards" in verify.verify(shared, mark)


FORGED = [None, -1, 10**30, 1.5, "x", [], {}, [[]], {"shard": "x"}, {"shard": -1}, ["x"], True]


def test_forged_sidecars_raise_no_other_error(tmp_path):
    """Every field left out, or of another type, negative or huge."""
    manifest = write_tokens(tmp_path, [700], [1000])
    path = tmp_path / "train-00000.json"
    record = json.loads(path.read_text())
    for name in record:
        others = {key: value for key, value in record.items() if key != name}
        for changed in (others, *(others | {name: value} for value in FORGED)):
            path.write_text(json.dumps(changed))
            with suppress(UserError):
                shards.write_manifest(tmp_path / "m.json", {"train": 1, "validation": 1})
            with suppress(UserError):
                verify.verify(manifest)
    for whole in ("[]", "null", "3", '"x"', "{}", ""):
        path.write_text(whole)
        with pytest.raises(UserError, match="train-00000"):
            shards.write_manifest(tmp_path / "m.json", {"train": 1, "validation": 1})


def test_wide_tokens_are_verified(tmp_path):
    documents, end = np.array([70_000, 5, 6, 70_000, 65_536], dtype=np.uint32), 70_000
    values = {"end_of_text": end, "documents": 2, "own_context": [2, 2, 1]}
    for split in ("train", "validation"):
        write_shard(tmp_path / f"{split}-00000.bin", documents, **values)
    shards.write_manifest(tmp_path / "manifest.json", {"train": 1, "validation": 1})
    assert ": 2 shards" in verify.verify(tmp_path / "manifest.json")
    write_shard(tmp_path / "train-00000.bin", documents + 1, **values)
    with pytest.raises(UserError, match="1 of 2"):
        verify.verify(tmp_path / "manifest.json")
