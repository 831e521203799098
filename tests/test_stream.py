"""The stream is one order of tokens, whoever reads it; a shard that changed is refused."""

import hashlib

import numpy as np
import pytest
from conftest import write_tokens

from lmscaling import shards
from lmscaling.errors import UserError
from lmscaling.stream import Stream


@pytest.fixture
def manifest(tmp_path):
    return write_tokens(tmp_path, [100, 7, 300], [50])


def whole(manifest):
    paths = sorted(manifest.parent.glob("train-*.bin"))
    return np.concatenate([np.fromfile(p, "<u2", offset=shards.HEADER_BYTES) for p in paths])


def test_shards_are_read_end_to_end(manifest):
    stream, expected = Stream(manifest, "train"), whole(manifest)
    assert stream.tokens == 407
    for start, stop in [(0, 407), (99, 101), (95, 110), (100, 107), (107, 108), (50, 50)]:
        assert stream.read(start, stop).tolist() == expected[start:stop].tolist()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_update_is_the_same_tokens_for_every_number_of_ranks(manifest, world):
    stream, expected = Stream(manifest, "train"), whole(manifest)
    for update in range(1, stream.updates(32) + 1):
        slabs = [stream.slab(update, 32, rank, world) for rank in range(world)]
        inputs = np.concatenate([slab[:-1] for slab in slabs])
        targets = np.concatenate([slab[1:] for slab in slabs])
        start = 32 * (update - 1)
        assert inputs.tolist() == expected[start : start + 32].tolist()
        assert targets.tolist() == expected[start + 1 : start + 33].tolist()


def test_the_last_update_needs_one_token_more(manifest):
    stream = Stream(manifest, "train")
    assert stream.updates(37) == 10  # 11 * 37 = 407, but the last target is missing
    assert stream.updates(58) == 7
    with pytest.raises(EOFError, match="ends at token 407"):
        stream.read(10 * 37, 11 * 37 + 1)
    assert (stream.slab(11, 37) == stream.slab(1, 37)).all()  # the first update of a new epoch


def test_more_shards_leave_every_earlier_id_as_it_was(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    short = shards.read_manifest(write_tokens(tmp_path / "a", [100, 7], [50]), "train")
    long = shards.read_manifest(write_tokens(tmp_path / "b", [100, 7, 300], [50]), "train")
    assert long[:2] == short
    second = hashlib.sha256((short[0].id + short[1].sha256).encode()).hexdigest()
    assert short[1].id == second


def test_a_run_knows_the_last_shard_it_read(manifest):
    stream = Stream(manifest, "train")
    entries = shards.read_manifest(manifest, "train")
    assert stream.reached(50) == (0, entries[0].id)
    assert stream.reached(103) == (1, entries[1].id)
    assert stream.reached(10_000) == (2, entries[2].id)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = [
    (flip, "has SHA-256"),
    (lambda p: p.write_bytes(p.read_bytes()[:-2]), "its header says"),
    (lambda p: p.write_bytes(bytes(p.stat().st_size)), "begins with 0, 0; allowed: 20240520, 1"),
    (lambda p: p.unlink(), "does not exist"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_a_damaged_shard_is_refused_before_its_first_token_is_used(manifest, damage, sentence):
    damage(manifest.parent / "train-00001.bin")
    stream = Stream(manifest, "train")
    stream.read(0, 100)
    with pytest.raises(UserError, match=sentence) as caught:
        stream.read(99, 101)
    assert "run snakemake again" in str(caught.value)


def test_a_manifest_of_a_missing_shard_is_refused(manifest):
    before = manifest.read_bytes()
    with pytest.raises(UserError, match=r"sidecar .*train-00003.json does not exist"):
        shards.write_manifest(manifest, {"train": 4, "validation": 1})
    assert manifest.read_bytes() == before


def test_a_manifest_that_is_not_whole_is_refused(manifest):
    manifest.write_text('{"train": [{"file": "x"}]}')
    with pytest.raises(UserError, match="has no whole list of train shards"):
        Stream(manifest, "train")
