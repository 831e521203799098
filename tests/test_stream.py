"""The stream is one order of tokens, whoever reads it; a shard that changed is refused."""

import errno
import hashlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import write_shard, write_tokens
from test_documents import plain, text

from lmscaling.data import shards
from lmscaling.data import stream as module
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.train.module import Updates, micro_batches


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
        inputs, targets = np.concatenate(slabs, axis=1)
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


def write_documents(folder, shard_lengths, seed=0):
    """Shards of documents, as ``test_documents.text`` makes them, and their manifest."""
    for i, lengths in enumerate(shard_lengths):
        write_shard(folder / f"train-{i:05d}.bin", text(lengths, seed + i))
    shards.write_manifest(folder / "manifest.json", {"train": len(shard_lengths), "validation": 0})
    return folder / "manifest.json"


@pytest.mark.parametrize("look_back", [1, 5, 4096])
@pytest.mark.parametrize(
    "shard_lengths",
    [[[100, 7, 300]], [[63], [1, 1, 100], [1000]], [[1], [1], [2]], [[5, 40]] * 5],
)
def test_positions_are_those_of_the_whole_stream(tmp_path, monkeypatch, shard_lengths, look_back):
    monkeypatch.setattr(module, "LOOK_BACK", look_back)
    stream = Stream(write_documents(tmp_path, shard_lengths), "train")
    expected = plain(stream.read(0, stream.tokens))
    rng = np.random.default_rng(0)
    for start, stop in [(0, stream.tokens), *np.sort(rng.integers(0, stream.tokens + 1, (99, 2)))]:
        tokens = stream.read(int(start), int(stop))
        assert stream.positions(int(start), tokens).tolist() == expected[start:stop]


def test_a_document_goes_on_across_a_border_without_a_separator(manifest):
    stream = Stream(manifest, "train")  # random bytes: shards begin anywhere
    expected = plain(stream.read(0, stream.tokens))
    for start in range(stream.tokens):
        tokens = stream.read(start, min(start + 10, stream.tokens))
        assert stream.positions(start, tokens).tolist() == expected[start : start + 10]


@pytest.mark.parametrize("world", [1, 4])
def test_each_rank_knows_the_positions_of_its_share_in_every_epoch(tmp_path, world):
    stream = Stream(write_documents(tmp_path, [[100, 7], [300]]), "train")
    expected = plain(stream.read(0, stream.tokens))
    for update in range(1, 2 * stream.updates(32) + 1):
        for rank in range(world):
            [(start, stop)] = stream.pieces(update, 32, rank, world)
            inputs, _ = stream.slab(update, 32, rank, world)
            assert stream.positions(start, inputs).tolist() == expected[start:stop]


def test_who_asks_for_no_positions_needs_no_sidecar(manifest):
    for sidecar in manifest.parent.glob("train-*.json"):
        sidecar.unlink()
    stream = Stream(manifest, "train")
    assert len(stream.read(0, 407)) == 407
    with pytest.raises(UserError, match="sidecar"):
        stream.positions(0, stream.read(0, 407))


def test_a_stream_of_many_shards_has_few_files_open(tmp_path):
    stream = Stream(write_documents(tmp_path, [[9]] * 40), "train")
    expected = whole(tmp_path / "manifest.json")
    for start in [*range(0, 350, 7), *range(350, 0, -7)]:
        assert stream.read(start, start + 10).tolist() == expected[start : start + 10].tolist()
    opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert len([path for path in opened if path.parent == tmp_path.resolve()]) <= module.OPEN


@pytest.mark.parametrize("context", [256, 131072])
def test_two_million_tokens_per_cpu_second_reach_the_model_checks_and_positions_included(
    tmp_path, cell, context
):
    """Hundreds of millions are usual (benchmarks/stream.py): only a mistake is so slow."""
    stream = Stream(write_documents(tmp_path, [[475] * 3000] * 3), "train")
    cell = replace(cell, context=context, update_tokens=2**19)
    start = time.process_time()
    slabs = Updates(stream, cell, done=0, rank=0, world=1)
    update = 0
    for update, slab in enumerate(slabs, start=1):
        for x_BT, y_BT in micro_batches(slab, context, 1):
            assert x_BT.shape == y_BT.shape == (1, context)
        [(begin, _)] = stream.pieces(update, 2**19)
        assert len(stream.positions(begin, slab[0].numpy())) == 2**19
    assert update == 8
    assert update * 2**19 / (time.process_time() - start) > 2e6


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
    (lambda p: p.write_bytes(p.read_bytes()[:-2]), "its header states"),
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


def test_a_shard_cut_short_under_an_open_stream_is_one_sentence(tmp_path):
    stream = Stream(write_documents(tmp_path, [[2**20]]), "train")
    stream.read(0, 100)
    os.truncate(tmp_path / "train-00000.bin", 2**20)
    assert len(stream.read(0, 100)) == 100
    with pytest.raises(UserError, match=r"truncated while it was read: it ends at byte 1048576, "):
        stream.read(2**19 - 1000, 2**19)


def test_a_read_may_return_less_than_was_asked_for(manifest, monkeypatch):
    plain = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, out, at: plain(file, [out[0][:3]], at))
    stream, expected = Stream(manifest, "train"), whole(manifest)
    assert stream.read(95, 400).tolist() == expected[95:400].tolist()


def test_a_disk_that_fails_is_one_sentence(manifest, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    stream = Stream(manifest, "train")
    stream.read(0, 100)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(UserError, match=r"train-00000.bin cannot be read: Input/output error"):
        stream.read(0, 100)
    monkeypatch.setattr(module, "sha256_of", fail)
    with pytest.raises(UserError, match=r"train-00002.bin cannot be read: Input/output error"):
        stream.read(110, 120)


def test_shards_that_changed_places_are_named(tmp_path):
    manifest = write_documents(tmp_path, [[50, 50], [99, 1], [100]])
    first, second = tmp_path / "train-00001.bin", tmp_path / "train-00002.bin"
    moved = first.rename(tmp_path / "moved")
    second.rename(first)
    moved.rename(second)
    stream = Stream(manifest, "train")
    stream.read(0, 100)
    with pytest.raises(UserError, match=r"train-00001.bin has the tokens of train-00002.bin"):
        stream.read(100, 101)


def test_a_manifest_whose_shards_are_not_in_the_order_of_its_chain_is_refused(manifest):
    values = json.loads(manifest.read_text())
    values["train"][1:] = values["train"][:0:-1]
    manifest.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"train-00002.bin in a place that does not match its id"):
        Stream(manifest, "train")


def test_a_manifest_of_a_missing_shard_is_refused(manifest):
    before = manifest.read_bytes()
    with pytest.raises(UserError, match=r"sidecar .*train-00003.json does not exist"):
        shards.write_manifest(manifest, {"train": 4, "validation": 1})
    assert manifest.read_bytes() == before


def test_a_manifest_that_is_not_whole_is_refused(manifest):
    manifest.write_text('{"train": [{"file": "x"}]}')
    with pytest.raises(UserError, match="has no complete list of train shards"):
        Stream(manifest, "train")


def test_the_next_update_is_read_while_the_current_one_is_used(tokens, cell, monkeypatch):
    stream, began = Stream(tokens, "train"), threading.Event()
    updates = Updates(stream, cell, done=3, rank=0, world=1)
    plain = stream.slab

    def slab(update, *shape):
        if update == 5:
            began.set()
        return plain(update, *shape)

    monkeypatch.setattr(stream, "slab", slab)
    slabs = iter(updates)
    assert next(slabs).equal(updates[0])
    assert began.wait(10)
    assert next(slabs).equal(updates[1])
    assert sum(1 for _ in updates) == len(updates) == 3699 // 64 - 3
    assert list(Updates(stream, cell, done=3699 // 64, rank=0, world=1)) == []
