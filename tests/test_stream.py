"""The stream is one order of tokens, whoever reads it; a shard that changed is refused."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import refused, write_shard, write_tokens
from hypothesis import example, given
from hypothesis import strategies as st
from test_documents import plain, text

from lmscaling.data import local_copies, shards
from lmscaling.data import stream as module
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
    monkeypatch.setattr(module, "sha256_of", fail)
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
    write_shard(tmp_path / "train-00000.bin", tokens, end_of_text=end, before=0)
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


# Copies on the local disk of a node: the same ids, shared by runs, gone with who made them
LENGTHS = [500] * 9


@pytest.fixture
def shared(tmp_path):
    return write_tokens(tmp_path / "shared", LENGTHS, [100])


def copies(folder):
    return sorted(folder.glob("lmscaling-*/*.bin"))


def wait_until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copied(stream, folder):
    """Shards that have a copy when the last one that is asked for has, as one follows another."""
    stream.read(0, 10)
    stream.read(500, 510)  # asks for one more
    numbers = {f"{shard.sha256}.bin": k for k, shard in enumerate(stream.shards)}
    wait_until(lambda: 6 in {numbers[path.name] for path in copies(folder)})
    return {numbers[path.name] for path in copies(folder)}


def test_what_is_read_next_is_copied_and_read_from_there_with_the_same_ids(shared, tmp_path):
    expected = Stream(shared, "train").read(0, sum(LENGTHS))
    stream, local = Stream(shared, "train", tmp_path / "local"), tmp_path / "local"
    other = Stream(shared, "train", local, copies=False)  # a rank that copies nothing
    assert np.array_equal(other.read(0, 10), expected[:10])
    assert not local.exists()
    assert copied(stream, local) == {2, 3, 4, 5, 6}  # four behind the one that is read
    before = {path: path.stat().st_ino for path in copies(local)}
    assert copied(Stream(shared, "train", local), local) == {2, 3, 4, 5, 6}  # another run
    assert {path: path.stat().st_ino for path in copies(local)} == before
    for k in (3, 4):
        (shared.parent / f"train-{k:05d}.bin").unlink()
    for one in (stream, other):
        assert np.array_equal(one.read(0, 2500), expected[:2500])


def test_a_copy_that_is_not_the_shard_is_not_used(shared, tmp_path, capfd):
    expected = Stream(shared, "train").read(0, sum(LENGTHS))
    stream, local = Stream(shared, "train", tmp_path / "local"), tmp_path / "local"
    copied(stream, local)
    for path in copies(local):
        path.write_bytes(path.read_bytes()[:-2] + b"xx")
    assert np.array_equal(stream.read(0, sum(LENGTHS)), expected)
    said = capfd.readouterr().err
    assert "node_scratch: " in said
    assert "SHA-256" in said


@pytest.mark.parametrize(("folder", "reason"), [("local", "room"), ("file", "Not a directory")])
def test_a_full_or_a_missing_disk_costs_a_sentence(
    shared, tmp_path, capfd, monkeypatch, folder, reason
):
    full = SimpleNamespace(total=1000, free=40, used=960)
    monkeypatch.setattr(local_copies.shutil, "disk_usage", lambda _: full)
    (tmp_path / "file").touch()
    said = []
    stream = Stream(shared, "train", tmp_path / folder)
    assert len(stream.read(0, sum(LENGTHS))) == sum(LENGTHS)
    wait_until(lambda: said.append(capfd.readouterr().err) or any(said))
    assert len(stream.read(0, sum(LENGTHS))) == sum(LENGTHS)
    whole = "".join([*said, capfd.readouterr().err])
    assert (reason in whole, whole.count("node_scratch: ")) == (True, 1)
    assert not copies(tmp_path / "local")


def test_a_process_deletes_the_copies_that_it_made_and_no_others(shared, tmp_path):
    """The last shard that is asked for is missing, so all others are complete when that is said."""
    code = """
import io, sys, time
from pathlib import Path
from lmscaling.data.stream import Stream
local, sys.stderr = Path(sys.argv[2]), io.StringIO()
stream = Stream(Path(sys.argv[1]), "train", local)
stream.read(0, 10)
while not sys.stderr.getvalue(): time.sleep(0.01)
assert len(list(local.glob("*/*.bin"))) == 3
if sys.argv[3:]: next(local.iterdir()).joinpath("of-another-run.bin").touch()
"""
    (shared.parent / "train-00005.bin").unlink()
    command = [sys.executable, "-c", code, str(shared), str(tmp_path / "local")]
    subprocess.run(command, check=True, timeout=120)
    assert not list((tmp_path / "local").iterdir())
    subprocess.run([*command, "other"], check=True, timeout=120)
    assert [path.name for path in copies(tmp_path / "local")] == ["of-another-run.bin"]
