"""Shards on the local disk of a node: the same ids, shared by runs, gone with who made them."""

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import write_tokens

from lmscaling.data import local_copies
from lmscaling.data.stream import Stream

LENGTHS = [500] * 9
FIRST = {2, 3, 4, 5}
"""Shards that are copied when the first one is read."""


@pytest.fixture
def manifest(tmp_path):
    return write_tokens(tmp_path / "shared", LENGTHS, [100])


def copies(folder):
    return sorted(folder.glob("lmscaling-*/*.bin"))


def wait_until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copied(stream, folder):
    """Numbers of the shards that have a copy. Copies are made one after another, so those that were
    asked for are complete when another one is, which the next shard asks for."""
    stream.read(0, 10)
    stream.read(500, 510)
    numbers = {f"{shard.sha256}.bin": k for k, shard in enumerate(stream.shards)}
    wait_until(lambda: 6 in {numbers[path.name] for path in copies(folder)})
    return {numbers[path.name] for path in copies(folder)}


def test_what_is_read_next_is_copied_and_read_from_there_with_the_same_ids(manifest, tmp_path):
    expected = Stream(manifest, "train").read(0, sum(LENGTHS))
    stream, local = Stream(manifest, "train", tmp_path / "local"), tmp_path / "local"
    other = Stream(manifest, "train", local, copies=False)  # a rank that copies nothing
    assert np.array_equal(other.read(0, 10), expected[:10])
    assert not local.exists()
    assert copied(stream, local) == {*FIRST, 6}
    before = {path: path.stat().st_ino for path in copies(local)}
    assert copied(Stream(manifest, "train", local), local) == {*FIRST, 6}  # another run
    assert {path: path.stat().st_ino for path in copies(local)} == before
    for k in (3, 4):
        (manifest.parent / f"train-{k:05d}.bin").unlink()
    for one in (stream, other):
        assert np.array_equal(one.read(0, 2500), expected[:2500])


def test_a_copy_that_is_not_the_shard_is_not_used(manifest, tmp_path, capfd):
    expected = Stream(manifest, "train").read(0, sum(LENGTHS))
    stream, local = Stream(manifest, "train", tmp_path / "local"), tmp_path / "local"
    copied(stream, local)
    for path in copies(local):
        path.write_bytes(path.read_bytes()[:-2] + b"xx")
    assert np.array_equal(stream.read(0, sum(LENGTHS)), expected)
    said = capfd.readouterr().err
    assert "node_scratch: " in said
    assert "SHA-256" in said


@pytest.mark.parametrize(("folder", "reason"), [("local", "room"), ("file", "Not a directory")])
def test_a_full_or_a_missing_disk_costs_a_sentence(
    manifest, tmp_path, capfd, monkeypatch, folder, reason
):
    full = SimpleNamespace(total=1000, free=40, used=960)
    monkeypatch.setattr(local_copies.shutil, "disk_usage", lambda _: full)
    (tmp_path / "file").touch()
    said = []
    stream = Stream(manifest, "train", tmp_path / folder)
    assert len(stream.read(0, sum(LENGTHS))) == sum(LENGTHS)
    wait_until(lambda: said.append(capfd.readouterr().err) or any(said))
    assert len(stream.read(0, sum(LENGTHS))) == sum(LENGTHS)
    whole = "".join([*said, capfd.readouterr().err])
    assert (reason in whole, whole.count("node_scratch: ")) == (True, 1)
    assert not copies(tmp_path / "local")


def test_a_process_deletes_the_copies_that_it_made_and_no_others(manifest, tmp_path):
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
    (manifest.parent / "train-00005.bin").unlink()
    command = [sys.executable, "-c", code, str(manifest), str(tmp_path / "local")]
    subprocess.run(command, check=True, timeout=120)
    assert not list((tmp_path / "local").iterdir())
    subprocess.run([*command, "other"], check=True, timeout=120)
    assert [path.name for path in copies(tmp_path / "local")] == ["of-another-run.bin"]
