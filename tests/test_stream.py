"""The stream is one order of tokens, whoever reads it; a shard that changed is refused."""

import errno
import hashlib
import json
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import refused, write_shard, write_tokens
from hypothesis import example, given
from hypothesis import strategies as st
from test_documents import plain, text

from lmscaling.data import shards
from lmscaling.data import stream as module
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.train.data import Updates


@pytest.fixture
def manifest(tmp_path):
    return write_tokens(tmp_path, [100, 7, 300], [50])


def written(folder, *tokens):
    """The manifest of training shards with these tokens, and one validation shard."""
    splits = {"train": tokens, "validation": tokens[:1]}
    for split, parts in splits.items():
        for i, part in enumerate(parts):
            write_shard(Path(folder, f"{split}-{i:05d}.bin"), part)
    path = Path(folder, "manifest.json")
    shards.write_manifest(path, {split: len(parts) for split, parts in splits.items()})
    return path


@st.composite
def arrays(draw):
    token = draw(st.sampled_from([np.uint16, np.uint32]))
    numbers = st.lists(st.integers(0, np.iinfo(token).max), min_size=1, max_size=40)
    return [np.array(one, dtype=token) for one in draw(st.lists(numbers, min_size=1, max_size=4))]


@given(arrays(), st.data())
def test_any_tokens_come_back_from_their_shards(tokens, data):
    with TemporaryDirectory() as folder:
        stream = Stream(written(folder, *tokens), "train")
        whole = np.concatenate(tokens)
        assert stream.tokens == len(whole)
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        found = stream.read(start, stop)
        assert found.dtype == whole.dtype == shards.token_type(Path(folder, "train-00000.bin"))
        assert found.tolist() == whole[start:stop].tolist()
        if len(whole) > 1:
            slab = stream.slab(1, len(whole) - 1)
            assert slab.dtype == whole.dtype
            assert slab.tolist() == [whole[:-1].tolist(), whole[1:].tolist()]
        with pytest.raises(EOFError, match=f" {len(whole)}, .* {len(whole) + 1} "):
            stream.read(start, len(whole) + 1)
        for i, part in enumerate(tokens):
            path = Path(folder, f"train-{i:05d}.bin")
            assert shards.check(path) == len(part)
            assert stream.shards[i].sha256 == hashlib.sha256(part.tobytes()).hexdigest()
            magic = (20240520, 1) if part.dtype == np.uint16 else (20240801, 7)
            header = np.fromfile(path, dtype="<i4", count=256).tolist()
            assert header == [*magic, len(part), *[0] * 253]


@given(st.integers(0, 10**6), st.integers(1, 255), st.booleans())
@example(1024, 1, False)  # the first token
def test_no_damaged_byte_is_ever_read_as_a_token(place, change, is_manifest):
    """Bytes of the header behind the number of tokens mean nothing."""
    with TemporaryDirectory() as folder:
        path = written(folder, *(text([n, 9]) for n in (5, 40)))
        whole = Stream(path, "train").read(0, 63)
        damaged = path if is_manifest else Path(folder, "train-00001.bin")
        data = bytearray(damaged.read_bytes())
        place %= len(data)
        data[place] ^= change
        damaged.write_bytes(data)
        try:
            stream = Stream(path, "train")
            found = stream.read(0, stream.tokens)
        except UserError as error:
            said = str(error)
        else:
            assert found.tolist() == whole.tolist()
            assert is_manifest or 12 <= place < 1024
            return
    assert is_manifest or damaged.name in said


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=4),
       st.integers(0, 9), st.integers(1, 40))  # fmt: skip
def test_positions_are_those_of_the_whole_stream(shard_lengths, missing, step):
    """Some documents begin in an earlier shard than the one that is read."""
    tokens = np.concatenate([text(lengths) for lengths in shard_lengths])[missing:]
    cuts = np.cumsum([sum(lengths) for lengths in shard_lengths[:-1]])
    if parts := [part for part in np.split(tokens, cuts) if len(part)]:
        with TemporaryDirectory() as folder:
            stream = Stream(written(folder, *parts), "train")
            expected = plain(tokens)
            for start in range(stream.tokens):
                part = stream.read(start, min(start + step, stream.tokens))
                assert stream.positions(start, part).tolist() == expected[start : start + step]


def test_a_stream_of_many_shards_has_few_files_open_and_finds_the_start_of_a_document(tmp_path):
    tokens = [text([9], i) for i in range(40)]
    stream, expected = Stream(written(tmp_path, *tokens), "train"), np.concatenate(tokens)
    for start in [*range(0, 350, 7), *range(350, 0, -7)]:
        assert stream.read(start, start + 10).tolist() == expected[start : start + 10].tolist()
    opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert len([path for path in opened if path.parent == tmp_path.resolve()]) <= 8
    stream = Stream(written(tmp_path / "long", text([300, 40_000])), "train")
    for start in (300, 301, 4396, 4397, 4398, 20_000, 40_299):
        assert stream.positions(start, stream.read(start, start + 1)).tolist() == [start - 300]


def test_more_shards_leave_every_earlier_id_as_it_was_and_a_run_knows_the_last_it_read(
    tmp_path, manifest
):
    short = shards.read_manifest(write_tokens(tmp_path / "a", [100, 7], [50]), "train")
    long, stream = shards.read_manifest(manifest, "train"), Stream(manifest, "train")
    assert long[:2] == short
    assert short[1].id == hashlib.sha256((short[0].id + short[1].sha256).encode()).hexdigest()
    for tokens, k in ((50, 0), (99, 0), (103, 1), (10_000, 2)):
        assert stream.reached(tokens) == (k, long[k].id)


def test_a_shard_cut_short_under_an_open_stream_or_of_another_width_is_refused(tmp_path):
    stream = Stream(written(tmp_path, text([2**20])), "train")
    stream.read(0, 100)
    os.truncate(tmp_path / "train-00000.bin", 2**20)
    assert len(stream.read(0, 100)) == 100
    with refused(UserError, "train-00000.bin", 2**20, 1024 + 2 * 2**20):
        stream.read(2**19 - 1000, 2**19)
    manifest = written(tmp_path / "widths", text([50]).astype(np.uint32), text([50]))
    with refused(UserError, "train-00001.bin", "uint16", "uint32"):
        Stream(manifest, "train").read(0, 60)


@pytest.mark.parametrize("order", [None, Order(4096, seed=0)])
def test_a_byte_that_changes_in_an_open_shard_is_never_trained_on(tmp_path, order):
    tokens = text([2**18])
    stream = Stream(written(tmp_path, tokens), "train", order)
    path = tmp_path / "train-00000.bin"
    slabs = [stream.slab(1, 2**16)]
    state = path.stat()
    with path.open("r+b") as file:  # as a disk does it: the time of the file stays
        file.seek(1024 + 2 * 200_000)
        file.write((tokens[200_000] ^ 1).tobytes())
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with refused(UserError, path.name, "changed"):
        slabs += [stream.slab(update, 2**16) for update in range(2, 5)]
    assert not any(200_000 in np.r_[slice(*piece)] for piece in stream.pieces(1, 2**16))


def test_a_disk_may_return_less_than_was_asked_for_and_is_named_if_it_fails(manifest, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    stream, preadv = Stream(manifest, "train"), os.preadv
    expected = stream.read(0, 407)
    monkeypatch.setattr(os, "preadv", lambda file, out, at: preadv(file, [out[0][:3]], at))
    assert stream.read(95, 400).tolist() == expected[95:400].tolist()
    monkeypatch.setattr(os, "preadv", fail)
    with refused(UserError, "train-00000.bin", os.strerror(errno.EIO)):
        stream.read(0, 100)
    monkeypatch.setattr(module, "digests", fail)
    with refused(UserError, "train-00002.bin", os.strerror(errno.EIO)):
        Stream(manifest, "train").read(110, 120)


def test_a_manifest_that_does_not_say_all_is_refused_and_positions_alone_need_sidecars(manifest):
    text = manifest.read_text()
    with refused(UserError, "train-00003.json"):
        shards.write_manifest(manifest, {"train": 4, "validation": 1})
    assert manifest.read_text() == text
    whole = json.loads(text)
    whole["train"][1:] = whole["train"][:0:-1]
    for values, place in ((whole, "train-00002.bin"), ({"train": [{"file": "x"}]}, "train")):
        manifest.write_text(json.dumps(values))
        with refused(UserError, manifest.name, place):
            Stream(manifest, "train")
    manifest.write_text(text)
    for sidecar in manifest.parent.glob("train-*.json"):
        sidecar.unlink()
    stream = Stream(manifest, "train")
    assert len(stream.read(0, 407)) == 407
    with refused(UserError, "train-00000.json"):
        stream.positions(0, stream.read(0, 407))


def test_tokens_above_65536_and_their_positions_reach_the_trainer(tmp_path, cell):
    narrow, end = text([20, 30, 40]), 70_000
    tokens = np.where(narrow == 256, end, narrow + np.uint32(65_536)).astype(np.uint32)
    write_shard(tmp_path / "train-00000.bin", tokens, end_of_text=end)
    shards.write_manifest(tmp_path / "manifest.json", {"train": 1, "validation": 0})
    stream = Stream(tmp_path / "manifest.json", "train")
    slab = Updates(stream, cell, done=0, rank=0, world=1).share(1)
    assert slab.tolist() == [tokens[:64].tolist(), tokens[1:65].tolist()]
    assert stream.positions(0, stream.read(0, 90)).tolist() == plain(narrow)


def test_the_next_update_is_read_while_the_current_one_is_used(tokens, cell):
    began = threading.Event()

    class Watched(Stream):
        def slab(self, update, update_tokens, rank=0, world=1):
            if update == 5:
                began.set()
            return super().slab(update, update_tokens, rank, world)

    stream = Watched(tokens, "train")
    updates = Updates(stream, cell, done=3, rank=0, world=1)
    slabs = iter(updates)
    assert next(slabs).equal(updates.share(4))
    assert began.wait(60)
    assert next(slabs).equal(updates.share(5))
    assert sum(1 for _ in slabs) == len(updates) - 5 == 3699 // 64 - 5
    assert list(Updates(stream, cell, done=3699 // 64, rank=0, world=1)) == []
